// Poisson counts with a random effect per group, non-centred.
data { int<lower=1> N; int<lower=1> J; array[N] int<lower=1, upper=J> g; vector[N] x; array[N] int<lower=0> y; }
parameters { real mu; real beta; real<lower=0> tau; vector[J] eta; }
transformed parameters { vector[J] alpha = mu + tau * eta; }
model {
  mu ~ normal(0, 3);
  beta ~ normal(0, 2);
  tau ~ normal(0, 1);
  eta ~ std_normal();
  y ~ poisson_log(alpha[g] + beta * x);
}

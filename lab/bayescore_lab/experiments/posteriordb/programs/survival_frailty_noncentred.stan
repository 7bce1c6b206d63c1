// Exponential survival with a frailty per hospital and right censoring, non-centred.
data {
  int<lower=1> N; int<lower=1> J; array[N] int<lower=1, upper=J> hospital;
  vector[N] x; vector<lower=0>[N] t; array[N] int<lower=0, upper=1> died;
}
parameters { real mu; real beta; real<lower=0> tau; vector[J] eta; }
transformed parameters { vector[J] frailty = mu + tau * eta; }
model {
  mu ~ normal(0, 5);
  beta ~ normal(0, 2);
  tau ~ normal(0, 1);
  eta ~ std_normal();
  vector[N] rate = frailty[hospital] + beta * x;
  target += dot_product(to_vector(died), rate) - dot_product(t, exp(rate));
}

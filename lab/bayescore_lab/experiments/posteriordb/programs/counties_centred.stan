// Log radon by county and floor: varying intercepts, centred.
data {
  int<lower=1> N; int<lower=1> J;
  array[N] int<lower=1, upper=J> county; vector[N] floor_; vector[N] y;
}
parameters { real mu; real beta; real<lower=0> tau; real<lower=0> sigma; vector[J] alpha; }
model {
  mu ~ normal(0, 10);
  beta ~ normal(0, 10);
  tau ~ normal(0, 1);
  sigma ~ normal(0, 1);
  alpha ~ normal(mu, tau);
  y ~ normal(alpha[county] + beta * floor_, sigma);
}

// Weibull survival with covariates and right censoring.
data { int<lower=1> N; int<lower=1> K; matrix[N, K] X; vector<lower=0>[N] t; array[N] int<lower=0, upper=1> died; }
parameters { real alpha; vector[K] beta; real<lower=0> shape; }
model {
  alpha ~ normal(0, 5);
  beta ~ normal(0, 2);
  shape ~ gamma(2, 1);
  vector[N] scale = exp(-(alpha + X * beta) / shape);
  for (n in 1 : N)
    target += died[n] ? weibull_lpdf(t[n] | shape, scale[n]) : weibull_lccdf(t[n] | shape, scale[n]);
}

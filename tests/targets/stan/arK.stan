// Autoregression of order K.
data {
  int<lower=1> K;
  int<lower=K + 1> T;
  vector[T] y;
}
parameters {
  real alpha;
  vector[K] beta;
  real<lower=0> sigma;
}
model {
  vector[T - K] mu = rep_vector(alpha, T - K);
  for (k in 1 : K) mu += beta[k] * y[(K + 1 - k) : (T - k)];
  alpha ~ normal(0, 10);
  beta ~ normal(0, 10);
  sigma ~ cauchy(0, 2.5);
  y[(K + 1) : T] ~ normal(mu, sigma);
}
generated quantities {
  vector[T - K] log_lik;
  for (t in (K + 1) : T) {
    real mu = alpha;
    for (k in 1 : K) mu += beta[k] * y[t - k];
    log_lik[t - K] = normal_lpdf(y[t] | mu, sigma);
  }
}

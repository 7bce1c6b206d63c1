// Zero-inflated Poisson regression.
data { int<lower=1> N; int<lower=1> K; matrix[N, K] X; array[N] int<lower=0> y; }
parameters { real alpha; vector[K] beta; real<lower=0, upper=1> zero; }
model {
  alpha ~ normal(0, 3);
  beta ~ normal(0, 2);
  zero ~ beta(1, 1);
  vector[N] eta = alpha + X * beta;
  for (n in 1 : N) {
    if (y[n] == 0) target += log_sum_exp(log(zero), log1m(zero) - exp(eta[n]));
    else target += log1m(zero) + poisson_log_lpmf(y[n] | eta[n]);
  }
}

// Logistic regression with many coefficients and a common scale of the prior, non-centred.
data { int<lower=1> N; int<lower=1> K; matrix[N, K] X; array[N] int<lower=0, upper=1> y; }
parameters { real alpha; real<lower=0> tau; vector[K] z; }
transformed parameters { vector[K] beta = tau * z; }
model {
  alpha ~ normal(0, 5);
  tau ~ normal(0, 1);
  z ~ std_normal();
  y ~ bernoulli_logit_glm(X, alpha, beta);
}

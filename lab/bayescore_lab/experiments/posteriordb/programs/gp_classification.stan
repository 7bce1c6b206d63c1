// Gaussian process classification with whitened latents.
data { int<lower=1> N; array[N] real x; array[N] int<lower=0, upper=1> y; }
parameters { real<lower=0> rho; real<lower=0> alpha; real mu; vector[N] eta; }
transformed parameters {
  vector[N] f = mu + cholesky_decompose(add_diag(gp_exp_quad_cov(x, alpha, rho), 1e-8)) * eta;
}
model {
  rho ~ inv_gamma(5, 5);
  alpha ~ normal(0, 2);
  mu ~ normal(0, 2);
  eta ~ std_normal();
  y ~ bernoulli_logit(f);
}

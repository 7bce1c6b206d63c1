// Linear regression with a regularised horseshoe, non-centred.
data { int<lower=1> N; int<lower=1> K; matrix[N, K] X; vector[N] y; }
parameters {
  real alpha; real<lower=0> sigma; vector[K] z;
  real<lower=0> tau; vector<lower=0>[K] lambda; real<lower=0> c2;
}
transformed parameters {
  vector[K] beta = tau * z .* sqrt(c2 * square(lambda) ./ (c2 + square(tau) * square(lambda)));
}
model {
  alpha ~ normal(0, 5);
  sigma ~ normal(0, 2);
  z ~ std_normal();
  tau ~ student_t(3, 0, 0.2);
  lambda ~ student_t(3, 0, 1);
  c2 ~ inv_gamma(2, 4);
  y ~ normal(alpha + X * beta, sigma);
}

// Linear regression with centred predictors and heavy-tailed priors.
data {
  int<lower=1> N;
  int<lower=2> K;
  matrix[N, K] X; // the first column is the constant
  vector[N] Y;
}
transformed data {
  matrix[N, K - 1] centred = X[, 2 : K];
  for (k in 1 : (K - 1)) centred[, k] -= mean(centred[, k]);
}
parameters {
  vector[K - 1] b;
  real Intercept;
  real<lower=0> sigma;
}
model {
  target += std_normal_lpdf(b);
  target += student_t_lpdf(Intercept | 3, 8, 10);
  target += student_t_lpdf(sigma | 3, 0, 10) - student_t_lccdf(0 | 3, 0, 10);
  target += normal_lpdf(Y | Intercept + centred * b, sigma);
}

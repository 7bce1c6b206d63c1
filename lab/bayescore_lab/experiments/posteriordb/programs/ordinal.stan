// Ordered logistic regression.
data { int<lower=1> N; int<lower=1> K; int<lower=2> C; matrix[N, K] X; array[N] int<lower=1, upper=C> y; }
parameters { vector[K] beta; ordered[C - 1] cut; }
model {
  beta ~ normal(0, 2);
  cut ~ normal(0, 5);
  y ~ ordered_logistic_glm(X, beta, cut);
}

// Multinomial logit, the first category as the base.
data { int<lower=1> N; int<lower=1> K; int<lower=2> C; matrix[N, K] X; array[N] int<lower=1, upper=C> y; }
parameters { matrix[K, C - 1] B; }
model {
  to_vector(B) ~ normal(0, 2);
  matrix[N, C] eta = append_col(rep_vector(0, N), X * B);
  for (n in 1 : N) y[n] ~ categorical_logit(eta[n]');
}

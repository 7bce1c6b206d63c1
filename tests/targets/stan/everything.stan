// One small program for many questions. `mood` switches what goes wrong: 0 nothing, 1 no prior on mu (improper),
// 2 the density is infinite everywhere, 3 draws with mu > 0 are rejected, 4 draws with mu > 0 have log density -inf.
data {
  int<lower=1> N;
  vector[N] y;
  int<lower=0, upper=4> mood;
}
parameters {
  real mu;
  real<lower=0> sigma;
  real<lower=-1, upper=2> share;
  real<upper=3> below;
  ordered[3] cuts;
  simplex[3] w;
  array[2] vector[3] a;
  matrix[2, 3] M;
}
transformed parameters {
  real precision = 1 / square(sigma);
}
model {
  if (mood != 1) mu ~ normal(0, 10);
  if (mood == 2) target += log(-1.0 - square(mu));
  if (mood == 3 && mu > 0) reject("mu must not be positive; it is ", mu);
  if (mood == 4 && mu > 0) target += negative_infinity();
  sigma ~ cauchy(0, 2.5);
  below ~ normal(0, 1);
  cuts ~ normal(0, 1);
  w ~ dirichlet([2, 3, 4]');
  for (i in 1 : 2) a[i] ~ normal(i, 1);
  to_vector(M) ~ normal(0, 1);
  if (mood != 1) y ~ normal(mu, sigma);
}
generated quantities {
  vector[N] log_lik;
  vector[N] y_rep;
  array[2, 2] int table;
  real twice = 2 * mu;
  for (n in 1 : N) {
    log_lik[n] = normal_lpdf(y[n] | mu, sigma);
    y_rep[n] = normal_rng(mu, sigma);
  }
  for (i in 1 : 2) for (j in 1 : 2) table[i, j] = 10 * i + j;
  if (mood == 3 && mu < -5) reject("no generated quantities below -5");
}

// Random walk observed with noise: the level of every time is a parameter, centred.
data { int<lower=1> T; vector[T] y; }
parameters { vector[T] level; real<lower=0> step; real<lower=0> sigma; }
model {
  level[1] ~ normal(0, 10);
  step ~ gamma(2, 2);
  sigma ~ normal(0, 2);
  level[2 : T] ~ normal(level[1 : T - 1], step);
  y ~ normal(level, sigma);
}

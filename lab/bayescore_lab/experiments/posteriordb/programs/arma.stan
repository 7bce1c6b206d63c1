// ARMA(1, 1).
data { int<lower=1> T; vector[T] y; }
parameters { real mu; real<lower=-1, upper=1> phi; real<lower=-1, upper=1> theta; real<lower=0> sigma; }
model {
  mu ~ normal(0, 10);
  phi ~ normal(0, 0.5);
  theta ~ normal(0, 0.5);
  sigma ~ normal(0, 2);
  real e = y[1] - mu;
  for (t in 2 : T) {
    real m = mu + phi * (y[t - 1] - mu) + theta * e;
    e = y[t] - m;
    y[t] ~ normal(m, sigma);
  }
}

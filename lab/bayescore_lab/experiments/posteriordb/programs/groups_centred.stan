// Means of groups with known standard errors, centred.
data { int<lower=1> J; vector[J] y; vector<lower=0>[J] s; }
parameters { real mu; real<lower=0> tau; vector[J] theta; }
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta ~ normal(mu, tau);
  y ~ normal(theta, s);
}

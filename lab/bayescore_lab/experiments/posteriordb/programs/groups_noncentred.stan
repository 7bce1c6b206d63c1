// Means of groups with known standard errors, non-centred.
data { int<lower=1> J; vector[J] y; vector<lower=0>[J] s; }
parameters { real mu; real<lower=0> tau; vector[J] eta; }
transformed parameters { vector[J] theta = mu + tau * eta; }
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  eta ~ std_normal();
  y ~ normal(theta, s);
}

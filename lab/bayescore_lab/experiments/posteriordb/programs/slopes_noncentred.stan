// Varying intercepts and slopes by county, independent, non-centred.
data {
  int<lower=1> N; int<lower=1> J;
  array[N] int<lower=1, upper=J> county; vector[N] floor_; vector[N] y;
}
parameters {
  vector[2] mu; vector<lower=0>[2] tau; real<lower=0> sigma;
  vector[J] eta_alpha; vector[J] eta_slope;
}
transformed parameters {
  vector[J] alpha = mu[1] + tau[1] * eta_alpha;
  vector[J] slope = mu[2] + tau[2] * eta_slope;
}
model {
  mu ~ normal(0, 5);
  tau ~ normal(0, 1);
  sigma ~ normal(0, 1);
  eta_alpha ~ std_normal();
  eta_slope ~ std_normal();
  y ~ normal(alpha[county] + slope[county] .* floor_, sigma);
}

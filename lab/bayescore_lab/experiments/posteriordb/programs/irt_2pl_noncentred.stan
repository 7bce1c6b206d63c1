// Two-parameter logistic item response with three population scales, non-centred.
data { int<lower=1> I; int<lower=1> J; array[I, J] int<lower=0, upper=1> y; }
parameters {
  real<lower=0> sigma_theta; vector[J] eta_theta;
  real<lower=0> sigma_a; vector[I] eta_a;
  real mu_b; real<lower=0> sigma_b; vector[I] eta_b;
}
transformed parameters {
  vector[J] theta = sigma_theta * eta_theta;
  vector[I] a = exp(sigma_a * eta_a);
  vector[I] b = mu_b + sigma_b * eta_b;
}
model {
  sigma_theta ~ cauchy(0, 2);
  sigma_a ~ cauchy(0, 2);
  mu_b ~ normal(0, 5);
  sigma_b ~ cauchy(0, 2);
  eta_theta ~ std_normal();
  eta_a ~ std_normal();
  eta_b ~ std_normal();
  for (i in 1 : I) y[i] ~ bernoulli_logit(a[i] * (theta - b[i]));
}

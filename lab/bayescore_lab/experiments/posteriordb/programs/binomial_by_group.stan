// Binomial counts with a beta population of probabilities.
data { int<lower=1> J; array[J] int<lower=0> n; array[J] int<lower=0> y; }
parameters { real<lower=0, upper=1> m; real<lower=0.1> k; vector<lower=0, upper=1>[J] p; }
model {
  m ~ beta(2, 2);
  k ~ pareto(0.1, 1.5);
  p ~ beta(m * k, (1 - m) * k);
  y ~ binomial(n, p);
}

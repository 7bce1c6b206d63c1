// Mixture of three normals with ordered means.
data { int<lower=1> N; vector[N] y; }
parameters { simplex[3] w; ordered[3] mu; vector<lower=0>[3] sigma; }
model {
  w ~ dirichlet(rep_vector(3, 3));
  mu ~ normal(0, 5);
  sigma ~ lognormal(0, 0.5);
  for (n in 1 : N) {
    vector[3] part = log(w);
    for (k in 1 : 3) part[k] += normal_lpdf(y[n] | mu[k], sigma[k]);
    target += log_sum_exp(part);
  }
}

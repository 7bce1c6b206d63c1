// Hidden Markov model with two normal states, states summed out.
data { int<lower=1> T; vector[T] y; }
parameters { array[2] simplex[2] A; ordered[2] mu; vector<lower=0>[2] sigma; }
model {
  A[1] ~ dirichlet([4, 1]');
  A[2] ~ dirichlet([1, 4]');
  mu ~ normal(0, 3);
  sigma ~ normal(0, 2);
  matrix[2, T] e;
  for (t in 1 : T) for (k in 1 : 2) e[k, t] = normal_lpdf(y[t] | mu[k], sigma[k]);
  matrix[2, 2] G = [A[1]', A[2]'];
  target += hmm_marginal(e, G, [0.5, 0.5]');
}

// Hidden Markov model of counts with three states, states summed out.
data { int<lower=1> T; array[T] int<lower=0> y; }
parameters { array[3] simplex[3] A; positive_ordered[3] rate; }
model {
  for (k in 1 : 3) {
    vector[3] a = rep_vector(1, 3);
    a[k] = 6;
    A[k] ~ dirichlet(a);
  }
  rate ~ gamma(2, 0.2);
  matrix[3, T] e;
  for (t in 1 : T) for (k in 1 : 3) e[k, t] = poisson_lpmf(y[t] | rate[k]);
  matrix[3, 3] G = [A[1]', A[2]', A[3]'];
  target += hmm_marginal(e, G, rep_vector(1.0 / 3, 3));
}

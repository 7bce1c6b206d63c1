// Lotka and Volterra's equations with log-normal errors.
functions {
  vector change(real t, vector z, vector p) {
    return [(p[1] - p[2] * z[2]) * z[1], (-p[3] + p[4] * z[1]) * z[2]]';
  }
}
data { int<lower=1> N; array[N] real t; array[N] vector<lower=0>[2] y; }
parameters { vector<lower=0>[4] p; vector<lower=0>[2] z0; vector<lower=0>[2] sigma; }
model {
  p[{1, 3}] ~ normal(1, 0.5);
  p[{2, 4}] ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  z0 ~ lognormal(log(10), 1);
  array[N] vector[2] z = ode_rk45(change, z0, 0, t, p);
  for (n in 1 : N) y[n] ~ lognormal(log(z[n]), sigma);
}

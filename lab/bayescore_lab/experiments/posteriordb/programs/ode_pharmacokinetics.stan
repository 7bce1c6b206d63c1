// One compartment, first-order absorption, Michaelis-Menten elimination, solved numerically.
functions {
  vector change(real t, vector y, real ka, real Vm, real Km, real dose) {
    return [ka * dose * exp(-ka * t) - Vm * y[1] / (Km + y[1])]';
  }
}
data { int<lower=1> N; array[N] real t; vector<lower=0>[N] c; real<lower=0> dose; }
parameters { real<lower=0> ka; real<lower=0> Vm; real<lower=0> Km; real<lower=0> sigma; }
model {
  ka ~ lognormal(0.5, 1);
  Vm ~ lognormal(0, 1);
  Km ~ lognormal(0, 1);
  sigma ~ normal(0, 1);
  array[N] vector[1] y = ode_bdf(change, rep_vector(0, 1), 0, t, ka, Vm, Km, dose);
  for (n in 1 : N) c[n] ~ lognormal(log(y[n][1] + 1e-9), sigma);
}

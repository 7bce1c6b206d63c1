// Rasch model, abilities of unit scale.
data { int<lower=1> I; int<lower=1> J; array[I, J] int<lower=0, upper=1> y; }
parameters { vector[J] theta; vector[I] b; }
model {
  theta ~ std_normal();
  b ~ normal(0, 3);
  for (i in 1 : I) y[i] ~ bernoulli_logit(theta - b[i]);
}

"""Bayesian networks: MNIST with few labels, and how large a network each method can take."""

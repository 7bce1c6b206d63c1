"""Posteriors over the weights of a network, their likelihoods and their predictions."""

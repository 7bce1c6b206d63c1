"""The synthetic experiments of the paper: Gaussian and Gaussian-mixture targets."""

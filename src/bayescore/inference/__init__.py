"""Fitting a family to a target: `fit`, `fit_many` and `resume`, the loop, the result and its file."""

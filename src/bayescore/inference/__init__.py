"""Fitting a family to a target: `fit`, its loop, its result and its file."""

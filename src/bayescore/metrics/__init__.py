"""Metrics: pure functions of tensors, targets and families."""

from __future__ import annotations

from bayescore.metrics.divergence import ELBO, ForwardKL, gaussian_kl, parameter_errors
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import pareto_khat, smoothed_log_weights

__all__ = [
    "ELBO",
    "Estimate",
    "ForwardKL",
    "gaussian_kl",
    "parameter_errors",
    "pareto_khat",
    "smoothed_log_weights",
]

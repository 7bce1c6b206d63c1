"""Metrics: pure functions of tensors, targets and families."""

from __future__ import annotations

from bayescore.metrics.calibration import all_class_ece, ece, ece_floor, mce, reliability
from bayescore.metrics.classes import brier, error, nll
from bayescore.metrics.detection import aurc, auroc, risk_coverage
from bayescore.metrics.divergence import ELBO, ForwardKL, gaussian_kl, parameter_errors
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.evaluation import evaluate
from bayescore.metrics.psis import pareto_khat, smoothed_log_weights
from bayescore.metrics.reference import Comparison, compare_draws, mean_errors, sd_errors, sliced_wasserstein

__all__ = [
    "ELBO",
    "Comparison",
    "Estimate",
    "ForwardKL",
    "all_class_ece",
    "aurc",
    "auroc",
    "brier",
    "compare_draws",
    "ece",
    "ece_floor",
    "error",
    "evaluate",
    "gaussian_kl",
    "mce",
    "mean_errors",
    "nll",
    "parameter_errors",
    "pareto_khat",
    "reliability",
    "risk_coverage",
    "sd_errors",
    "sliced_wasserstein",
    "smoothed_log_weights",
]

"""Metrics: pure functions of tensors, targets and families."""

from __future__ import annotations

from bayescore.metrics.calibration import all_class_ece, ece, ece_floor, mce, reliability
from bayescore.metrics.classes import brier, error, nll
from bayescore.metrics.detection import aurc, auroc, risk_coverage
from bayescore.metrics.divergence import ELBO, ForwardKL, gaussian_kl, parameter_errors
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.evaluation import evaluate
from bayescore.metrics.forecasts import (
    fit_noise,
    forecast_mae,
    forecast_mse,
    interval_scores,
    mixture_crps,
    mixture_nll,
)
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
    "fit_noise",
    "forecast_mae",
    "forecast_mse",
    "gaussian_kl",
    "interval_scores",
    "mce",
    "mean_errors",
    "mixture_crps",
    "mixture_nll",
    "nll",
    "parameter_errors",
    "pareto_khat",
    "reliability",
    "risk_coverage",
    "sd_errors",
    "sliced_wasserstein",
    "smoothed_log_weights",
]

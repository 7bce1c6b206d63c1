"""Pictures of fits and of classifiers' probabilities; they need matplotlib."""

from __future__ import annotations

from bayescore.plotting.calibration import draw_reliability, plot_reliability, plot_risk_coverage
from bayescore.plotting.fits import draw_family, draw_target, plot_fit
from bayescore.plotting.marginals import plot_marginals

__all__ = [
    "draw_family",
    "draw_reliability",
    "draw_target",
    "plot_fit",
    "plot_marginals",
    "plot_reliability",
    "plot_risk_coverage",
]

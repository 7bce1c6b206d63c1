"""Pictures of fits, of classifiers' probabilities and of forecasts; they need matplotlib.

Names are imported when they are first used, so that code that needs only the style does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayescore.plotting.calibration import draw_reliability, plot_reliability, plot_risk_coverage
    from bayescore.plotting.contact_sheet import plot_contact_sheet
    from bayescore.plotting.fits import draw_family, draw_target, plot_fit
    from bayescore.plotting.forecasts import draw_forecast, plot_forecast, plot_horizon_calibration
    from bayescore.plotting.marginals import plot_marginals
    from bayescore.plotting.training import plot_training
    from bayescore.plotting.values import plot_values

__all__ = [
    "draw_family",
    "draw_forecast",
    "draw_reliability",
    "draw_target",
    "plot_contact_sheet",
    "plot_fit",
    "plot_forecast",
    "plot_horizon_calibration",
    "plot_marginals",
    "plot_reliability",
    "plot_risk_coverage",
    "plot_training",
    "plot_values",
]

_HOMES = {
    "draw_family": "fits",
    "draw_forecast": "forecasts",
    "draw_reliability": "calibration",
    "draw_target": "fits",
    "plot_contact_sheet": "contact_sheet",
    "plot_fit": "fits",
    "plot_forecast": "forecasts",
    "plot_horizon_calibration": "forecasts",
    "plot_marginals": "marginals",
    "plot_reliability": "calibration",
    "plot_risk_coverage": "calibration",
    "plot_training": "training",
    "plot_values": "values",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"bayescore.plotting.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'bayescore.plotting' has no attribute {name!r}")

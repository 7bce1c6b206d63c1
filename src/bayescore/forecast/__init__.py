"""Forecasts with intervals: a Bayesian network for a user's series, its calibration and its backtests."""

from bayescore.forecast.backtesting import Backtest
from bayescore.forecast.calibration import CALIBRATIONS, Calibration
from bayescore.forecast.forecaster import Forecaster
from bayescore.forecast.prediction import Forecast

__all__ = ["CALIBRATIONS", "Backtest", "Calibration", "Forecast", "Forecaster"]

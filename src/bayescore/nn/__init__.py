"""Bayesian networks: posteriors over a module's weights, likelihoods, predictions."""

from __future__ import annotations

from bayescore.nn import likelihoods
from bayescore.nn.draws import DrawsPosterior
from bayescore.nn.gaussian import GaussianPosterior
from bayescore.nn.posterior import Posterior
from bayescore.nn.prediction import ClassPrediction, Prediction, ValuePrediction
from bayescore.nn.select import select
from bayescore.nn.training import NetworkFit, fit

__all__ = [
    "ClassPrediction",
    "DrawsPosterior",
    "GaussianPosterior",
    "NetworkFit",
    "Posterior",
    "Prediction",
    "ValuePrediction",
    "fit",
    "likelihoods",
    "select",
]

"""Bayesian networks: posteriors over a module's weights, likelihoods, predictions."""

from __future__ import annotations

from bayescore.nn import likelihoods
from bayescore.nn.checkpoint import load_state, save_state
from bayescore.nn.draws import DrawsPosterior
from bayescore.nn.dropout import DropoutPosterior, InsertedDropout
from bayescore.nn.ensemble import Ensemble
from bayescore.nn.epochs import NetworkFit
from bayescore.nn.gaussian import GaussianPosterior
from bayescore.nn.laplace import LaplacePosterior, laplace
from bayescore.nn.memory import MemoryEstimate, memory_estimate
from bayescore.nn.point import PointPosterior
from bayescore.nn.posterior import Posterior
from bayescore.nn.prediction import ClassPrediction, Prediction, ValuePrediction
from bayescore.nn.select import select
from bayescore.nn.swag import SWAG, SwagPosterior
from bayescore.nn.training import EnsembleFit, fit, fit_ensemble

__all__ = [
    "SWAG",
    "ClassPrediction",
    "DrawsPosterior",
    "DropoutPosterior",
    "Ensemble",
    "EnsembleFit",
    "GaussianPosterior",
    "InsertedDropout",
    "LaplacePosterior",
    "MemoryEstimate",
    "NetworkFit",
    "PointPosterior",
    "Posterior",
    "Prediction",
    "SwagPosterior",
    "ValuePrediction",
    "fit",
    "fit_ensemble",
    "laplace",
    "likelihoods",
    "load_state",
    "memory_estimate",
    "save_state",
    "select",
]

"""Bayesian networks: posteriors over a module's weights, likelihoods, predictions."""

from __future__ import annotations

from bayescore.nn.checkpoint import load_state, save_state
from bayescore.nn.loop import NetworkFit
from bayescore.nn.memory import MemoryEstimate, memory_estimate
from bayescore.nn.training import EnsembleFit, fit, fit_ensemble
from bayescore.posteriors import likelihoods
from bayescore.posteriors.draws import DrawsPosterior
from bayescore.posteriors.dropout import DropoutPosterior, InsertedDropout
from bayescore.posteriors.ensemble import Ensemble
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.laplace import LaplacePosterior, laplace
from bayescore.posteriors.point import PointPosterior
from bayescore.posteriors.posterior import Posterior
from bayescore.posteriors.prediction import ClassPrediction, Prediction, ValuePrediction
from bayescore.posteriors.selection import select
from bayescore.posteriors.swag import SWAG, SwagPosterior

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

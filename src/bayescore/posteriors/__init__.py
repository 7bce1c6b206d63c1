"""Posteriors over the weights of a network, their likelihoods and their predictions."""

from __future__ import annotations

from bayescore.posteriors import likelihoods
from bayescore.posteriors.acquisition import acquire
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.draws import DrawsPosterior
from bayescore.posteriors.dropout import DropoutPosterior, InsertedDropout
from bayescore.posteriors.ensemble import Ensemble
from bayescore.posteriors.family import FamilyPosterior
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.laplace import LaplacePosterior, fit_laplace
from bayescore.posteriors.moments import propagate
from bayescore.posteriors.point import PointPosterior
from bayescore.posteriors.prediction import ClassPrediction, Prediction, ValuePrediction
from bayescore.posteriors.predictor import Predictor
from bayescore.posteriors.pruning import pruned
from bayescore.posteriors.selection import select
from bayescore.posteriors.swag import SWAG, SwagPosterior
from bayescore.posteriors.weight_dropout import WeightDropoutPosterior

__all__ = [
    "SWAG",
    "ClassPrediction",
    "DrawsPosterior",
    "DropoutPosterior",
    "Ensemble",
    "FamilyPosterior",
    "GaussianPosterior",
    "InsertedDropout",
    "LaplacePosterior",
    "PointPosterior",
    "Posterior",
    "Prediction",
    "Predictor",
    "SwagPosterior",
    "ValuePrediction",
    "WeightDropoutPosterior",
    "acquire",
    "fit_laplace",
    "likelihoods",
    "propagate",
    "pruned",
    "select",
]

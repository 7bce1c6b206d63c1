"""Bayesian networks: training in one call, checkpoints and memory; posteriors, likelihoods, predictions."""

from __future__ import annotations

from bayescore.nn.callbacks import TensorBoard
from bayescore.nn.checkpoint import load_state, save_state
from bayescore.nn.history import TrainingHistory
from bayescore.nn.memory import MemoryEstimate, memory_estimate
from bayescore.nn.prior import combined
from bayescore.nn.training import EnsembleFit, NetworkFit, fit, fit_ensemble
from bayescore.posteriors import (
    SWAG,
    ClassPrediction,
    DrawsPosterior,
    DropoutPosterior,
    Ensemble,
    FamilyPosterior,
    GaussianPosterior,
    InsertedDropout,
    LaplacePosterior,
    PointPosterior,
    Posterior,
    Prediction,
    Predictor,
    SwagPosterior,
    ValuePrediction,
    WeightDropoutPosterior,
    acquire,
    fit_laplace,
    likelihoods,
    propagate,
    pruned,
    select,
)

__all__ = [
    "SWAG",
    "ClassPrediction",
    "DrawsPosterior",
    "DropoutPosterior",
    "Ensemble",
    "EnsembleFit",
    "FamilyPosterior",
    "GaussianPosterior",
    "InsertedDropout",
    "LaplacePosterior",
    "MemoryEstimate",
    "NetworkFit",
    "PointPosterior",
    "Posterior",
    "Prediction",
    "Predictor",
    "SwagPosterior",
    "TensorBoard",
    "TrainingHistory",
    "ValuePrediction",
    "WeightDropoutPosterior",
    "acquire",
    "combined",
    "fit",
    "fit_ensemble",
    "fit_laplace",
    "likelihoods",
    "load_state",
    "memory_estimate",
    "propagate",
    "pruned",
    "save_state",
    "select",
]

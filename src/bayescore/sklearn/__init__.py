"""Bayesian networks as scikit-learn estimators."""

from bayescore.sklearn.estimators import BayesianClassifier, BayesianRegressor

__all__ = ["BayesianClassifier", "BayesianRegressor"]

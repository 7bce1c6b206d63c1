"""Networks that the experiments need and no library has."""

from bayescore.models.perceptron import mlp

__all__ = ["mlp"]

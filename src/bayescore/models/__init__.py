"""Networks that the experiments need and no library has."""

from bayescore.models.mlp import mlp

__all__ = ["mlp"]

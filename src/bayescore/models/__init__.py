"""Networks that the experiments need and no library has."""

from bayescore.models.koopa import Koopa
from bayescore.models.perceptron import mlp

__all__ = ["Koopa", "mlp"]

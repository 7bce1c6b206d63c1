"""What every posterior over a network can do: predict, be saved, be loaded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from torch import Tensor, nn

from bayescore.checks import check_count
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.likelihoods import Likelihood

__all__ = ["Posterior", "check_request"]


class Posterior(ABC):
    """A random network. What the outputs mean is its `likelihood`."""

    #: name in saved files
    kind: ClassVar[str]
    likelihood: Likelihood

    @abstractmethod
    def predict(
        self,
        x: Any,
        samples: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """Predict from `samples` draws.

        Arguments:
            x: the module's inputs, with one first dimension: a tensor, a tuple or list of tensors for
                `module(*x)`, or a mapping of names to tensors for `module(**x)`. The module returns a tensor,
                or an object whose `.logits` are taken.
            samples: draws of the network.
            seed: of the draws; the same seed gives the same prediction, whatever the batch size.
            batch_size: rows per forward pass; by default 1,000, which bounds the memory of activations (for
                Laplace as many as 256 MB of Jacobians or covariances allow).
            recalibrate: batches (inputs, or tuples that begin with them) from which BatchNorm's statistics
                are estimated anew for every draw.

        Classes need memory that does not grow with `samples`; values keep the outputs of every draw, as
        quantiles need them.
        """

    @abstractmethod
    def sample_(self, seed: int = 0) -> AbstractContextManager[nn.Module]:
        """The module as one draw, for the length of the block."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to one safetensors file, whole or not at all."""
        from bayescore.posteriors.storage import save_posterior

        save_posterior(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        model: nn.Module | Sequence[nn.Module],
        likelihood: Callable[[Any, Any], Tensor] | None = None,
    ) -> Posterior:
        """Read a saved posterior into `model`, whose weights become the posterior's centre.

        Members of an ensemble may share one module; for members of different architectures give one each.
        `likelihood` is needed only where it was a callable, which a file cannot hold.
        """
        from bayescore.posteriors.storage import load_posterior

        return load_posterior(path, model, likelihood)


def check_request(x: Any, samples: int, batch_size: int | None) -> Inputs:
    """The inputs, after they and the counts have been checked."""
    check_count("samples", samples)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    return Inputs.of(x)

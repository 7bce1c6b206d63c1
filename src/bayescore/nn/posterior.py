"""The posterior over a module's weights: draw, predict, save.

Every posterior (Gaussian, a set of draws, ...) gives weights by number, `draw(seed, i)`, and shares the
rest: they are written into the module, the module is run in eval mode without gradients, and everything is
put back. What is not Bayesian (frozen weights, buffers such as BatchNorm's running statistics) is kept as it
was when the posterior was taken. BatchNorm's running statistics are those of training under drawn weights;
`recalibrate=` estimates them anew for every draw of the weights.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayescore.checks import check_count
from bayescore.nn.batchnorm import recalibrated
from bayescore.nn.likelihoods import Likelihood, likelihood
from bayescore.nn.prediction import ClassPrediction, Prediction, ValuePrediction, entropy

__all__ = ["Posterior"]

Weights = dict[str, Tensor]


class Posterior(ABC):
    """Weights of `model` as random variables.

    Arguments:
        model: the module; its own tensors are left as they are.
        names: the parameters that are random.
        likelihood: what the outputs mean: a name, a `Likelihood`, or a callable mean negative log-likelihood.
    """

    #: name in saved files
    kind: ClassVar[str]

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor],
    ) -> None:
        self.model = model
        self.names = list(names)
        self.likelihood = _likelihood(likelihood)
        own = dict(model.named_parameters())
        unknown = [name for name in self.names if name not in own]
        if unknown:
            raise ValueError(
                f"the model has no parameter {unknown[0]!r}; it has {', '.join(list(own)[:5])}, ..."
            )
        random = set(self.names)
        self.names = [name for name in own if name in random]  # in the model's order, which draws follow
        fixed = {**own, **dict(model.named_buffers())}
        self.fixed = {name: value.detach().clone() for name, value in fixed.items() if name not in random}

    # -- what a kind of posterior adds ----------------------------------------------------------------

    @abstractmethod
    def draw(self, seed: int, index: int) -> Weights:
        """Draw number `index` of the stream `seed`."""

    @abstractmethod
    def tensors(self) -> Weights:
        """Everything that is saved."""

    @classmethod
    @abstractmethod
    def rebuild(cls, model: nn.Module, tensors: Weights, likelihood: Likelihood) -> Posterior:
        """The posterior from saved tensors."""

    def centre(self) -> Weights:
        """The weights that stand for the posterior where one set is needed."""
        return self.draw(0, 0)

    # -- weights in the module ------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[dict[str, Tensor]]:
        """The module in eval mode with the kept fixed tensors; everything is put back."""
        live = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        before = {name: value.detach().clone() for name, value in live.items()}
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            _write(live, self.fixed)
            yield live
        finally:
            _write(live, before)
            for module, mode in modes:
                module.training = mode

    @contextmanager
    def sample_(self, seed: int = 0) -> Iterator[nn.Module]:
        """The module with one draw of the weights, for the length of the block."""
        with self._inside() as live:
            _write(live, self.draw(seed, 0))
            yield self.model

    @contextmanager
    def mean_(self) -> Iterator[nn.Module]:
        """The module with the centre of the posterior, for the length of the block."""
        with self._inside() as live:
            _write(live, self.centre())
            yield self.model

    # -- prediction ------------------------------------------------------------------------------------

    @torch.no_grad()
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
            x: the module's input, a tensor or a tuple of tensors with one first dimension.
            samples: draws of the weights.
            seed: of the draws; the same seed gives the same prediction, whatever the batch size.
            batch_size: rows per forward pass; all at once by default.
            recalibrate: batches (inputs, or tuples that begin with them) from which BatchNorm's statistics
                are estimated anew for every draw.

        Classes need memory that does not grow with `samples`; values keep the outputs of every draw, as
        quantiles need them.
        """
        check_count("samples", samples)
        if batch_size is not None:
            check_count("batch_size", batch_size)
        parts = tuple(x) if isinstance(x, tuple | list) else (x,)
        place = next(self.model.parameters()).device
        batches = None if recalibrate is None else list(recalibrate)
        classes = self.likelihood.kind != "values"
        binary = self.likelihood.kind == "binary"
        total: Tensor | None = None
        doubt: Tensor | None = None
        kept: list[Tensor] = []
        with self._inside() as live:
            for index in range(samples):
                _write(live, self.draw(seed, index))
                if batches is not None:
                    recalibrated(self.model, batches, place)
                outputs = self._forward(parts, place, batch_size)
                if not classes:
                    kept.append(outputs)
                    continue
                probs = self.likelihood.probs(outputs)
                h = entropy(probs, binary)
                total = probs if total is None else total.add_(probs)
                doubt = h if doubt is None else doubt.add_(h)
        result: Prediction
        if total is None or doubt is None:
            result = ValuePrediction(samples, torch.stack(kept), self.likelihood)
        else:
            result = ClassPrediction(samples, total / samples, doubt / samples, binary)
        return result

    def _forward(self, parts: tuple[Tensor, ...], place: torch.device, batch_size: int | None) -> Tensor:
        """Outputs in float32 or float64, chunk by chunk."""
        rows = len(parts[0])
        size = rows if batch_size is None else batch_size
        chunks = []
        for start in range(0, max(rows, 1), max(size, 1)):
            out = self.model(*(part[start : start + size].to(place) for part in parts))
            chunks.append(out if out.dtype == torch.float64 else out.float())
        return chunks[0] if len(chunks) == 1 else torch.cat(chunks)

    # -- file ------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to one safetensors file, whole or not at all."""
        from bayescore.nn.storage import save_posterior

        save_posterior(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str], model: nn.Module, likelihood: Callable[[Any, Any], Tensor] | None = None
    ) -> Posterior:
        """Read a saved posterior into `model`, whose weights become the posterior's centre.

        `likelihood` is needed only where it was a callable, which a file cannot hold.
        """
        from bayescore.nn.storage import load_posterior

        return load_posterior(path, model, likelihood)


def _likelihood(what: str | Likelihood | Callable[[Any, Any], Tensor]) -> Likelihood:
    return likelihood(what)


def _write(live: dict[str, Tensor], values: Weights) -> None:
    with torch.no_grad():
        for name, value in values.items():
            live[name].copy_(value)
    torch.clear_autocast_cache()  # it keeps copies of weights that have just changed

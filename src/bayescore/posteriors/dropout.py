"""Dropout as a posterior: units are dropped in prediction as in training (Gal & Ghahramani 2016).

A draw is one mask per module whose outputs are dropped, the same for every row of the input:
    z ~ Bernoulli(1 - p) for every unit (every channel for Dropout1d, 2d and 3d),   h <- h z / (1 - p)     (1)
so that a draw is a function of the input and does not depend on how rows are batched. The prediction for a
single row has the same distribution as with a separate mask per row. Dropout acts on the outputs of the
module's dropout layers and, if `p` is given, of its activation modules; inside attention and recurrent cells
it stays off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.posteriors.base import WeightPosterior, Weights
from bayescore.posteriors.forward import ACTIVATIONS, copy_into
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.wrappers import bare, eager
from bayescore.rng import generator

__all__ = ["DropoutPosterior", "InsertedDropout", "dropped_modules"]

UNITS = (nn.Dropout,)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class InsertedDropout:
    """Dropout with rate `p` after every activation module of `model`, on in train mode, until `remove()`.

    Only hooks are added to the module: names, weights and state dict do not change. A graph that was compiled
    before ignores hooks, so compiled modules run uncompiled until then.

    >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with InsertedDropout(model, 0.1):
    ...     _ = model(torch.randn(4, 2))
    """

    def __init__(self, model: nn.Module, p: float) -> None:
        self.p = check_rate(p)
        self._undo = ExitStack()
        for module, _ in dropped_modules(model, p, own=False):
            self._undo.callback(module.register_forward_hook(self._drop).remove)
        self._undo.enter_context(eager())

    def _drop(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:  # noqa: ARG002
        return F.dropout(output, self.p, module.training)

    def remove(self) -> None:
        """Remove the dropout."""
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class DropoutPosterior(WeightPosterior):
    """The current weights of `model`, with dropout left on.

    Arguments:
        p: rate of dropout after every activation module, in addition to the module's own dropout layers if it
            has any; train it inside `InsertedDropout(model, p)`, or by `fit` with method="dropout", p=p.
    """

    kind = "dropout"
    leading: ClassVar[dict[str, int]] = {"weights": 0}
    weights_only = False

    def __init__(
        self,
        model: nn.Module,
        p: float | None = None,
        *,
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    ) -> None:
        own = dict(model.named_parameters())
        super().__init__(model, own, likelihood)
        self.p = p
        self._dropped = dropped_modules(model, p)
        self.weights = {name: value.detach().clone() for name, value in own.items()}

    def draw(self, seed: int, index: int) -> Weights:  # noqa: ARG002
        """The weights, which are the same in every draw: only the masks are random."""
        return self.weights

    @contextmanager
    def _as_draw(self, own: dict[str, Tensor], seed: int, index: int) -> Iterator[None]:
        copy_into(own, self.weights)
        masks: dict[Any, Tensor] = {}
        calls: Counter[int] = Counter()

        def drop(number: int, p: float, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:  # noqa: ARG001
            calls[number] += 1  # a module that is used several times has a mask for each use
            shape = (1, *output.shape[1:])
            if isinstance(module, CHANNELS):
                shape = (*shape[:2], *[1] * (output.dim() - 2))
            key = (number, calls[number], shape)
            if key not in masks:
                rng = generator(seed, purpose=f"dropout {index} {number} {calls[number]}")
                kept = torch.rand(shape, generator=rng) >= p
                masks[key] = (kept / (1 - p)).to(output)
            return output * masks[key]  # (1)

        with ExitStack() as stack:
            stack.enter_context(eager())
            first = bare(self.model).register_forward_pre_hook(lambda *_: calls.clear())
            stack.callback(first.remove)
            for number, (module, p) in enumerate(self._dropped):
                hook = module.register_forward_hook(
                    lambda m, i, o, number=number, p=p: drop(number, p, m, i, o)
                )
                stack.callback(hook.remove)
            yield

    def tensors(self) -> Weights:
        return {f"weights.{name}": value for name, value in self.weights.items()}

    def config(self) -> dict[str, Any]:
        return {"p": self.p}

    @classmethod
    def rebuild(
        cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood, p: float | None = None
    ) -> DropoutPosterior:
        posterior = cls(model, p, likelihood=likelihood)
        posterior.weights = parts["weights"]
        return posterior


def dropped_modules(model: nn.Module, p: float | None, own: bool = True) -> list[tuple[nn.Module, float]]:
    """The modules whose outputs are dropped, with their rates.

    Arguments:
        p: the rate after every activation module, None for no dropout there.
        own: include the module's own dropout layers.
    """
    layers = [(m, m.p) for m in model.modules() if isinstance(m, UNITS + CHANNELS) and m.p > 0]
    found: list[tuple[nn.Module, float]] = [*layers] if own else []
    if p is not None:
        rate = check_rate(p)
        active = [(m, rate) for m in model.modules() if isinstance(m, ACTIVATIONS)]
        if not active:
            advice = "use nn.ReLU() and its like instead of functions, or put nn.Dropout layers into it"
            if layers:
                advice = "leave p= out: its own dropout layers are on, at their own rates"
            raise ValueError(
                f"the module has no activation module after which dropout could be inserted; {advice}"
            )
        found += active
    if not found:
        raise ValueError(
            "the module has no dropout layer with a positive rate; pass p=, the rate of dropout to be "
            "inserted after every activation, or put nn.Dropout layers into it"
        )
    return found


def check_rate(p: float) -> float:
    """The rate; raises unless it lies strictly between 0 and 1."""
    if isinstance(p, bool) or not isinstance(p, int | float):
        raise TypeError(f"p must be a number between 0 and 1; got {p!r}")
    if not 0 < p < 1:
        raise ValueError(f"p must lie strictly between 0 and 1; got {p}")
    return float(p)

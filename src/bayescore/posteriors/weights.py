"""A posterior over a module's weights: draws are written into the module, it is run, all is put back.

Every kind (a Gaussian, a set of draws, ...) gives weights by number, `draw(seed, i)`, and shares the rest:
the module runs in eval mode without gradients. What is not random (frozen weights, buffers such as
BatchNorm's running statistics) is kept as it was when the posterior was taken. BatchNorm's running statistics
are those of training under drawn weights; `recalibrate=` estimates them anew for every draw.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayescore.posteriors.batched import GROUP, batchable, batched
from bayescore.posteriors.batchnorm import recalibrated
from bayescore.posteriors.head import Passes, last_layer
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.likelihoods import Likelihood, frozen
from bayescore.posteriors.likelihoods import likelihood as as_likelihood
from bayescore.posteriors.posterior import Posterior, check_request
from bayescore.posteriors.prediction import collected
from bayescore.posteriors.wrappers import single

__all__ = ["WeightPosterior", "Weights", "put_back_on_failure", "write"]

Weights = dict[str, Tensor]


class WeightPosterior(Posterior):
    """Weights of `model` as random variables.

    Arguments:
        model: the module; its own tensors are left as they are.
        names: the parameters that are random.
        likelihood: what the outputs mean: a name, a `Likelihood`, or a callable mean negative log-likelihood.
            What it has learned is copied.
    """

    #: the saved tensors of a parameter, and how many dimensions each has in front of the parameter's own
    leading: ClassVar[dict[str, int]]
    #: every draw is the same: one is enough
    deterministic: ClassVar[bool] = False
    #: a draw is nothing but weights
    weights_only: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor],
    ) -> None:
        self.model = model
        self.likelihood = frozen(as_likelihood(likelihood))
        own = dict(model.named_parameters())
        random = set(names)
        unknown = random - set(own)
        if unknown:
            raise ValueError(
                f"the model has no parameter {min(unknown)!r}; it has {', '.join(list(own)[:5])}, ..."
            )
        self.names = [name for name in own if name in random]  # in the model's order, which draws follow
        fixed = {**own, **dict(model.named_buffers())}
        self.fixed = {name: value.detach().clone() for name, value in fixed.items() if name not in random}

    # -- what a kind of posterior adds ----------------------------------------------------------------

    @abstractmethod
    def draw(self, seed: int, index: int) -> Weights:
        """Draw number `index` of the stream `seed`."""

    @abstractmethod
    def tensors(self) -> Weights:
        """Everything that is saved, as "what.name of the parameter", what being a key of `leading`."""

    @classmethod
    @abstractmethod
    def rebuild(cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood) -> Self:
        """The posterior from saved tensors, sorted by what they are."""

    def config(self) -> dict[str, Any]:
        """Further arguments of `rebuild`, as JSON types."""
        return {}

    def centre(self) -> Weights:
        """The weights that stand for the posterior where one set is needed."""
        return self.draw(0, 0)

    def transform(self, outputs: Tensor) -> Tensor:
        """The module's outputs as the likelihood shall see them."""
        return outputs

    # -- weights in the module ------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[dict[str, Tensor]]:
        """The module in eval mode with the kept fixed tensors; everything is put back."""
        live = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        before = {name: value.detach().clone() for name, value in live.items()}
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            write(live, self.fixed)
            yield live
        finally:
            write(live, before)
            for module, mode in modes:
                module.training = mode

    @contextmanager
    def _drawn(self, live: dict[str, Tensor], seed: int, index: int) -> Iterator[None]:
        """Draw number `index`, inside the module for the length of the block."""
        write(live, self.draw(seed, index))
        yield

    @contextmanager
    def sample_(self, seed: int = 0) -> Iterator[nn.Module]:
        """The module as one draw, for the length of the block."""
        with self._inside() as live, self._drawn(live, seed, 0):
            yield self.model

    def settle(self) -> None:
        """Leave the module with the centre of the posterior and what was kept beside it."""
        live = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        write(live, {**self.fixed, **self.centre()})

    @contextmanager
    def mean_(self) -> Iterator[nn.Module]:
        """The module with the centre of the posterior, for the length of the block."""
        with self._inside() as live:
            write(live, self.centre())
            yield self.model

    # -- prediction ------------------------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        samples: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`."""
        inputs = check_request(x, samples, batch_size)
        batches = None if recalibrate is None else list(recalibrate)
        count = 1 if self.deterministic else samples
        with closing(self.outputs(inputs, count, seed, batch_size, batches)) as draws:
            return collected(draws, self.likelihood)

    @torch.no_grad()
    def outputs(
        self,
        inputs: Inputs,
        samples: int,
        seed: int = 0,
        batch_size: int | None = None,
        batches: list[Any] | None = None,
    ) -> Generator[Tensor, None, None]:
        """The outputs (n, ...) of one draw after the other, in float32 or float64."""
        chunks = inputs.chunks(batch_size)
        same = samples > 1 and batches is None and self.weights_only  # but for the weights, from draw to draw
        together = same and batchable(self.model, len(chunks[0]))
        layer = last_layer(self.model, self.names) if same else None
        passes = Passes(single(self.model), chunks, layer)
        with self._inside() as live:
            for first in range(0, samples, GROUP if together else 1):
                if together:
                    draws = [self.draw(seed, i) for i in range(first, min(first + GROUP, samples))]
                    done = [batched(self.model, draws, passes.moved(chunk)) for chunk in chunks]
                    yield from (self.transform(out) for out in _joined(done, 1))
                    continue
                with self._drawn(live, seed, first):
                    if batches is not None:
                        recalibrated(passes.model, batches, passes.place)
                    yield self.transform(_joined(passes(), 0))


def _joined(chunks: list[Tensor], dim: int) -> Tensor:
    """In float32 or float64."""
    out = chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim)
    return out if out.dtype == torch.float64 else out.float()


def write(live: dict[str, Tensor], values: Weights) -> None:
    """Copy values into the module's own tensors."""
    with torch.no_grad():
        for name, value in values.items():
            live[name].copy_(value)
    torch.clear_autocast_cache()  # it keeps copies of weights that have just changed


@contextmanager
def put_back_on_failure(*modules: nn.Module) -> Iterator[None]:
    """Give modules their own numbers back if the block fails."""
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    before = [tensor.detach().clone() for tensor in own]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in zip(own, before, strict=True):
                tensor.copy_(value)
        raise

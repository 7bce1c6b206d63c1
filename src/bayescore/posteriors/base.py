"""What every posterior over a network's weights can do: predict, give single draws, be saved and loaded.

`Posterior` is the interface. Most kinds (a Gaussian, a set of draws, ...) are a `WeightPosterior`: they
define draw number i of the weights, `draw(seed, i)`, and share the rest. A draw is copied into the module's
own tensors, the module is run in eval mode without gradients, and its tensors are restored. Tensors that are
not random (frozen weights, buffers such as BatchNorm's running statistics) keep the values that they had when
the posterior was made. BatchNorm's running statistics are those of training under drawn weights;
`recalibrate=` estimates them again for every draw.

A sharded network (posteriors/shards.py) is never gathered, except by `save`: every process draws its own
parts. All processes have to predict together, with as many rows on each.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from bayescore.checks import check_count
from bayescore.posteriors.forward import (
    DRAWS_AT_ONCE,
    CachedForward,
    batched_outputs,
    can_batch,
    copy_into,
    own_tensors,
    random_layer,
    recalibrate_batchnorm,
)
from bayescore.posteriors.inputs import Inputs, as_inputs
from bayescore.posteriors.likelihoods import Likelihood, as_likelihood, frozen
from bayescore.posteriors.prediction import prediction_from_outputs
from bayescore.posteriors.shards import gathered, is_sharded, part_like, reshard, sharded_like
from bayescore.posteriors.storage import PosteriorFile, likelihood_header
from bayescore.posteriors.wrappers import matched, without_parallel
from bayescore.rng import generator

__all__ = [
    "Posterior",
    "WeightPosterior",
    "Weights",
    "check_request",
    "draw_generator",
    "instead",
    "restored_on_failure",
    "unpack_posterior",
]

Weights = dict[str, Tensor]

#: every kind of posterior, by its name in files
KINDS: dict[str, type[Posterior]] = {}


class Posterior(ABC):
    """A random network; its `likelihood` says what the outputs mean."""

    #: name in saved files
    kind: ClassVar[str]
    likelihood: Likelihood

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "kind" in vars(cls):
            KINDS.setdefault(cls.kind, cls)

    @abstractmethod
    def predict(
        self,
        x: Any,
        draws: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """Predict from `draws` draws of the network.

        Arguments:
            x: the module's inputs, all with the same number of rows: a tensor, a tuple or list of tensors for
                `module(*x)`, or a mapping of names to tensors for `module(**x)`; arrays serve as tensors do,
                and so do a list of rows of numbers, a frame of numbers, a Dataset and a DataLoader (of pairs
                the first halves). The module returns a tensor, or an object or mapping with logits.
            draws: the number of draws.
            seed: of the draws; the same seed gives the same prediction, whatever the batch size.
            batch_size: rows per forward pass; by default 1,000, which limits the memory of activations (for
                Laplace, as many as fit in 256 MB of Jacobians or covariances).
            recalibrate: batches (inputs, or tuples that begin with them) from which BatchNorm's statistics
                are estimated again for every draw.

        The memory of class predictions does not grow with `draws`; value predictions keep the outputs of
        every draw, because quantiles need them.
        """

    @abstractmethod
    def sample_(self, seed: int = 0) -> AbstractContextManager[nn.Module]:
        """The module as one draw, for the length of the block."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to one safetensors file, atomically.

        If it is sharded, all processes call this, and the first one gathers and writes.
        """
        header, tensors = self.pack()
        found = gathered(tensors)
        if found is not None:
            PosteriorFile(Path(path), header, found).write()
        if any(map(is_sharded, tensors.values())):
            torch.distributed.barrier()  # the file is there when any process continues

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        model: nn.Module | Sequence[nn.Module] | None = None,
        likelihood: Callable[[Any, Any], Tensor] | None = None,
    ) -> Posterior:
        """Read a saved posterior into `model`, whose weights become the posterior's centre.

        Members of an ensemble may share one module; if their architectures differ, give one module each.
        `likelihood` is needed only if it was a callable, which a file cannot hold.
        """
        if model is None:
            raise TypeError(
                "a file holds weights and no network: make the module and pass it, "
                f"load({str(path)!r}, model)"
            )
        file = PosteriorFile.read(Path(path))
        with restored_on_failure(*([model] if isinstance(model, nn.Module) else model)):
            try:
                return unpack_posterior(file, model, likelihood)
            except RecursionError:  # ensembles of ensembles
                with file.refusing_damage():
                    raise

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Header and tensors of the file, as `storage` describes them."""
        raise TypeError(f"a {type(self).__name__} cannot be saved")

    @classmethod
    def unpack(cls, file: PosteriorFile, model: Any, likelihood: Any) -> Posterior:  # noqa: ARG003
        """The posterior from what `pack` returned, in `model`, whose weights become its centre."""
        raise TypeError(f"a {cls.__name__} cannot be loaded")


def unpack_posterior(file: PosteriorFile, model: Any, likelihood: Any) -> Posterior:
    """The posterior in a file, of the kind that its header names."""
    with file.refusing_damage():
        kind = KINDS[file.header["kind"]]
    return kind.unpack(file, model, likelihood)


def instead(value: Any) -> str:
    """What arrived where a posterior is needed, for an error, and where its posterior is."""
    remedy = ": pass its posterior" if hasattr(value, "posterior") else ""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}{remedy}"


def check_request(x: Any, draws: int, batch_size: int | None, model: nn.Module | None = None) -> Inputs:
    """The inputs of a prediction; raises unless they and the counts are valid."""
    check_count("draws", draws)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    return as_inputs(x, model)


class WeightPosterior(Posterior):
    """Weights of `model` as random variables.

    Arguments:
        model: the module; its own tensors are not changed.
        names: the parameters that are random.
        likelihood: what the outputs mean: a name, a `Likelihood`, or a callable mean negative log-likelihood.
            Its learned parameters are copied.
    """

    #: the kinds of tensor saved per parameter, and how many dimensions each has before the parameter's own
    leading: ClassVar[dict[str, int]]
    #: whether all draws are the same, so that one is enough
    deterministic: ClassVar[bool] = False
    #: whether a draw consists of weights only
    weights_only: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        names: Iterable[str],
        likelihood: str | Likelihood | Callable[[Any, Any], Tensor],
    ) -> None:
        self.model = model
        self.likelihood = frozen(as_likelihood(likelihood))
        parameters = dict(model.named_parameters())
        random = set(names)
        unknown = random - set(parameters)
        if unknown:
            raise ValueError(
                f"the model has no parameter {min(unknown)!r}; it has {', '.join(list(parameters)[:5])}, ..."
            )
        self.names = [name for name in parameters if name in random]  # in the model's order, as in a draw
        self.fixed = {
            name: value.detach().clone() for name, value in own_tensors(model).items() if name not in random
        }

    def __repr__(self) -> str:
        parameters = dict(self.model.named_parameters())
        count = sum(parameters[name].numel() for name in self.names)
        what = f"{count:,} weights of a {type(self.model).__name__}"
        return f"<{type(self).__name__} of {what}, likelihood {self.likelihood.name!r}>"

    # -- what a kind of posterior adds -----------------------------------------------------------------

    @abstractmethod
    def draw(self, seed: int, index: int) -> Weights:
        """Draw number `index` of the random stream `seed`."""

    @abstractmethod
    def tensors(self) -> Weights:
        """Everything that is saved, by names "<kind>.<parameter>", where <kind> is a key of `leading`."""

    @classmethod
    @abstractmethod
    def rebuild(cls, model: nn.Module, parts: dict[str, Weights], likelihood: Likelihood) -> Self:
        """The posterior from saved tensors, by kind (a key of `leading`) and parameter."""

    def config(self) -> dict[str, Any]:
        """Further arguments of `rebuild`, as JSON types."""
        return {}

    def centre(self) -> Weights:
        """The weights that represent the posterior when a single set is needed."""
        return self.draw(0, 0)

    def transform(self, outputs: Tensor) -> Tensor:
        """The module's outputs as the likelihood takes them."""
        return outputs

    # -- draws in the module ---------------------------------------------------------------------------

    @contextmanager
    def _in_eval_mode(self) -> Iterator[dict[str, Tensor]]:
        """The module's own tensors, in eval mode and with the fixed ones set; all is restored afterwards."""
        own = own_tensors(self.model)
        before = {name: value.detach().clone() for name, value in own.items()}
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            self._write(own, self.fixed)
            yield own
        finally:
            self._write(own, before)
            for module, mode in modes:
                module.training = mode

    def _write(self, own: dict[str, Tensor], values: Weights) -> None:
        """Copy values into the module's own tensors; a sharded module gathers them when it runs next."""
        reshard(self.model)
        copy_into(own, values)

    @contextmanager
    def _as_draw(self, own: dict[str, Tensor], seed: int, index: int) -> Iterator[None]:
        """The module as draw number `index`, for the length of the block."""
        self._write(own, self.draw(seed, index))
        yield

    @contextmanager
    def sample_(self, seed: int = 0) -> Iterator[nn.Module]:
        """The module as one draw, for the length of the block."""
        with self._in_eval_mode() as own, self._as_draw(own, seed, 0):
            yield self.model

    @contextmanager
    def mean_(self) -> Iterator[nn.Module]:
        """The module with the centre of the posterior, for the length of the block."""
        with self._in_eval_mode() as own:
            self._write(own, self.centre())
            yield self.model

    def write_centre(self) -> None:
        """Write the centre of the posterior and the fixed tensors into the module, permanently."""
        copy_into(own_tensors(self.model), {**self.fixed, **self.centre()})

    # -- prediction ------------------------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        draws: int = 30,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        recalibrate: Iterable[Any] | None = None,
    ) -> Any:
        """As `Posterior.predict`."""
        inputs = check_request(x, draws, batch_size, self.model)
        batches = None if recalibrate is None else list(recalibrate)
        count = 1 if self.deterministic else draws
        with closing(self.outputs(inputs, count, seed, batch_size, batches)) as outputs:
            return prediction_from_outputs(outputs, self.likelihood)

    @torch.no_grad()
    def outputs(
        self,
        inputs: Inputs,
        draws: int,
        seed: int = 0,
        batch_size: int | None = None,
        batches: list[Any] | None = None,
    ) -> Generator[Tensor, None, None]:
        """Yield the outputs (n, ...) of one draw after the other, in float32 or float64."""
        chunks = inputs.chunks(batch_size)
        whole = not any(map(is_sharded, self.model.parameters()))
        only_weights_change = draws > 1 and batches is None and self.weights_only and whole
        together = only_weights_change and can_batch(self.model, len(chunks[0]))
        layer = random_layer(self.model, self.names) if only_weights_change else None
        forward = CachedForward(without_parallel(self.model), chunks, layer)
        with self._in_eval_mode() as own:
            for first in range(0, draws, DRAWS_AT_ONCE if together else 1):
                if together:
                    group = [self.draw(seed, i) for i in range(first, min(first + DRAWS_AT_ONCE, draws))]
                    rows = [batched_outputs(self.model, group, forward.on_device(c)) for c in chunks]
                    yield from (self.transform(out) for out in _join(rows, 1))
                    continue
                with self._as_draw(own, seed, first):
                    if batches is not None:
                        recalibrate_batchnorm(forward.model, batches, forward.device)
                    yield self.transform(_join(forward(), 0))

    # -- file ------------------------------------------------------------------------------------------

    def pack(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        header = {
            "kind": self.kind,
            "config": self.config(),
            "likelihood": likelihood_header(self.likelihood),
            "shapes": {name: list(value.shape) for name, value in own_tensors(self.model).items()},
        }
        tensors = {f"random.{name}": value for name, value in self.tensors().items()}
        tensors |= {f"fixed.{name}": value for name, value in self.fixed.items()}
        tensors |= {f"likelihood.{name}": value for name, value in self.likelihood.state_dict().items()}
        return header, tensors

    @classmethod
    def unpack(cls, file: PosteriorFile, model: Any, likelihood: Any) -> Self:
        with file.refusing_damage():
            config = dict(file.header["config"])
            shapes = {name: tuple(shape) for name, shape in file.header["shapes"].items()}
            like = file.likelihood(likelihood)
        own = own_tensors(model)
        here = matched(shapes, own)  # the saved module and this one may be wrapped differently
        shapes = {here[name]: shape for name, shape in shapes.items()}
        file.check_model(shapes, own)
        device = next(model.parameters()).device
        fixed = {here.get(name, name): value for name, value in file.tensors_under("fixed").items()}
        random: dict[str, Weights] = {}
        for key, value in file.tensors_under("random").items():
            what, _, name = key.partition(".")
            known = here.get(name, name) if what in cls.leading else name
            random.setdefault(what, {})[known] = value.to(device)
        file.check_tensors(shapes, random, fixed, cls.leading)
        copy_into(own, fixed)
        for what, rows in random.items():
            for name in (name for name in rows if name in own and is_sharded(own[name])):
                part = part_like(rows[name], own[name], cls.leading[what]).clone()
                rows[name] = sharded_like(part, own[name], cls.leading[what])
        with file.refusing_damage():
            posterior = cls.rebuild(model, random, like.to(device), **config)
            file.check_all_used(*posterior.pack())
        copy_into(own, posterior.centre())
        return posterior


def draw_generator(seed: int, index: int, device: torch.device) -> torch.Generator:
    """The random stream of draw number `index`, which does not depend on the number of draws."""
    return generator((seed * 1_000_003 + index) % 2**63, device)


def _join(chunks: list[Tensor], dim: int) -> Tensor:
    """The outputs of all rows, in float32 or float64."""
    out = chunks[0] if len(chunks) == 1 else torch.cat(chunks, dim)
    return out if out.dtype == torch.float64 else out.float()


@contextmanager
def restored_on_failure(*modules: nn.Module) -> Iterator[None]:
    """Restore the modules' tensors to their current values if the block raises."""
    own = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    before = [tensor.detach().clone() for tensor in own]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in zip(own, before, strict=True):
                tensor.copy_(value)
        raise

"""The file of a posterior: safetensors with a JSON header that says what the tensors are; nothing is pickled.

    header   format, kind, config of the kind, likelihood, shapes of the module's tensors
    tensors  random.<kind>.<parameter>   the parameters of the distribution, such as mean and sd
             fixed.<tensor>              the module's tensors that are not random
             likelihood.<tensor>         the learned parameters of the likelihood
An ensemble's header lists those of its members; the names of member i's tensors begin with "<i>.".
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bayescore.io import read_tensors, refusing_damage, write_tensors
from bayescore.posteriors.likelihoods import KINDS, Function, Likelihood, as_likelihood, frozen

__all__ = ["PosteriorFile", "likelihood_header"]

FORMAT = "bayescore-network-1"
CHECKPOINT = "'bayescore-run-1'"  # the format of nn/checkpoint.py

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PosteriorFile:
    """The content of a file, or of the part of it that is one member of an ensemble."""

    path: Path
    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, path: Path) -> PosteriorFile:
        if not path.is_file():
            raise FileNotFoundError(f"there is no saved posterior at {path}")
        try:
            with cls(path, {}, {}).refusing_damage():
                return cls(path, *read_tensors(path, FORMAT))
        except ValueError as error:
            if CHECKPOINT not in str(error):
                raise
            raise ValueError(
                f"{path} is the checkpoint of a run, not a posterior: continue the run with "
                "fit(..., checkpoint=), and save the posterior that it returns"
            ) from error

    def write(self) -> None:
        """Write the file atomically."""
        write_tensors(self.path, {"format": FORMAT, **self.header}, self.tensors)

    def refusing_damage(self) -> AbstractContextManager[None]:
        """What the block raises becomes one sentence: this is no readable posterior."""
        return refusing_damage(self.path, "bayescore posterior")

    def tensors_under(self, prefix: str) -> dict[str, Tensor]:
        """The tensors whose names begin with `prefix` and a dot, under the rest of their names."""
        dotted = f"{prefix}."
        return {name.removeprefix(dotted): t for name, t in self.tensors.items() if name.startswith(dotted)}

    def likelihood(self, given: Any) -> Likelihood:
        """The likelihood; `given` is the user's callable, which a file cannot hold."""
        config = dict(self.header["likelihood"])
        name = config.pop("name")
        if name == Function.name:
            if given is None:
                raise ValueError("its likelihood is your own, which a file cannot hold; pass likelihood=")
            like = frozen(as_likelihood(given))
        else:
            like = KINDS[name](**config)
        like.load_state_dict(self.tensors_under("likelihood"))
        return like

    def check_model(self, shapes: dict[str, Shape], own: dict[str, Tensor]) -> None:
        """Raise unless the module has tensors of the names and shapes in the header."""
        for name in [*shapes, *own]:
            there, here = shapes.get(name), tuple(own[name].shape) if name in own else None
            if there != here:
                raise ValueError(
                    f"{self.path} holds the posterior of another model: {name} is {_or_missing(there)} there "
                    f"and {_or_missing(here)} here"
                )

    def check_tensors(
        self,
        shapes: dict[str, Shape],
        random: dict[str, dict[str, Tensor]],
        fixed: dict[str, Tensor],
        leading: dict[str, int],
    ) -> None:
        """Raise unless the tensors have the names and shapes of the header, and possible values.

        Arguments:
            random: the tensors of random parameters, by kind and parameter.
            leading: for each kind, how many dimensions come before those of the parameter.
        """
        for what, lead in leading.items():
            rows = random.get(what, {})
            found = {name: tuple(value.shape[lead:]) for name, value in rows.items()}
            found |= {name: tuple(value.shape) for name, value in fixed.items()}
            bad = [name for name in [*shapes, *found] if shapes.get(name) != found.get(name)]
            bad += [name for name, value in rows.items() if not _possible(what, value)]
            if bad:
                raise ValueError(
                    f"{self.path} is damaged: its tensor {bad[0]} does not fit what its header says"
                )

    def check_all_used(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Raise if the file holds more than the posterior that was made of it would write."""
        found = {key: value for key, value in self.header.items() if key not in ("format", "shapes")}
        if found != {key: value for key, value in header.items() if key != "shapes"}:
            raise ValueError("its header is not that of a posterior of its kind")
        if len(self.tensors) != len(tensors):
            raise ValueError("it holds tensors that a posterior of its kind does not have")


def likelihood_header(like: Likelihood) -> dict[str, Any]:
    """Name and options of a likelihood; for a callable or a user's class, only the name "function"."""
    known = KINDS.get(like.name) is type(like)
    return {"name": like.name, **like.config()} if known else {"name": Function.name}


def _or_missing(shape: Shape | None) -> str:
    return "missing" if shape is None else str(shape)


def _possible(what: str, value: Tensor) -> bool:
    """Whether a posterior can have these values: finite numbers, and no negative widths."""
    if not value.is_floating_point() or not bool(value.isfinite().all()):
        return False
    return what not in ("sd", "var") or bool((value >= 0).all())

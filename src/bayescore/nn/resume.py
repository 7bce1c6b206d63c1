"""The state of a run between two epochs: taken, put into a file, and put back."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.nn.bare import matched
from bayescore.nn.checkpoint import read_state, write_state
from bayescore.nn.likelihoods import Likelihood
from bayescore.nn.recipes import Recipe
from bayescore.nn.storage import packed, unpacked
from bayescore.nn.weights import WeightPosterior, write

__all__ = ["Parts", "Record", "restore", "store"]


@dataclass
class Record:
    """What a run has found so far."""

    history: list[dict[str, float]] = field(default_factory=list)
    best: WeightPosterior | None = None
    best_nll: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0

    @property
    def epoch(self) -> int:
        """The last finished epoch."""
        return len(self.history)


@dataclass(frozen=True)
class Parts:
    """Everything of a run that changes with time, and what tells it from others."""

    about: dict[str, Any]
    model: nn.Module
    like: Likelihood
    recipe: Recipe
    rest: torch.optim.Optimizer | None
    schedule: torch.optim.lr_scheduler.LRScheduler
    loader: Any
    validation: Any

    @property
    def live(self) -> dict[str, Tensor]:
        """The module's own tensors, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @property
    def shuffles(self) -> dict[str, torch.Generator]:
        """The generators of the loaders that have one of their own."""
        pairs = {"loader": self.loader, "validation": self.validation}
        found = {name: getattr(loader, "generator", None) for name, loader in pairs.items()}
        return {name: rng for name, rng in found.items() if isinstance(rng, torch.Generator)}


def store(path: Path, parts: Parts, record: Record) -> None:
    """Write the run as it stands after an epoch."""
    shapes = {name: list(value.shape) for name, value in parts.live.items()}
    write_state(
        path,
        {
            "about": {**parts.about, "shapes": shapes},
            "history": record.history,
            "seconds": record.seconds,
            "best": [record.best_nll, record.best_epoch, record.best and packed(record.best)],
            "model": parts.live,
            "likelihood": parts.like.state_dict(),
            "optimizer": parts.recipe.optimizer.state_dict(),
            "schedule": parts.schedule.state_dict(),
            "rest": None if parts.rest is None else parts.rest.state_dict(),
            "collector": None if parts.recipe.collector is None else parts.recipe.collector.state_dict(),
            "shuffles": {name: rng.get_state() for name, rng in parts.shuffles.items()},
        },
    )


def restore(path: Path, parts: Parts) -> Record:
    """Put the run back to where the file left it; a file of another run is refused."""
    state = read_state(path)
    about = {**parts.about, "shapes": {name: list(value.shape) for name, value in parts.live.items()}}
    here = matched(state["about"]["shapes"], parts.live)
    shapes = {here[name]: shape for name, shape in state["about"]["shapes"].items()}
    known = {**state["about"], "shapes": shapes}
    for key in {**about, **known}:
        if key not in about or key not in known or about[key] != known[key]:
            raise ValueError(
                f"{path} is the checkpoint of another run: its {key} is {_said(known, key)}, this one's is "
                f"{_said(about, key)}; remove the file or name another"
            )
    best_nll, best_epoch, best = state["best"]
    record = Record(state["history"], None, best_nll, best_epoch, state["seconds"])
    if best is not None:
        header, tensors = best
        found = unpacked(path, header, tensors, parts.model, parts.like)
        assert isinstance(found, WeightPosterior)
        record.best = found
    write(parts.live, {here[name]: value for name, value in state["model"].items()})
    parts.like.load_state_dict(state["likelihood"])
    parts.recipe.optimizer.load_state_dict(state["optimizer"])
    parts.schedule.load_state_dict(state["schedule"])
    if parts.rest is not None:
        parts.rest.load_state_dict(state["rest"])
    if parts.recipe.collector is not None:
        parts.recipe.collector.load_state_dict(state["collector"])
    for name, rng in parts.shuffles.items():
        if name in state["shuffles"]:
            rng.set_state(state["shuffles"][name])
    return record


def _said(about: dict[str, Any], key: str) -> str:
    """A setting as it was given; one that was not given is the default, whatever that is."""
    return repr(about[key]) if key in about else "the default"

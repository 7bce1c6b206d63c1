"""The state of a run between two epochs, or two steps: taken, put into a file, and put back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, check_number
from bayescore.nn.checkpoint import load_state, save_state
from bayescore.nn.methods import Recipe
from bayescore.nn.plain import check_adam
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.storage import packed, unpacked
from bayescore.posteriors.weights import WeightPosterior, put_back_on_failure, write
from bayescore.posteriors.wrappers import matched

__all__ = ["Parts", "Record", "Within", "restore", "store"]


@dataclass
class Within:
    """How far an epoch has come."""

    begin: dict[str, Tensor]  # the loaders' generators when it began
    batches: int = 0
    total: float = 0.0  # of the losses, over `count` data
    count: int = 0
    streams: dict[str, Tensor] = field(default_factory=dict)  # all that is drawn from, as a file has it


@dataclass
class Record:
    """What a run has found so far."""

    history: list[dict[str, float]] = field(default_factory=list)
    best: WeightPosterior | None = None
    best_nll: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    within: Within | None = None

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
    def place(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def live(self) -> dict[str, Tensor]:
        """The module's own tensors, by name."""
        return {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}

    @property
    def shuffles(self) -> dict[str, torch.Generator]:
        """The generators of the loaders, and of their samplers, that have one of their own."""
        found = {}
        for name, loader in {"loader": self.loader, "validation": self.validation}.items():
            found[name] = getattr(loader, "generator", None)
            for part in ("sampler", "batch_sampler"):
                found[f"{name}.{part}"] = getattr(getattr(loader, part, None), "generator", None)
        return {name: rng for name, rng in found.items() if isinstance(rng, torch.Generator)}

    @property
    def orders(self) -> dict[str, Tensor]:
        """The state of the loaders' generators."""
        return {name: rng.get_state() for name, rng in self.shuffles.items()}

    @property
    def streams(self) -> dict[str, Tensor]:
        """The state of everything that an epoch draws from."""
        found = {**self.orders, "cpu": torch.get_rng_state()}
        return found | ({"cuda": torch.cuda.get_rng_state(self.place)} if self.place.type == "cuda" else {})

    def put_orders(self, states: dict[str, Tensor]) -> None:
        """Set the loaders' generators."""
        for name, rng in self.shuffles.items():
            if name in states:
                rng.set_state(states[name])

    def put_streams(self, states: dict[str, Tensor]) -> None:
        """Set everything that an epoch draws from."""
        self.put_orders(states)
        torch.set_rng_state(states["cpu"])
        if self.place.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.place)


def store(path: Path, parts: Parts, record: Record) -> None:
    """Write the run as it stands, after an epoch or within one."""
    shapes = {name: list(value.shape) for name, value in parts.live.items()}
    state = {
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
        "shuffles": parts.orders,
    }
    if record.within is not None:
        state["within"] = {**vars(record.within), "streams": parts.streams}
    save_state(path, state)


def restore(path: Path, parts: Parts) -> Record:
    """Put the run back to where the file left it; a file that is damaged, or of another run, is refused."""
    state = load_state(path)
    about = {**parts.about, "shapes": {name: list(value.shape) for name, value in parts.live.items()}}
    known = state.get("about")
    if not isinstance(known, dict) or not isinstance(known.get("shapes"), dict):
        raise ValueError(f"{path} is not a readable checkpoint: it does not say of which run it is")
    here = matched(known["shapes"], parts.live)
    known["shapes"] = {here[name]: shape for name, shape in known["shapes"].items()}
    for key in {**about, **known}:
        if key not in about or key not in known or about[key] != known[key]:
            raise ValueError(
                f"{path} is the checkpoint of another run: its {key} is {_said(known, key)}, this one's is "
                f"{_said(about, key)}; remove the file or name another"
            )
    with put_back_on_failure(parts.model, parts.like):
        try:
            return _put(path, state, parts)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is damaged ({what}); remove the file or name another") from error


def _put(path: Path, state: dict[str, Any], parts: Parts) -> Record:
    """Look at everything, then put it into its place; the loaders' generators are the last."""
    optimizer, rest, schedule = parts.recipe.optimizer, parts.rest, parts.schedule
    record = _record(path, state, parts)
    here = matched(state["model"], parts.live)
    tensors = {here[name]: value for name, value in state["model"].items()}
    _check_tensors(tensors, parts.live)
    _check_tensors(state["likelihood"], parts.like.state_dict(keep_vars=True))
    for each, saved in ((optimizer, state["optimizer"]), (rest, state["rest"])):
        if isinstance(each, torch.optim.Adam):
            check_adam(saved, each)
    check_count("last_epoch", state["schedule"]["last_epoch"], 0)
    if state["schedule"]["base_lrs"] != schedule.base_lrs:
        raise ValueError("its schedule is of another learning rate")
    within = record.within
    orders = state["shuffles"] if within is None else within.begin
    places = {"cpu": torch.device("cpu"), parts.place.type: parts.place}
    places |= {name: rng.device for name, rng in parts.shuffles.items()}
    for name, value in (*orders.items(), *(within.streams.items() if within is not None else ())):
        if name in places:
            torch.Generator(places[name]).set_state(value)  # raises unless it is a generator's state
    write(parts.live, tensors)
    parts.like.load_state_dict(state["likelihood"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    if rest is not None:
        rest.load_state_dict(state["rest"])
    if parts.recipe.collector is not None:
        parts.recipe.collector.load_state_dict(state["collector"])
    parts.put_orders(orders)
    return record


def _record(path: Path, state: dict[str, Any], parts: Parts) -> Record:
    best_nll, best_epoch, best = state["best"]
    record = Record(state["history"], None, best_nll, best_epoch, state["seconds"])
    check_number("seconds", record.seconds, zero=True)
    check_count("best_epoch", best_epoch, 0)
    numbers = [best_nll, *(value for row in record.history for value in (row["loss"], *row.values()))]
    if not isinstance(record.history, list) or not all(isinstance(n, float) for n in numbers):
        raise TypeError("its history is no list of rows of numbers")
    if "within" in state:
        record.within = Within(**state["within"])
        check_count("batches", record.within.batches)
        check_count("count", record.within.count)
        if not isinstance(record.within.total, float) or "cpu" not in record.within.streams:
            raise TypeError("it does not say where in its epoch it is")
    if best is not None:
        header, tensors = best
        found = unpacked(path, header, tensors, parts.model, parts.like)
        if not isinstance(found, WeightPosterior):
            raise TypeError("its best posterior is a mixture")
        record.best = found
    return record


def _check_tensors(found: Mapping[str, Tensor], here: Mapping[str, Tensor]) -> None:
    """Raise unless a file's tensors are like those of a module, and finite where they are trained."""
    for name in {**here, **found}:
        if name not in here or (found[name].shape, found[name].dtype) != (here[name].shape, here[name].dtype):
            raise ValueError(f"its tensor {name} is of another shape or kind")
        if here[name].requires_grad and not found[name].isfinite().all():
            raise ValueError(f"its tensor {name} is not finite")


def _said(about: dict[str, Any], key: str) -> str:
    """A setting as it was given; one that was not given is the default, whatever that is."""
    return repr(about[key]) if key in about else "the default"

"""The state of a training run, between two epochs or two steps, and its file.

`save_state` and `load_state` write and read nested state in one file of safetensors and JSON, without pickle;
users' own loops can call them too. `write_checkpoint` and `read_checkpoint` use them for a run of `fit`.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, check_number
from bayescore.io import read_tensors, refusing_damage, write_tensors
from bayescore.nn.callbacks import Log
from bayescore.nn.distributed import Team
from bayescore.nn.methods import TrainingMethod
from bayescore.nn.plain import check_adam
from bayescore.nn.prior import GaussianPrior
from bayescore.posteriors.base import WeightPosterior, restored_on_failure, unpack_posterior
from bayescore.posteriors.forward import copy_into, own_tensors
from bayescore.posteriors.likelihoods import Likelihood
from bayescore.posteriors.shards import computing_device, local
from bayescore.posteriors.storage import PosteriorFile
from bayescore.posteriors.wrappers import matched

__all__ = [
    "EpochState",
    "Run",
    "RunState",
    "load_state",
    "read_checkpoint",
    "save_state",
    "write_checkpoint",
]

FORMAT = "bayescore-run-1"


# -- nested state in a file ------------------------------------------------------------------------------


def save_state(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write state dicts of models, optimizers, schedules to one file, atomically.

    Arguments:
        state: nested dicts, lists and tuples of tensors, numbers, strings and None.

    >>> import tempfile, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(f"{folder}/run.safetensors", {"model": model.state_dict(), "epoch": 3})
    ...     saved = load_state(f"{folder}/run.safetensors")
    >>> model.load_state_dict(saved["model"])
    <All keys matched successfully>
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a checkpoint holds a dict, such as {{'model': ...}}; got a {type(state).__name__}")
    tensors: dict[str, Tensor] = {}
    tree = _encode(state, tensors)
    write_tensors(Path(path), {"format": FORMAT, "tree": tree}, tensors)


def load_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `save_state` wrote; tensors come back on the CPU."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no checkpoint at {path}")
    with refusing_damage(path, "checkpoint"):
        header, tensors = read_tensors(Path(path), FORMAT)
        if header.keys() != {"format", "tree"}:
            raise ValueError(f"its header holds {', '.join(sorted(header))}, not format and tree")
        state = _decode(header["tree"], tensors)
        if not isinstance(state, dict):
            raise ValueError("it holds no dict")
        if tensors:
            raise ValueError(f"it holds the tensor {min(tensors)!r}, and does not say where it belongs")
    return state


def _encode(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON; a tensor is put into `tensors`, and its name there into the JSON."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str | int):
                raise TypeError(f"a checkpoint cannot hold a dict with the key {key!r}: use texts or numbers")
        return {"dict": [[key, _encode(part, tensors)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(part, tensors) for part in value]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}  # JSON has no infinities and no NaN
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}: {value!r}")


def _decode(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """The value behind the JSON; its tensors are taken out of `tensors`, each once."""
    if isinstance(tree, list):
        raise ValueError("it holds a list that does not say what it is")
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors.pop(value)
    if kind == "float" and isinstance(value, str):
        return float(value)
    if kind not in ("dict", "list", "tuple") or not isinstance(value, list):
        raise ValueError(f"it holds a {kind!r} that is a {type(value).__name__}")
    if kind == "dict":
        if not all(isinstance(key, str | int) for key, _ in value):
            raise ValueError("it holds a dict with a key that is neither a text nor a number")
        found = {key: _decode(part, tensors) for key, part in value}
        if len(found) != len(value):
            raise ValueError("it holds a dict with one key twice")
        return found
    parts = [_decode(part, tensors) for part in value]
    return tuple(parts) if kind == "tuple" else parts


# -- a run of `fit` --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The inputs of a training run: module, method, data, and when to stop.

    Arguments:
        settings: a checkpoint with other settings is refused.
        point_optimizer: Adam for parameters that are trained but not random.
        checkpoint: the file, if any.
        checkpoint_every, checkpoint_minutes: steps or minutes after which it is also written within an epoch.
        accumulate: pieces in which a batch is run.
        autocast: run the network in bfloat16 where torch deems it safe.
        freeze_batchnorm: BatchNorm keeps its statistics.
        logs: called with the row of every epoch.
        prior: a term of the loss, if an earlier posterior is the prior.
    """

    settings: dict[str, Any]
    model: nn.Module
    likelihood: Likelihood
    method: TrainingMethod
    point_optimizer: torch.optim.Optimizer | None
    schedule: torch.optim.lr_scheduler.LRScheduler
    loader: Any
    validation: Any
    epochs: int
    seed: int
    patience: int | None = None
    checkpoint: Path | None = None
    checkpoint_every: int | None = None
    progress: bool | None = None
    validate_by: str = "nll"
    checkpoint_minutes: float | None = None
    accumulate: int = 1
    autocast: bool = False
    freeze_batchnorm: bool = False
    logs: Sequence[Log] = ()
    prior: GaussianPrior | None = None

    @property
    def validated(self) -> str:
        """The name of the loss on validation in the history."""
        return f"validation_{self.validate_by}"

    @functools.cached_property
    def team(self) -> Team:
        """The processes that train together."""
        return Team(self.model)

    @property
    def device(self) -> torch.device:
        return computing_device(next(self.model.parameters()))

    @property
    def batches(self) -> int | None:
        """Batches of an epoch, or None if the loader has no length."""
        found: int | None = self.settings["batches"]
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """The settings and the shapes of the module's tensors."""
        shapes = {name: list(value.shape) for name, value in own_tensors(self.model).items()}
        return {**self.settings, "shapes": shapes}

    @property
    def loader_generators(self) -> dict[str, torch.Generator]:
        """The random generators of the loaders and of their samplers, if they have their own."""
        found = {}
        for name, loader in {"loader": self.loader, "validation": self.validation}.items():
            found[name] = getattr(loader, "generator", None)
            for part in ("sampler", "batch_sampler"):
                found[f"{name}.{part}"] = getattr(getattr(loader, part, None), "generator", None)
        return {name: rng for name, rng in found.items() if isinstance(rng, torch.Generator)}

    def loader_states(self) -> dict[str, Tensor]:
        """The states of the loaders' generators."""
        return {name: rng.get_state() for name, rng in self.loader_generators.items()}

    def set_loader_states(self, states: Mapping[str, Tensor]) -> None:
        """Set the states of the loaders' generators."""
        for name, rng in self.loader_generators.items():
            if name in states:
                rng.set_state(states[name])

    def random_states(self) -> dict[str, Tensor]:
        """The states of all generators from which an epoch draws: the loaders' and torch's global ones."""
        found = {**self.loader_states(), "cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            found["cuda"] = torch.cuda.get_rng_state(self.device)
        return found

    def set_random_states(self, states: Mapping[str, Tensor]) -> None:
        """Set the states of all generators from which an epoch draws."""
        self.set_loader_states(states)
        torch.set_rng_state(states["cpu"])
        if self.device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.device)


@dataclass
class EpochState:
    """The progress of an unfinished epoch."""

    loaders_at_start: dict[str, Tensor]  # the states of the loaders' generators
    batches: int = 0
    loss_sum: float = 0.0  # over `count` data
    count: int = 0
    random_states: dict[str, Tensor] = field(
        default_factory=dict
    )  # after the last batch; set by a checkpoint


@dataclass
class RunState:
    """What a run has produced so far."""

    history: list[dict[str, float]] = field(default_factory=list)
    best: WeightPosterior | None = None
    best_loss: float = math.inf
    best_epoch: int = 0
    seconds: float = 0.0
    unfinished: EpochState | None = None

    @property
    def epoch(self) -> int:
        """The last finished epoch."""
        return len(self.history)


def write_checkpoint(path: Path, run: Run, state: RunState) -> None:
    """Write the run as it is now, after an epoch or within one."""
    content = {
        "settings": run.identity,
        "history": state.history,
        "seconds": state.seconds,
        "best": [state.best_loss, state.best_epoch, None if state.best is None else state.best.pack()],
        "model": own_tensors(run.model),
        "likelihood": run.likelihood.state_dict(),
        "optimizer": run.method.optimizer.state_dict(),
        "schedule": run.schedule.state_dict(),
        "point_optimizer": None if run.point_optimizer is None else run.point_optimizer.state_dict(),
        "swag": None if run.method.swag is None else run.method.swag.state_dict(),
        "loaders": run.loader_states(),
    }
    if state.unfinished is not None:
        content["unfinished"] = {**vars(state.unfinished), "random_states": run.random_states()}
    content = run.team.whole(content)
    if run.team.is_first:
        save_state(path, content)


def read_checkpoint(path: Path, run: Run) -> RunState:
    """Restore the run from the file; a file that is damaged, or of another run, is refused."""
    content = load_state(path)
    here, there = run.identity, content.get("settings")
    with refusing_damage(path, "checkpoint"):
        if not isinstance(there, dict) or not isinstance(there.get("shapes"), dict):
            raise ValueError("it does not say of which run it is")
        names = matched(there["shapes"], here["shapes"])
        there["shapes"] = {names[name]: shape for name, shape in there["shapes"].items()}
        difference = _difference(here, there, "the default")
        if difference.startswith("its shapes "):  # name one tensor instead of all
            difference = _difference(here["shapes"], there["shapes"], "missing")
    if difference:
        raise ValueError(
            f"{path} is the checkpoint of another run: {difference}; remove the file or name another"
        )
    with restored_on_failure(run.model, run.likelihood):
        try:
            return _restore(path, content, run)
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            what = f"it lacks {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{path} is damaged ({what}); remove the file or name another") from error


def _difference(here: dict[str, Any], there: dict[str, Any], missing: str) -> str:
    """The first entry that differs, in words; none if all are equal."""
    for key in {**here, **there}:
        one, other = (f"{row[key]!r:.200}" if key in row else missing for row in (there, here))
        if key not in here or key not in there or here[key] != there[key]:
            return f"its {key} is {one}, this one's is {other}"
    return ""


def _restore(path: Path, content: dict[str, Any], run: Run) -> RunState:
    """Check everything first, then set it; the loaders' generators are set last."""
    optimizer, point_optimizer, schedule = run.method.optimizer, run.point_optimizer, run.schedule
    state = _run_state(path, content, run)
    own = own_tensors(run.model)
    names = matched(content["model"], own)
    tensors = {names[name]: value for name, value in content["model"].items()}
    _check_tensors(tensors, own)
    _check_tensors(content["likelihood"], run.likelihood.state_dict(keep_vars=True))
    for each, saved in ((optimizer, content["optimizer"]), (point_optimizer, content["point_optimizer"])):
        if isinstance(each, torch.optim.Adam):
            check_adam(saved, each)
    check_count("last_epoch", content["schedule"]["last_epoch"], 0)
    if content["schedule"]["base_lrs"] != schedule.base_lrs:
        raise ValueError("its schedule is of another learning rate")
    unfinished = state.unfinished
    loader_states = content["loaders"] if unfinished is None else unfinished.loaders_at_start
    devices = {"cpu": torch.device("cpu"), run.device.type: run.device}
    devices |= {name: rng.device for name, rng in run.loader_generators.items()}
    random_states = {} if unfinished is None else unfinished.random_states
    for name, value in (*loader_states.items(), *random_states.items()):
        if name in devices:
            torch.Generator(devices[name]).set_state(value)  # raises unless it is a generator's state
    copy_into(own, tensors)
    run.likelihood.load_state_dict(content["likelihood"])
    optimizer.load_state_dict(content["optimizer"])
    schedule.load_state_dict(content["schedule"])
    if point_optimizer is not None:
        point_optimizer.load_state_dict(content["point_optimizer"])
    if run.method.swag is not None:
        run.method.swag.load_state_dict(content["swag"])
    run.set_loader_states(loader_states)
    return state


def _run_state(path: Path, content: dict[str, Any], run: Run) -> RunState:
    best_loss, best_epoch, best = content["best"]
    state = RunState(content["history"], None, best_loss, best_epoch, content["seconds"])
    check_number("seconds", state.seconds, zero=True)
    check_count("best_epoch", best_epoch, 0)
    numbers = [best_loss, *(value for row in state.history for value in (row["loss"], *row.values()))]
    if not isinstance(state.history, list) or not all(isinstance(n, float) for n in numbers):
        raise TypeError("its history is no list of rows of numbers")
    if "unfinished" in content:
        epoch = state.unfinished = EpochState(**content["unfinished"])
        check_count("batches", epoch.batches)
        check_count("count", epoch.count)
        if not isinstance(epoch.loss_sum, float) or "cpu" not in epoch.random_states:
            raise TypeError("it does not say where in its epoch it is")
    if best is not None:
        header, tensors = best
        found = unpack_posterior(PosteriorFile(path, header, tensors), run.model, run.likelihood)
        if not isinstance(found, WeightPosterior):
            raise TypeError("its best posterior is a mixture")
        state.best = found
    return state


def _check_tensors(found: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise unless a file's tensors match those of a module, and trained ones are finite."""
    for name in {**own, **found}:
        if name not in own or (found[name].shape, found[name].dtype) != (own[name].shape, own[name].dtype):
            raise ValueError(f"its tensor {name} is of another shape or kind")
        if own[name].requires_grad and not local(found[name]).isfinite().all():
            raise ValueError(f"its tensor {name} is not finite")

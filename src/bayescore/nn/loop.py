"""The training loop of `fit`: epochs, validation, the best posterior, early stopping.

Epoch e runs under the global random stream seeded by (seed, e), which is put back afterwards: what draws from
it (dropout layers, a shuffling loader) repeats under the seed and does not disturb anybody else. An epoch
that was cut begins again with the streams it began with; the batches that were done are passed over, and the
streams put to where they were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.nn.resume import Parts, Record, Within, restore, store
from bayescore.posteriors.batchnorm import to_train_mode
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.posterior import Posterior
from bayescore.posteriors.validation import nll, pair
from bayescore.progress import Progress
from bayescore.rng import generator

__all__ = ["NetworkFit", "Run", "stream", "train"]


@dataclass(frozen=True)
class NetworkFit:
    """A trained network: its posterior and how it came about."""

    posterior: Posterior
    status: str
    history: list[dict[str, float]] = field(repr=False)
    best_epoch: int
    seconds: float
    optimizer: Any = field(repr=False)

    def predict(self, x: Any, samples: int = 30, **options: Any) -> Any:
        """As `Posterior.predict`."""
        return self.posterior.predict(x, samples, **options)


@dataclass(frozen=True)
class Run:
    """What a run is given."""

    parts: Parts
    epochs: int
    seed: int
    patience: int | None
    checkpoint: Path | None
    every: int | None
    progress: bool | None


def train(run: Run) -> NetworkFit:
    """All epochs, or as many as patience allows, from the checkpoint on if there is one."""
    parts, recipe = run.parts, run.parts.recipe
    record = Record()
    if run.checkpoint is not None and run.checkpoint.exists():
        record = restore(run.checkpoint, parts)
    start = time.perf_counter() - record.seconds
    status = f"{run.epochs} epochs"
    try:
        with Progress(run.epochs, record.epoch, run.progress) as bar, recipe.training():
            while record.epoch < run.epochs and not _exhausted(run, record):
                _one_more(run, record, start)
                row = record.history[-1]
                bar.update(record.epoch, row.get("validation_nll", row["loss"]), parts.schedule.last_epoch)
                if run.checkpoint is not None:
                    store(run.checkpoint, parts, record)
    except KeyboardInterrupt:
        status = f"interrupted in epoch {record.epoch + 1}"
    if _exhausted(run, record) and record.epoch < run.epochs:
        status = f"stopped after {record.epoch} epochs, {run.patience} without improvement"
    best, epoch = record.best, record.best_epoch
    if best is None:
        best, epoch = recipe.posterior(parts.like), record.epoch
        if any("validation_nll" in row for row in record.history):
            status += ", none of them with a finite loss on validation"
    else:
        status += f", best on validation was epoch {epoch}"
    best.settle()
    status = "; ".join(part for part in (status, best.likelihood.status, recipe.optimizer.status) if part)
    return NetworkFit(best, status, record.history, epoch, record.seconds, recipe.optimizer)


def _one_more(run: Run, record: Record, start: float) -> None:
    """The next epoch, or what is left of it, and what it found."""
    recipe, epoch, place = run.parts.recipe, record.epoch + 1, run.parts.place
    with stream(run.seed, epoch, place):
        row = {"epoch": float(epoch), "loss": _pass(run, record, start)}
    record.within = None
    recipe.end_epoch(epoch, run.epochs)
    if run.parts.validation is not None and recipe.ready:
        posterior = recipe.posterior(run.parts.like)
        row["validation_nll"] = nll(posterior, run.parts.validation, place)
        if row["validation_nll"] < record.best_nll:
            record.best, record.best_nll, record.best_epoch = posterior, row["validation_nll"], epoch
    row["seconds"] = record.seconds = time.perf_counter() - start
    record.history.append(row)


def _exhausted(run: Run, record: Record) -> bool:
    """Whether validation has not improved for too long."""
    waited = record.epoch - record.best_epoch
    return run.patience is not None and record.best is not None and waited >= run.patience


@contextmanager
def stream(seed: int, epoch: int, place: torch.device) -> Iterator[None]:
    """The global random stream of one epoch."""
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        torch.manual_seed(generator(seed, purpose=f"epoch {epoch}").initial_seed())
        yield


def _finite(optimizer: torch.optim.Optimizer) -> bool:
    found = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(bool(g.isfinite().all()) for g in found)


def _pass(run: Run, record: Record, start: float) -> float:
    """One pass over the data, or the rest of it; returns the mean loss under drawn weights."""
    parts = run.parts
    to_train_mode(parts.model)
    done = record.within or Within(parts.orders)
    batches = iter(parts.loader)
    if record.within is not None:
        found = sum(1 for _ in islice(batches, done.batches))
        if found < done.batches:
            raise ValueError(
                f"the checkpoint was written after {done.batches} batches of an epoch and the loader gave "
                f"{found}; continue with the same loader"
            )
        parts.put_streams(done.streams)
    record.within = done
    for batch in batches:
        x, y = pair(batch)
        loss = _step(parts, x.to(parts.place), y.to(parts.place))
        done.batches, done.count = done.batches + 1, done.count + len(x)
        done.total += loss * len(x)
        if run.checkpoint is not None and run.every is not None and done.batches % run.every == 0:
            record.seconds = time.perf_counter() - start
            store(run.checkpoint, parts, record)
    if not done.count:
        raise ValueError("the training loader gave no batch")
    return done.total / done.count


def _step(parts: Parts, x: Inputs, y: Tensor) -> float:
    """One step of every optimizer; returns the loss."""
    optimizer = parts.recipe.optimizer

    def closure() -> Tensor:
        loss: Tensor = parts.like(x.run(parts.model), y)
        loss.backward()
        return loss.detach()

    loss = optimizer.step(closure)
    parts.schedule.step()
    if parts.rest is not None:
        if _finite(parts.rest):
            parts.rest.step()
        parts.rest.zero_grad()
    optimizer.zero_grad()
    return float(loss)

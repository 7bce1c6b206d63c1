"""The training loop of `fit`: epochs, validation, the best posterior, early stopping.

Epoch e runs with torch's global random stream seeded by (seed, e), which is restored afterwards: whatever
draws from it (dropout layers, a shuffling loader) is reproducible and does not affect other code. To resume
an unfinished epoch, the loader starts again from the random states at the beginning of the epoch, the batches
that were already used are skipped, and the random states are set to those of the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayescore.nn.checkpoint import EpochState, Run, RunState, read_checkpoint, write_checkpoint
from bayescore.optim.base import BayesianOptimizer
from bayescore.posteriors.inputs import Inputs, inputs_and_targets
from bayescore.posteriors.validation import CRITERIA
from bayescore.progress import Progress
from bayescore.rng import generator

__all__ = ["epoch_stream", "out_of_patience", "train"]


def train(run: Run) -> tuple[RunState, bool]:
    """All epochs, or as many as patience allows, continuing from the checkpoint if there is one.

    Returns the state of the run, and whether a KeyboardInterrupt ended it.
    """
    state = RunState()
    if run.checkpoint is not None and run.checkpoint.exists():
        state = read_checkpoint(run.checkpoint, run)
    run.team.wait()  # nobody writes before all have read
    clock = _Clock(time.perf_counter() - state.seconds, time.perf_counter())
    batches = run.batches or 1  # of a stream, epochs are counted
    try:
        with (
            Progress(run.epochs * batches, state.epoch * batches, run.progress) as bar,
            run.method.while_training(),
        ):
            while state.epoch < run.epochs and not out_of_patience(run, state):
                _next_epoch(run, state, clock, bar)
                row = state.history[-1]
                loss = row.get(run.validated, row["loss"])
                bar.update(state.epoch * batches, loss, run.schedule.last_epoch)
                if run.checkpoint is not None:
                    write_checkpoint(run.checkpoint, run, state)
                for log in run.logs:
                    log(dict(row))
    except KeyboardInterrupt:
        return state, True
    return state, False


@dataclass
class _Clock:
    """When training began, earlier runs included, and when the last checkpoint was written."""

    began: float
    written: float

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def out_of_patience(run: Run, state: RunState) -> bool:
    """Whether validation has not improved for too long."""
    waited = state.epoch - state.best_epoch
    return run.patience is not None and state.best is not None and waited >= run.patience


def _next_epoch(run: Run, state: RunState, clock: _Clock, bar: Progress) -> None:
    """Train for the next epoch, or the rest of it, then validate."""
    epoch = state.epoch + 1
    with epoch_stream(run.seed, epoch, run.device):
        run.team.begin_epoch(run.loader, epoch)
        row = {"epoch": float(epoch), "loss": run.team.mean(_train_batches(run, state, clock, bar))}
    if epoch == 1 and state.unfinished is not None and isinstance(run.method.optimizer, BayesianOptimizer):
        _check_num_data(run, run.method.optimizer, state.unfinished)
    state.unfinished = None
    run.method.end_epoch(epoch, run.epochs)
    if run.validation is not None and run.method.has_posterior:
        posterior = run.method.posterior(run.likelihood)
        loss = run.team.mean(CRITERIA[run.validate_by](posterior, run.validation, run.device))
        row[run.validated] = loss
        if loss < state.best_loss:
            state.best, state.best_loss, state.best_epoch = posterior, loss, epoch
    row["seconds"] = state.seconds = clock.seconds
    state.history.append(row)


def _check_num_data(run: Run, optimizer: BayesianOptimizer, epoch: EpochState) -> None:
    """Warn if num_data is far from the data of an epoch, and from the data set (a sampler's differ)."""
    steps = [float(epoch.batches)]
    data = getattr(run.loader, "dataset", None)
    if isinstance(data, Sized):
        steps.append(len(data) * epoch.batches / (epoch.count * run.team.shares))
    optimizer.usage.end_epoch(optimizer.param_groups, *steps)


@contextmanager
def epoch_stream(seed: int, epoch: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global random stream for one epoch, and restore it afterwards."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(generator(seed, purpose=f"epoch {epoch}").initial_seed())
        yield


def _train_batches(run: Run, state: RunState, clock: _Clock, bar: Progress) -> float:
    """Train on the (remaining) batches of an epoch; returns the mean loss under drawn weights."""
    _to_train_mode(run.model, run.freeze_batchnorm)
    epoch = state.unfinished or EpochState(run.loader_states())
    batches = iter(run.loader)
    if state.unfinished is not None:
        skipped = sum(1 for _ in islice(batches, epoch.batches))
        if skipped < epoch.batches:
            raise ValueError(
                f"the checkpoint was written after {epoch.batches} batches of an epoch and the loader gave "
                f"{skipped}; continue with the same loader"
            )
        run.set_random_states(epoch.random_states)
    state.unfinished = epoch
    for batch in batches:
        x, y = inputs_and_targets(batch)
        loss = _step(run, x.to(run.device), y.to(run.device))
        epoch.batches, epoch.count = epoch.batches + 1, epoch.count + len(x)
        epoch.loss_sum += loss * len(x)
        if run.batches is not None:
            done = state.epoch * run.batches + epoch.batches
            bar.update(done, epoch.loss_sum / epoch.count, run.schedule.last_epoch)
        if run.checkpoint is not None and _is_due(run, epoch.batches, clock):
            state.seconds = clock.seconds
            write_checkpoint(run.checkpoint, run, state)
            clock.written = time.perf_counter()
    if not epoch.count:
        raise ValueError("the training loader gave no batch")
    return epoch.loss_sum / epoch.count


def _is_due(run: Run, batches: int, clock: _Clock) -> bool:
    """Whether a checkpoint is to be written after so many batches of an epoch."""
    if run.checkpoint_every is not None and batches % run.checkpoint_every == 0:
        return True
    minutes = run.checkpoint_minutes
    return minutes is not None and time.perf_counter() - clock.written >= 60 * minutes


def _to_train_mode(model: nn.Module, freeze_batchnorm: bool) -> None:
    """Train mode, except for BatchNorm layers that are to keep their statistics, and those whose weights are
    all frozen."""
    model.train()
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        frozen = freeze_batchnorm or (own and not any(p.requires_grad for p in own))
        if isinstance(layer, _BatchNorm) and frozen:
            layer.eval()


def _step(run: Run, x: Inputs, y: Tensor) -> float:
    """One step of every optimizer; returns the loss."""
    optimizer, point_optimizer = run.method.optimizer, run.point_optimizer

    bounds = [len(x) * i // run.accumulate for i in range(run.accumulate + 1)]
    pieces = [slice(a, b) for a, b in pairwise(bounds) if b > a]
    # the optimizers of ours average the gradients of the backward calls, and others add them up
    calls = len(pieces) if isinstance(optimizer, BayesianOptimizer) else 1

    def closure() -> Tensor:
        total = torch.zeros(())
        for piece in pieces:
            share = (piece.stop - piece.start) / len(x)
            with torch.autocast(run.device.type, torch.bfloat16, enabled=run.autocast):
                outputs = x[piece].run(run.model)
            loss: Tensor = run.likelihood(outputs.float() if run.autocast else outputs, y[piece])
            whole = loss if run.prior is None else loss + run.prior.loss()
            (whole if len(pieces) == 1 else whole * (share * calls)).backward()
            total = total.to(loss.device) + share * loss.detach()
        return total

    loss = optimizer.step(closure)
    run.schedule.step()
    if point_optimizer is not None:
        run.team.average_gradients(run.likelihood.parameters())
        if _has_finite_gradients(point_optimizer):
            point_optimizer.step()
        point_optimizer.zero_grad()
    optimizer.zero_grad()
    return float(loss)


def _has_finite_gradients(optimizer: torch.optim.Optimizer) -> bool:
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(bool(g.isfinite().all()) for g in gradients)

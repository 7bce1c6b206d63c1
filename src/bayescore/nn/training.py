"""Train a Bayesian network in one call: progress, early stopping, best on validation.

Every step is the loop an engineer would write (docs/networks.md); nothing here is needed to use the
optimizers.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, unknown_name
from bayescore.nn.likelihoods import Function, Likelihood, likelihood
from bayescore.nn.posterior import Posterior
from bayescore.nn.select import select
from bayescore.progress import Progress

if TYPE_CHECKING:
    from bayescore.optim.base import Shell

__all__ = ["NetworkFit", "fit"]

METHODS = ("proximal", "advi", "bam", "sgld")
VALIDATION_DRAWS = 5


@dataclass(frozen=True)
class NetworkFit:
    """A trained network: its posterior and how it came about."""

    posterior: Posterior
    status: str
    history: list[dict[str, float]] = field(repr=False)
    best_epoch: int
    seconds: float
    optimizer: Shell = field(repr=False)

    def predict(self, x: Any, samples: int = 30, **options: Any) -> Any:
        """As `Posterior.predict`."""
        return self.posterior.predict(x, samples, **options)


def fit(
    model: nn.Module,
    train_loader: Iterable[Any],
    likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    method: str = "proximal",
    *,
    epochs: int = 20,
    validation: Iterable[Any] | None = None,
    patience: int | None = None,
    num_data: int | None = None,
    bayesian: str | Iterable[str] = "*",
    point: str | Iterable[str] = (),
    point_lr: float = 1e-3,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> NetworkFit:
    """Train `model` and return its posterior.

    Arguments:
        model: any module; it is trained in place, on the device it is on.
        train_loader: batches (inputs, targets).
        likelihood: a name, a Likelihood, or a callable (outputs, targets) to the mean negative
            log-likelihood.
        method: "proximal", "advi", "bam" or "sgld".
        epochs: passes over the data; the learning rate falls along a cosine over all of them.
        validation: batches on which the posterior predictive is scored after every epoch; the best one is
            returned.
        patience: epochs without improvement on validation before training stops; None: never.
        num_data: size of the training set, if the loader's data set does not say.
        bayesian, point: patterns of parameters (`bs.nn.select`) to be random, and to be left out; those left
            out are trained by Adam with the rate `point_lr`, as is a learned noise level.
        seed: of the weights' noise.
        progress: show a progress bar; by default if standard error is a terminal.
        options: of the optimizer, such as lr, prior_sd, temperature, samples.
    """
    check_count("epochs", epochs)
    if patience is not None:
        check_count("patience", patience)
    like = _likelihood(likelihood).to(next(model.parameters()).device)
    data = num_data if num_data is not None else _size(train_loader)
    if isinstance(like, Function):
        check_mean_loss(model, like, train_loader)
    chosen = select(model, bayesian, point)
    opt = _optimizer(method, chosen, data, _batch_size(train_loader), seed, options)
    rest = _rest(model, like, {name for name, _ in chosen}, point_lr)
    return _train(_Run(model, train_loader, like, opt, rest, epochs, validation, patience, progress))


@dataclass
class _Run:
    model: nn.Module
    loader: Iterable[Any]
    like: Likelihood
    opt: Shell
    rest: torch.optim.Optimizer | None
    epochs: int
    validation: Iterable[Any] | None
    patience: int | None
    progress: bool | None


def _train(run: _Run) -> NetworkFit:
    start = time.perf_counter()
    place = next(run.model.parameters()).device
    history: list[dict[str, float]] = []
    best: tuple[float, int, Posterior] | None = None
    status = f"{run.epochs} epochs"
    per_epoch = len(run.loader) if isinstance(run.loader, Sized) else None
    schedule = torch.optim.lr_scheduler.LambdaLR(run.opt, lambda t: _cosine(t, per_epoch, run.epochs))
    epoch = 0
    try:
        with Progress(run.epochs, show=run.progress) as bar:
            for epoch in range(1, run.epochs + 1):
                loss = _epoch(run, place, schedule)
                row = {"epoch": float(epoch), "loss": loss, "seconds": time.perf_counter() - start}
                if run.validation is not None and _ready(run.opt):
                    posterior = run.opt.posterior(run.model, copy.deepcopy(run.like))
                    row["validation_nll"] = nll(posterior, run.validation, place)
                    if best is None or row["validation_nll"] < best[0]:
                        best = (row["validation_nll"], epoch, posterior)
                history.append(row)
                bar.update(epoch, row.get("validation_nll", loss), run.opt.param_groups[0]["step"])
                if best is not None and run.patience is not None and epoch - best[1] >= run.patience:
                    status = f"stopped after {epoch} epochs, {run.patience} without improvement"
                    break
    except KeyboardInterrupt:
        status = f"interrupted in epoch {epoch}"
    if best is None:
        best = (math.nan, len(history), run.opt.posterior(run.model, copy.deepcopy(run.like)))
    else:
        status += f", best on validation was epoch {best[1]}"
    with torch.no_grad():
        live = {**dict(run.model.named_parameters()), **dict(run.model.named_buffers())}
        for name, value in {**best[2].fixed, **best[2].centre()}.items():
            live[name].copy_(value)
    seconds = time.perf_counter() - start
    return NetworkFit(best[2], f"{status}; {run.opt.status}", history, best[1], seconds, run.opt)


def _epoch(run: _Run, place: torch.device, schedule: Any) -> float:
    """One pass over the data; returns the mean loss under drawn weights."""
    run.model.train()
    total, count = 0.0, 0
    for x, y in run.loader:
        x, y = x.to(place), y.to(place)
        for _ in range(run.opt.param_groups[0]["samples"]):
            with run.opt.sample():
                loss = run.like(run.model(x), y)
                loss.backward()
        run.opt.step()
        schedule.step()
        if run.rest is not None:
            run.rest.step()
            run.rest.zero_grad()
        run.opt.zero_grad()
        total, count = total + float(loss.detach()) * len(x), count + len(x)
    if not count:
        raise ValueError("the training loader gave no batch")
    return total / count


def nll(
    posterior: Posterior, batches: Iterable[Any], place: torch.device, draws: int = VALIDATION_DRAWS
) -> float:
    """Mean negative log predictive probability; for a callable likelihood, the mean loss over draws."""
    total, count = 0.0, 0
    for x, y in batches:
        prediction = posterior.predict(x.to(place), draws)
        y = y.to(place)
        if isinstance(posterior.likelihood, Function):
            value = sum(float(posterior.likelihood(o, y)) for o in prediction.outputs) / draws * len(x)
        else:
            value = -float(prediction.log_prob(y).sum())
        total, count = total + value, count + len(x)
    if not count:
        raise ValueError("the validation loader gave no batch")
    return total / count


def check_mean_loss(model: nn.Module, like: Likelihood, loader: Iterable[Any]) -> None:
    """Refuse a callable that sums over the batch: then the halves add up to the whole."""
    x, y = next(iter(loader))
    place = next(model.parameters()).device
    half = len(x) // 2
    if not half:
        return
    x, y = x[: 2 * half].to(place), y[: 2 * half].to(place)
    mode = model.training
    model.eval()
    with torch.no_grad():
        out = model(x)
        whole, one, two = (float(like(out[s], y[s])) for s in (slice(None), slice(half), slice(half, None)))
    model.train(mode)
    if abs(whole - one - two) < 0.1 * abs(whole - (one + two) / 2):
        raise ValueError(
            "the loss is a sum over the batch (its halves add up to the whole); "
            "return the mean over data instead: the number of data enters through num_data"
        )


def _optimizer(
    method: str, chosen: Any, data: int, batch: int | None, seed: int, options: dict[str, Any]
) -> Shell:
    from bayescore import optim

    kinds: dict[str, Any] = {
        "proximal": optim.ProximalScore,
        "advi": optim.ADVI,
        "bam": optim.BaM,
        "sgld": optim.SGLD,
    }
    if method not in kinds:
        raise unknown_name("method", method, METHODS)
    if method != "sgld":
        options.setdefault("batch_size", batch)
    opt: Shell = kinds[method](chosen, num_data=data, seed=seed, **options)
    return opt


def _rest(model: nn.Module, like: Likelihood, random: set[str], lr: float) -> torch.optim.Optimizer | None:
    """Adam for what is trained and not random."""
    others = [p for name, p in model.named_parameters() if p.requires_grad and name not in random]
    others += list(like.parameters())
    return torch.optim.Adam(others, lr=lr) if others else None


def _likelihood(what: Any) -> Likelihood:
    return likelihood(what)


def _ready(opt: Shell) -> bool:
    """Whether there is a posterior to look at: a chain has none during burn-in."""
    return bool(opt.param_groups[0].get("kept", 1))


def _size(loader: Any) -> int:
    data = getattr(loader, "dataset", None)
    if isinstance(data, Sized):
        return len(data)
    raise ValueError("the loader's data set has no length; pass num_data=, the size of the training set")


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None


def _cosine(t: int, per_epoch: int | None, epochs: int) -> float:
    if per_epoch is None:
        return 1.0
    return max(1e-3, 0.5 * (1 + math.cos(math.pi * min(1.0, t / (per_epoch * epochs)))))

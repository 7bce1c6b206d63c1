"""Train a Bayesian network in one call, with progress, early stopping, validation and checkpoints.

Every step is what a user would write in a loop (docs/networks.md); the optimizers also work without this.
"""

from __future__ import annotations

import copy
import inspect
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count, check_number, unknown_name
from bayescore.families import Family
from bayescore.nn.arguments import check_batches, check_likelihood, check_method, check_model
from bayescore.nn.callbacks import logs
from bayescore.nn.checkpoint import Run, RunState
from bayescore.nn.distributed import Team
from bayescore.nn.history import TrainingHistory
from bayescore.nn.loop import epoch_stream, out_of_patience, train
from bayescore.nn.methods import BAYESIAN, SCHEDULES, prior_options, training_method
from bayescore.nn.prior import GaussianPrior
from bayescore.optim.options import positive
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.ensemble import Ensemble
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.likelihoods import Function, Likelihood, as_likelihood
from bayescore.posteriors.selection import select
from bayescore.posteriors.shards import computing_device
from bayescore.posteriors.validation import CRITERIA, check_mean_loss

__all__ = ["EnsembleFit", "NetworkFit", "fit", "fit_ensemble"]

LATER, RISE = (
    2,
    0.02,
)  # overfitting: epochs since the best one, and the rise as a share of the loss and its fall
BATCHNORM = ("training", "frozen")
APART = ("epoch", "seconds")  # the columns of a history that are no losses
_EVALUATE = "bayescore.metrics.evaluate(fit.predict(x), y) scores its predictions"
#: what users of other libraries ask of a fit, and what to write here
INSTEAD = {
    "evaluate": _EVALUATE,
    "load": "bnn.Posterior.load(path, model) reads what save(path) wrote",
    "model": "the module is fit.posterior.model",
    "plot": "bayescore.plotting.plot_training(fit) draws its history",
    "predict_proba": "fit.predict(x).probs are the probabilities",
    "sample": "fit.posterior.sample_(seed) is the module as one draw, in a with block",
    "score": _EVALUATE,
}
NOISE_LR = 0.02  # of a likelihood's own parameters, which are log scales: 2 % per step


@dataclass(frozen=True)
class NetworkFit:
    """A trained network: its posterior and how training went."""

    posterior: Posterior
    status: str
    history: TrainingHistory = field(repr=False)
    best_epoch: int
    seconds: float
    optimizer: Any = field(repr=False)
    interrupted: bool = False  # by Ctrl-C

    def predict(self, x: Any, draws: int = 30, **options: Any) -> Any:
        """As `Posterior.predict`."""
        return self.posterior.predict(x, draws, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to a file, which `bnn.Posterior.load(path, model)` reads."""
        self.posterior.save(path)

    def summary(self) -> str:
        """How training went, in a few lines."""
        row = self.history[self.best_epoch - 1] if self.history else {}
        scores = [f"{name.replace('_', ' ')} {value:.4g}" for name, value in row.items() if name not in APART]
        lines = {
            "posterior": f"{type(self.posterior).__name__}, likelihood {self.posterior.likelihood.name!r}",
            "status": self.status,
            "epochs": f"{len(self.history)} in {self.seconds:.3g} s; epoch {self.best_epoch} is kept",
            "scores": ", ".join(scores) or "none: no epoch was finished",
        }
        return "\n".join(f"{name:<11}{text}" for name, text in lines.items())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        remedy = INSTEAD.get(name, "it has predict, summary, save, posterior, status, history and best_epoch")
        raise AttributeError(f"a {type(self).__name__} has no {name}; {remedy}")


def fit(
    model: nn.Module,
    train_loader: Iterable[Any],
    likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    method: str = "proximal",
    *,
    epochs: int = 20,
    validation: Iterable[Any] | None = None,
    patience: int | None = None,
    validate_by: str = "nll",
    schedule: str = "cosine",
    num_data: int | None = None,
    family: Family | None = None,
    prior: GaussianPosterior | None = None,
    bayesian: str | Iterable[str] = "*",
    point: str | Iterable[str] = (),
    point_lr: float = 1e-3,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    checkpoint_minutes: float | None = None,
    accumulate: int = 1,
    autocast: bool = False,
    batchnorm: str = "training",
    group_options: Mapping[str, Mapping[str, Any]] | None = None,
    callbacks: Any = None,
    progress: bool | None = None,
    **options: Any,
) -> NetworkFit:
    """Train `model` and return its posterior.

    In a distributed run every process calls this, with a loader that gives it its own share of each batch
    (DistributedSampler), on a module in DistributedDataParallel or sharded by `fully_shard`
    (docs/distributed.md).

    A KeyboardInterrupt ends training: the posterior is that of the last step, or the best on validation. Any
    other exception leaves the module with the mean weights of the last step; the rest is in the checkpoint.

    Arguments:
        model: any module; it is trained in place, on the device it is on.
        train_loader: batches (inputs, targets); inputs as in `Posterior.predict`.
        likelihood: a name, a Likelihood, or a callable from (outputs, targets) to the mean negative
            log-likelihood.
        method: "proximal", "calibrated" (closed form), "descent" (Algorithm 1), "advi", "bam",
            "published-bam", "sgld"; "plain" for the MAP estimate by Adam; "dropout" for the same with dropout
            on (`p=` inserts it); "weight-dropout" for single weights that return to where they began (`p=`);
            "swag" for a Gaussian of the second half of its path.
        epochs: passes over the data.
        validation: batches on which the posterior predictive is scored after every epoch; the best one is
            returned.
        patience: epochs without improvement on validation before training stops; None: never.
        validate_by: "nll", the negative log predictive probability of a datum, or "mse", the mean squared
            error of the predictive mean, for values.
        schedule: of the learning rate: "cosine" over all epochs, "halving" after every epoch from the second
            on, or "constant"; "swag" always has a constant one.
        num_data: size of the training set, if the loader's data set has no length.
        family: for "descent" and "advi", any density on R^D over the D random weights together, where q
            begins: a flow, a full or low-rank Gaussian (optim/family.py); None: a diagonal Gaussian.
        prior: the posterior of earlier data, which takes the place of the method's own prior; training
            begins at its mean (nn/prior.py). Not with a family, nor with "dropout", "weight-dropout" and
            "swag".
        bayesian, point: patterns (`bs.nn.select`) of the parameters that are random, and of those that are
            not; the latter are trained by Adam with the learning rate `point_lr`, unless they are frozen. A
            learned noise level is trained by Adam too, with its own learning rate.
        point_lr: 0 keeps them as they are: bayesian="last", point_lr=0 is a Bayesian last layer on a fixed
            body.
        seed: of the weights' noise, and of everything that draws from torch's global stream in training.
        checkpoint: a file written after every epoch. If it exists, the run continues from it, bitwise; a
            killed process loses only its unfinished epoch.
        checkpoint_every: also write it every so many steps within an epoch; with 1, only the current step is
            lost. A continued run skips the batches that its epoch has already used, so the loader must give
            them in the same order again: without shuffling, shuffled from torch's global stream (a DataLoader
            with shuffle=True), or from the loader's or its sampler's own generator. A loader that shuffles by
            other means (numpy, random), or a partly used iterator, ends the epoch with other batches.
        checkpoint_minutes: also write it after so many minutes, with the same conditions.
        accumulate: run every batch in so many pieces and add up their gradients: the memory of activations
            is that of a piece.
        autocast: run the network in bfloat16 where torch deems it safe; weights and losses stay in float32.
        batchnorm: "training" updates BatchNorm's statistics, "frozen" keeps and uses those of the module.
        group_options: by pattern of parameter names, options of the method for these parameters, such as
            {"head.*": {"lr": 1e-2}}; the first pattern that matches a parameter counts.
        callbacks: one or a list of those who get the row of the history after every epoch: a function of the
            row, or an object with `log(dict)`, such as `bnn.TensorBoard("logs")` or a run of wandb. In a
            distributed run the first process calls them.
        progress: show a progress bar; by default on a terminal and in a notebook.
        options: of the method, such as lr, prior_sd, temperature, draws.
    """
    check_model(model)
    check_batches("train_loader", train_loader)
    check_likelihood(likelihood)
    if validation is not None:
        check_batches("validation", validation)
    check_method(method, BAYESIAN)
    watchers = logs(callbacks)
    check_count("epochs", epochs, 3 if method == "swag" else 1)  # swag needs two epochs in its second half
    seed = int(seed) if isinstance(seed, Integral) and not isinstance(seed, bool) else seed  # of numpy, too
    if patience is not None:
        check_count("patience", patience)
        if validation is None:
            raise ValueError("patience counts epochs without improvement on validation; pass validation=")
    if checkpoint_every is not None:
        check_count("checkpoint_every", checkpoint_every)
        if checkpoint is None:
            raise ValueError(
                "checkpoint_every counts the steps between two writes; pass checkpoint=, the file"
            )
    if schedule not in SCHEDULES:
        raise unknown_name("schedule", schedule, SCHEDULES)
    if validate_by not in CRITERIA:
        raise unknown_name("measure on validation", validate_by, CRITERIA)
    if checkpoint_minutes is not None:
        check_number("checkpoint_minutes", checkpoint_minutes)
        if checkpoint is None:
            raise ValueError("checkpoint_minutes lie between two writes; pass checkpoint=, the file")
    check_count("accumulate", accumulate)
    if batchnorm not in BATCHNORM:
        raise unknown_name("policy of batchnorm", batchnorm, BATCHNORM)
    if point_lr != 0:
        positive("point_lr", point_lr)
    team = Team(model)
    team.check_loader(train_loader)
    if checkpoint_minutes is not None and team.size > 1:
        raise ValueError("the clocks of several processes differ: count steps, with checkpoint_every")
    device = computing_device(next(model.parameters()))
    like = as_likelihood(likelihood).to(device)
    data = num_data if num_data is not None else _size(train_loader)
    if checkpoint is not None and not isinstance(checkpoint, str | os.PathLike):
        raise TypeError(f"checkpoint must be the path of a file, such as 'run.ckpt'; got {checkpoint!r}")
    if checkpoint is not None and not Path(checkpoint).absolute().parent.is_dir():
        raise FileNotFoundError(f"checkpoint: there is no folder {Path(checkpoint).absolute().parent}")
    chosen = select(model, bayesian, point)
    settings = {"method": method, "epochs": epochs, "seed": seed, "num_data": data, "likelihood": like.name}
    batches = _batches(train_loader)
    rows = _batch_size(train_loader)
    batch_size = None if rows is None else rows * team.shares  # of all processes together
    settings |= {"point_lr": point_lr, "batch_size": batch_size, "batches": batches}
    settings |= {"accumulate": accumulate, "autocast": autocast, "batchnorm": batchnorm}
    settings |= {name: v for name, v in options.items() if isinstance(v, bool | int | float | str)}
    settings |= {"schedule": schedule, "validate_by": validate_by}
    if family is not None:
        settings["family"], options["family"] = repr(family), family
    if group_options:
        settings["group_options"] = [[pattern, dict(own)] for pattern, own in group_options.items()]
    earlier = None
    if prior is not None:
        if family is not None or method not in (*BAYESIAN, "plain"):
            raise ValueError(f"prior= goes with {', '.join(BAYESIAN)} and plain, without a family")
        given = [name for name in ("prior_mean", "prior_sd") if name in options]
        if given:
            raise ValueError(f"prior= says what {given[0]} says; give one of them")
        earlier = GaussianPrior(prior, chosen, options.get("temperature", 1.0) / data)
        earlier.write_mean()
        settings["prior"] = earlier.digest
        options = prior_options(method) | options
        if method != "plain":
            options["prior_mean"] = {name: prior.mean[name] for name, _ in chosen}
    if method in BAYESIAN and family is None and accumulate > 1:
        options["accumulate"] = accumulate
    steps = None if batches is None else batches * epochs
    groups = _groups(model, chosen, group_options or {})
    own = inspect.signature(fit).parameters
    trained = training_method(method, model, groups, data, batch_size, steps, seed, options, own)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        trained.optimizer, lambda t: 1.0 if steps is None else trained.lr_factor(schedule, t / steps, epochs)
    )
    run = Run(
        settings,
        model,
        like,
        trained,
        _point_optimizer(model, like, {name for name, _ in chosen}, point_lr),
        scheduler,
        train_loader,
        validation,
        epochs,
        seed,
        patience,
        None if checkpoint is None else Path(checkpoint),
        checkpoint_every,
        progress if team.is_first else False,
        validate_by,
        checkpoint_minutes,
        accumulate,
        autocast,
        batchnorm == "frozen",
        watchers if team.is_first else [],
        earlier,
    )
    if type(like).__module__ != Likelihood.__module__ or isinstance(like, Function):  # the user's own
        loader_states = run.loader_states()
        with epoch_stream(seed, 0, device):
            check_mean_loss(model, like, train_loader)
        run.set_loader_states(loader_states)  # as if no batch had been taken from the loader
    random = {name for name, _ in chosen}
    kept = [p for name, p in model.named_parameters() if p.requires_grad and name not in random]
    with _kept(kept if point_lr == 0 else []):
        return _result(run, *train(run))


@contextmanager
def _kept(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Parameters that need no gradient in the block, and keep their values."""
    for p in parameters:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in parameters:
            p.requires_grad_(True)


def _result(run: Run, state: RunState, interrupted: bool) -> NetworkFit:
    """The best posterior on validation, or the last, written into the module, and the status."""
    status = f"{run.epochs} epochs"
    if interrupted:
        status = f"interrupted in epoch {state.epoch + 1}"
    if out_of_patience(run, state) and state.epoch < run.epochs:
        status = f"stopped after {state.epoch} epochs, {run.patience} without improvement"
    best, epoch = state.best, state.best_epoch
    if best is None:
        best, epoch = run.method.posterior(run.likelihood), state.epoch
        if any(run.validated in row for row in state.history):
            status += ", none of them with a finite loss on validation"
    else:
        status += f", best on validation was epoch {epoch}"
    best.write_centre()
    optimizer = run.method.optimizer
    mean = getattr(optimizer, "mean_status", "")
    rest = optimizer.status.removeprefix(f"{mean}; ")
    parts = (_overfitting(state, run.validated) or mean, status, best.likelihood.status, rest)
    status = "; ".join(part for part in parts if part)
    return NetworkFit(
        best, status, TrainingHistory(state.history), epoch, state.seconds, optimizer, interrupted
    )


def _overfitting(state: RunState, key: str) -> str:
    """A sentence, if the loss on validation has risen since the best epoch and the training loss has not."""
    rows = [row for row in state.history if math.isfinite(row.get(key, math.inf))]
    later = [row for row in rows if row["epoch"] > state.best_epoch]
    if len(later) < LATER:
        return ""
    best = next(row for row in rows if row["epoch"] == state.best_epoch)
    average = sum(row[key] for row in later) / len(later)
    least = RISE * max(rows[0][key] - best[key], abs(best[key]))
    if average - best[key] < least or later[-1]["loss"] > best["loss"]:
        return ""
    return (
        f"overfitting on validation since epoch {state.best_epoch} ({best[key]:.3g}, then "
        f"{average:.3g} on average): stop earlier (patience=)"
    )


@dataclass(frozen=True)
class EnsembleFit:
    """Trained members and their mixture."""

    posterior: Ensemble
    members: list[NetworkFit] = field(repr=False)
    seconds: float

    @property
    def status(self) -> str:
        """How every member ended."""
        return "; ".join(f"member {i + 1}: {member.status}" for i, member in enumerate(self.members))

    def predict(self, x: Any, draws: int = 30, **options: Any) -> Any:
        """As `Posterior.predict`, with the draws split over the members."""
        return self.posterior.predict(x, draws, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mixture to a file, which `bnn.Posterior.load(path, model)` reads."""
        self.posterior.save(path)

    def summary(self) -> str:
        """How the members were trained, in a few lines each."""
        return "\n\n".join(f"member {i + 1}\n{member.summary()}" for i, member in enumerate(self.members))


def fit_ensemble(
    make_model: Callable[[], nn.Module],
    train_loader: Iterable[Any],
    likelihood: str | Likelihood | Callable[[Any, Any], Tensor] = "categorical",
    method: str = "plain",
    *,
    members: int = 5,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    **options: Any,
) -> EnsembleFit:
    """Train an ensemble: members that differ in their initial weights, the order of the data and the noise.

    Arguments:
        make_model: makes a module with fresh weights, drawn from torch's global random stream, which is
            seeded for every member and restored.
        method: as in `fit`; plain networks make the deep ensemble.
        seed: member m has the seed `seed + m`.
        checkpoint, options: as in `fit`; member m has the file `checkpoint.m`.
    """
    check_count("members", members)
    if isinstance(make_model, nn.Module):
        raise TypeError("fit_ensemble needs a function that makes a model with fresh weights; got a module")
    began = time.perf_counter()
    found = []
    for number in range(members):
        with epoch_stream(seed + number, 0, torch.device("cpu")):
            model = make_model()
        like = copy.deepcopy(as_likelihood(likelihood))  # every member may learn a noise level of its own
        file = None if checkpoint is None else f"{os.fspath(checkpoint)}.{number}"
        found.append(fit(model, train_loader, like, method, seed=seed + number, checkpoint=file, **options))
        if found[-1].interrupted:  # the members so far are the ensemble
            break
    mixture = Ensemble([member.posterior for member in found])
    return EnsembleFit(mixture, found, time.perf_counter() - began)


def _groups(
    model: nn.Module, chosen: list[tuple[str, nn.Parameter]], options: Mapping[str, Mapping[str, Any]]
) -> list[Any]:
    """The chosen parameters, in groups if some have options of their own."""
    if not options:
        return list(chosen)
    groups, rest = [], dict(chosen)
    for pattern, own in options.items():
        named = [(name, rest.pop(name)) for name, _ in select(model, pattern) if name in rest]
        groups.append({"params": named, **own})
    groups.append({"params": list(rest.items())})
    return [group for group in groups if group["params"]]


def _point_optimizer(
    model: nn.Module, like: Likelihood, random: set[str], lr: float
) -> torch.optim.Optimizer | None:
    """Adam for parameters that are trained but not random; None if there are none."""
    others = [p for name, p in model.named_parameters() if lr and p.requires_grad and name not in random]
    groups = [{"params": others, "lr": lr}, {"params": list(like.parameters()), "lr": NOISE_LR}]
    groups = [group for group in groups if group["params"]]
    return torch.optim.Adam(groups) if groups else None


def _batches(loader: Any) -> int | None:
    """Batches of an epoch, or None: a loader over a stream of data has no length."""
    try:
        count = len(loader)
    except TypeError:
        return None
    if not count:
        raise ValueError("the training loader has no batch: fewer data than a batch, with drop_last=True?")
    return count


def _size(loader: Any) -> int:
    data = getattr(loader, "dataset", None)
    if isinstance(data, Sized):
        return len(data)
    raise ValueError("the loader's data set has no length; pass num_data=, the size of the training set")


def _batch_size(loader: Any) -> int | None:
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None

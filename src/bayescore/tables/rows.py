"""A Bayesian network for rows of numbers: scaling, a held-out part, training, and predictions in the user's
units.

Inputs are z = (x - mean)/sd, bent towards +-3 so that a row far from all others stays within sight:
    z / sqrt(1 + (z/3)^2)                                                                                  (1)
The default network is several small perceptrons side by side (`models.MLPMembers`). With M members and S
draws f_sm the prediction is the mixture of all of them,
    p(y | x) = 1/(S M) sum_sm p(y | f_sm(x))                                                               (2)
Values are learned in units of their sd; outputs and noise are put back into the user's units, so that
everything that is read from a prediction is in them. What a network leaves over of the rows that it learned
from is less than its error elsewhere: if rows are held out, the best epoch has the least squared error on
them, and the noise is then the one that makes them most probable (`metrics.fit_noise`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayescore.checks import check_count, check_number, unknown_name
from bayescore.data.batches import Batches
from bayescore.metrics.forecasts import fit_noise
from bayescore.models.members import MLPMembers
from bayescore.nn.methods import METHODS
from bayescore.nn.training import fit
from bayescore.posteriors.base import Posterior, WeightPosterior
from bayescore.posteriors.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian, Likelihood
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction
from bayescore.rng import generator

__all__ = ["NOISES", "RowSettings", "RowsModel", "Scaling", "fit_rows"]

Floats = NDArray[np.float64]
NOISES = ("learned", "by row")
BEND = 3.0  # standard deviations, in (1)
RATE = 5e-3  # of the default network with the default method
STEPS = 600  # of a run whose epochs are not given
EPOCHS = (20, 200)  # fewest and most of such a run
BATCHES = 20  # of an epoch, if the batch size is not given
BATCH_SIZES = (16, 256)
LEAST_ROWS = 30  # fewer are all learned from: a held-out part would be too small to choose by


@dataclass(frozen=True)
class RowSettings:
    """How a network for rows is trained.

    Arguments:
        network: None for the default network, a module, or a function (inputs, outputs) -> module.
        hidden, members: of the default network: widths of its layers, and how many stand side by side.
        noise: of values: "learned", one number, or "by row", a second output of the network.
        lr: None: 0.005 for the default network and method, otherwise the method's own.
        epochs: None: as many as make about 600 steps, at least 20 and at most 200.
        batch_size: None: a twentieth of the rows, at least 16 and at most 256.
        early_stopping: choose the best epoch on a held-out part of the rows.
        validation_fraction: the size of that part.
        patience: epochs without improvement on it before training stops; None: never.
        scale: whether inputs and values are scaled; a module of one's own gets them without (1).
        options: others of the method.
    """

    method: str = "proximal"
    network: Any = None
    hidden: Sequence[int] = (64, 64)
    members: int = 8
    noise: str = "learned"
    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    early_stopping: bool = True
    validation_fraction: float = 0.15
    patience: int | None = None
    scale: bool = True
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        if self.noise not in NOISES:
            raise unknown_name("noise", str(self.noise), NOISES)
        check_count("members", self.members)
        if self.lr is not None:
            check_number("lr", self.lr)
        for name in ("epochs", "batch_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_number("validation_fraction", self.validation_fraction, "lie strictly between 0 and 1")
        if self.validation_fraction >= 1:
            raise ValueError(
                f"validation_fraction must lie strictly between 0 and 1; got {self.validation_fraction}"
            )


@dataclass(frozen=True)
class Scaling:
    """Mean and sd of columns; a constant column has the sd 1."""

    mean: Floats
    sd: Floats

    @classmethod
    def of(cls, values: Floats, weights: Floats | None, used: bool = True) -> Scaling:
        """That of columns (n, D); `used=False` leaves values as they are."""
        if not used:
            return cls(np.zeros(values.shape[1]), np.ones(values.shape[1]))
        largest = np.abs(values).max(0)
        unit = np.where(largest > 0, largest, 1.0)  # squares of very large numbers would overflow
        mean = np.average(values / unit, 0, weights)
        sd = np.sqrt(np.average((values / unit - mean) ** 2, 0, weights))
        return cls(mean * unit, np.where(sd > 1e-10, sd, 1.0) * unit)

    def apply(self, values: Floats) -> Floats:
        return (values - self.mean) / self.sd


@dataclass(frozen=True)
class RowsModel:
    """A trained network for rows.

    bent: whether inputs are, as in (1).  packed: whether the network has members.
    settings: those of the training, with what it chose in place of None.
    """

    posterior: WeightPosterior
    inputs: Scaling
    targets: Scaling | None
    bent: bool
    packed: bool
    status: str
    history: list[dict[str, float]] = field(repr=False)
    best_epoch: int
    seconds: float
    settings: RowSettings | None = field(default=None, repr=False)

    @property
    def noise_sd(self) -> Floats | None:
        """The learned noise of every output (outputs,) in the user's units; None for classes and by row."""
        likelihood = self.posterior.likelihood
        if self.targets is None or not isinstance(likelihood, Gaussian):
            return None
        return _noise_sd(likelihood, self.targets)

    def predict(self, x: Floats, draws: int = 30, seed: int = 0) -> ClassPrediction | ValuePrediction:
        """The prediction for rows (n, D), in the user's units; values are (n, outputs)."""
        rows = _inputs(x, self.inputs, self.bent, _kind(self.posterior.model))
        found = self.posterior.predict(rows, draws, seed=seed)
        if isinstance(found, ClassPrediction):
            if not self.packed:
                return found
            probs, entropy = found.probs, found.expected_entropy  # (n, K, M), (n, M)
            return ClassPrediction(found.draws * probs.shape[-1], probs.mean(-1), entropy.mean(-1))
        assert self.targets is not None
        outputs = found.outputs.double()
        if self.packed:
            outputs = _side_by_side(outputs)
        return _in_units(outputs, found.likelihood, self.targets)


def fit_rows(
    x: Floats,
    y: NDArray[Any],
    classes: int,
    settings: RowSettings,
    *,
    weights: Floats | None = None,
    validation: tuple[Floats, NDArray[Any]] | None = None,
    progress: bool | None = False,
    **options: Any,
) -> RowsModel:
    """Train a network on rows.

    Arguments:
        x: (n, D), finite numbers.
        y: numbers of classes (n,), or values (n, outputs).
        classes: how many classes, or 0 for values.
        weights: of the rows, positive or zero; a row of weight 2 stands for two.
        validation: rows to choose the best epoch by, instead of a part of these.
        options: of `nn.fit`: checkpoint, on_epoch, ...
    """
    s = settings
    if weights is not None:
        kept = weights > 0
        x, y, weights = x[kept], y[kept], weights[kept]
        if bool((weights == 1).all()):
            weights = None
    inputs = Scaling.of(x, weights, s.scale)
    targets = None if classes else Scaling.of(np.asarray(y, dtype=np.float64), weights, s.scale)
    packed = s.network is None
    bent = packed and s.scale
    outputs = classes or y.shape[1] * (2 if s.noise == "by row" else 1)
    network = _network(s, x.shape[1], outputs, classes)
    device = next(network.parameters(), torch.zeros(0)).device

    def tensors(rows: Floats, answers: NDArray[Any]) -> tuple[Tensor, Tensor]:
        found = torch.as_tensor(answers if targets is None else targets.apply(answers))
        found = found.long() if classes else found.to(_kind(network))
        if packed:  # every member has the same answers, along its own dimension
            found = found.unsqueeze(1).expand(-1, s.members, *found.shape[1:])
        return _inputs(rows, inputs, bent, _kind(network)), found

    train, held = np.arange(len(x)), np.arange(0)
    if s.early_stopping and validation is None and len(x) >= LEAST_ROWS:
        train, held = _divided(y if classes else None, len(x), s)
    w = None if weights is None else torch.as_tensor(weights)
    size = s.batch_size or min(max(len(train) // BATCHES, BATCH_SIZES[0]), BATCH_SIZES[1])
    batches = _batches(*tensors(x[train], y[train]), size, s.seed, None if w is None else w[train])
    judged: Batches | None = None
    if validation is not None:
        judged = _batches(*tensors(*validation), 1000, None, None)
    elif len(held):
        judged = _batches(*tensors(x[held], y[held]), 1000, None, None if w is None else w[held])
    one_noise = not classes and s.noise == "learned"
    epochs = s.epochs or min(max(STEPS // len(batches), EPOCHS[0]), EPOCHS[1])
    found = fit(
        network,
        batches,
        _likelihood(classes, s.noise).to(device),
        s.method,
        epochs=epochs,
        validation=judged,
        patience=s.patience if judged is not None else None,
        validate_by="mse" if one_noise and judged is not None else "nll",
        num_data=len(batches.dataset),
        seed=s.seed,
        progress=progress,
        **options,
        **{**_rate(s), **s.options},
    )
    assert isinstance(found.posterior, WeightPosterior)
    status = found.status
    if one_noise and targets is not None:
        before = found.posterior.likelihood.status
        if judged is not None:
            _fit_noise(found.posterior, judged, packed)
        noise = _noise_sd(found.posterior.likelihood, targets)
        status = status.replace(before, f"noise {', '.join(f'{sd:.3g}' for sd in noise)}")
    if packed:  # predictions in double do not depend on which rows are predicted together
        network.double()
    return RowsModel(
        found.posterior, inputs, targets, bent, packed, status, found.history, found.best_epoch,
        found.seconds, replace(s, **_rate(s), epochs=epochs, batch_size=size),
    )  # fmt: skip


def _network(s: RowSettings, inputs: int, outputs: int, classes: int) -> nn.Module:
    """A network with fresh weights; a module that was given is copied, so that it stays as it is."""
    if isinstance(s.network, nn.Module):
        return copy.deepcopy(s.network)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(s.seed, purpose="network").initial_seed())
        if s.network is None:
            return MLPMembers(inputs, s.hidden, outputs, s.members, classes=classes > 0)
        if not callable(s.network):
            raise TypeError(
                "network must be a module, a function (inputs, outputs) -> module, or None for the default; "
                f"got {type(s.network).__name__}"
            )
        try:
            inspect.signature(s.network).bind(inputs, outputs)
        except TypeError as error:
            raise TypeError(f"network must take the numbers of inputs and outputs; {error}") from error
        except ValueError:  # a callable without a signature
            pass
        made = s.network(inputs, outputs)
    if not isinstance(made, nn.Module):
        raise TypeError(f"network(inputs, outputs) must return a module; got {type(made).__name__}")
    return made


def _kind(network: nn.Module) -> torch.dtype:
    """The kind of floating point numbers of a network."""
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.float32)


def _rate(s: RowSettings) -> dict[str, Any]:
    if s.lr is not None:
        return {"lr": s.lr}
    return {"lr": RATE} if s.network is None and s.method == "proximal" else {}


def _likelihood(classes: int, noise: str) -> Likelihood:
    if classes:
        return Categorical()
    return HeteroscedasticGaussian() if noise == "by row" else Gaussian("learned")


def _inputs(x: Floats, scaling: Scaling, bent: bool, kind: torch.dtype) -> Tensor:
    z = scaling.apply(x)
    if bent:
        z = z / np.hypot(1.0, z / BEND)  # (1)
    return torch.as_tensor(z, dtype=kind)


def _batches(x: Tensor, y: Tensor, size: int, seed: int | None, weights: Tensor | None) -> Batches:
    return Batches(lambda rows, _: x[rows], y, size, seed, weights)


def _divided(y: NDArray[Any] | None, count: int, s: RowSettings) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows to learn from and rows to choose by; of classes, a share of each, and never all of one."""
    order = torch.randperm(count, generator=generator(s.seed, purpose="split")).numpy()
    most = max(1, round(s.validation_fraction * count))
    if y is None:
        return order[most:], order[:most]
    place = np.empty(count)  # of a row within its class, from above 0 to 1
    for label in np.unique(y):
        mine = y[order] == label
        place[mine] = np.arange(1, mine.sum() + 1) / mine.sum()
    held = np.zeros(count, dtype=bool)
    held[np.argsort(place, kind="stable")[:most]] = True
    held &= place < 1
    return order[~held], order[held]


def _fit_noise(posterior: Posterior, held: Batches, packed: bool) -> None:
    """Give the likelihood the noise that makes held-out values most probable."""
    rows, answers = zip(*held, strict=True)
    outputs = posterior.predict(torch.cat(rows)).outputs
    y = torch.cat(answers).to(outputs)
    if packed:
        outputs, y = _side_by_side(outputs), y[:, 0]
    sd = fit_noise(outputs.unsqueeze(2), y.unsqueeze(1))  # of (S, n, 1, D)
    assert isinstance(posterior.likelihood, Gaussian)
    posterior.likelihood.log_noise.data.copy_(sd.log().reshape(()))


def _side_by_side(outputs: Tensor) -> Tensor:
    """Every member as a draw, (2): (S, n, M, D) -> (S M, n, D)."""
    return outputs.transpose(1, 2).flatten(0, 1)


def _in_units(outputs: Tensor, likelihood: Likelihood, targets: Scaling) -> ValuePrediction:
    """Values in the user's units, from outputs (S, n, ...) in units of the values' sd."""
    mean, sd = (torch.as_tensor(v).to(outputs) for v in (targets.mean, targets.sd))
    if isinstance(likelihood, HeteroscedasticGaussian):
        centre, log_sd = likelihood.split(outputs)
        whole = torch.cat([centre * sd + mean, log_sd + sd.log()], -1)
        return ValuePrediction(len(whole), whole, likelihood)
    noise = Gaussian(_noise_sd(likelihood, targets).tolist())
    return ValuePrediction(len(outputs), outputs * sd + mean, noise)


def _noise_sd(likelihood: Likelihood, targets: Scaling) -> Floats:
    """The learned noise of every output in the user's units."""
    assert isinstance(likelihood, Gaussian)
    return float(np.ravel(likelihood.noise_sd)[0]) * targets.sd

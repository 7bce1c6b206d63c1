"""Fine-tuning: the body's prior is at the pretrained weights, the head's at zero, and their rates differ.

With theta_0 the pretrained weights, the prior is N(theta_0, s0^2) for the body and N(0, s0^2) for the head,
which starts at zero, where the loss is log K. The head learns ten times faster than the body. BatchNorm keeps
the statistics of the pretrained network ("frozen", the default), learns new ones in training ("training"), or
they are estimated once more at the mean of the trained posterior ("re-estimated").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from bayescore.checks import check_count, unknown_name
from bayescore.data.batches import Batches
from bayescore.metrics.evaluation import evaluate
from bayescore.model_folder import ModelDescription, SavedModel, write_model
from bayescore.models.networks import Classifier
from bayescore.nn.history import TrainingHistory
from bayescore.nn.methods import METHODS as NETWORK_METHODS
from bayescore.nn.training import NetworkFit, fit
from bayescore.posteriors.base import Posterior, WeightPosterior
from bayescore.posteriors.ensemble import Ensemble
from bayescore.posteriors.forward import own_tensors, recalibrate_batchnorm
from bayescore.posteriors.laplace import fit_laplace
from bayescore.posteriors.prediction import ClassPrediction
from bayescore.rng import generator

__all__ = [
    "BATCHNORM",
    "METHODS",
    "FineTuning",
    "TrainedModel",
    "fine_tune",
    "prediction_rows",
    "seeded",
    "trained_model",
]

BATCHNORM = ("frozen", "training", "re-estimated")
METHODS = (*NETWORK_METHODS, "laplace", "ensemble", "last-layer")
#: body and head, by method; a method that is not here has its own default for both
RATES = {
    **dict.fromkeys(("proximal", "plain", "advi", "dropout", "weight-dropout", "swag"), (1e-4, 1e-3)),
    "descent": (3e-4, 3e-3),
    "sgld": (1e-3, 1e-2),
}
#: what the methods beyond those of `nn.fit` train with
TRAINED_AS = {"laplace": "plain", "ensemble": "plain", "last-layer": "proximal"}
CENTRED = ("proximal", "descent", "advi", "sgld", "calibrated", "bam", "published-bam", "plain", "dropout",
           "weight-dropout", "swag")  # fmt: skip


@dataclass(frozen=True)
class FineTuning:
    """How a network is fine-tuned.

    Arguments:
        method: of `bayescore.nn.fit`, or "laplace" (of the plain network's last layer), "ensemble" (of plain
            networks), "last-layer" (the head by ProximalScore, the body as points).
        body_lr, head_lr: learning rates; None: those of the method, the head's ten times the body's.
        pretrained: whether the body's weights are; if not, body and head have the head's rate, and the prior
            is centred at zero.
        batchnorm: "frozen", "training" or "re-estimated".
        draws: of the prediction of the test data.
        members: of an ensemble.
        options: of the method.
    """

    method: str = "proximal"
    epochs: int = 10
    batch_size: int = 16
    body_lr: float | None = None
    head_lr: float | None = None
    pretrained: bool = True
    batchnorm: str = "frozen"
    patience: int | None = None
    draws: int = 30
    members: int = 5
    seed: int = 0
    accumulate: int = 1
    autocast: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        if self.batchnorm not in BATCHNORM:
            raise unknown_name("policy of batchnorm", self.batchnorm, BATCHNORM)
        for name in ("epochs", "batch_size", "draws", "members", "accumulate"):
            check_count(name, getattr(self, name))

    @property
    def trained_as(self) -> str:
        """The method of `nn.fit` behind the method."""
        return TRAINED_AS.get(self.method, self.method)

    @property
    def rates(self) -> tuple[float, float] | None:
        """Learning rates of body and head; None: the method's own default."""
        body, head = RATES.get(self.trained_as, (None, None))
        body = self.body_lr or (body if self.pretrained else head)
        head = self.head_lr or head
        return None if body is None or head is None else (body, head)


@dataclass(frozen=True)
class TrainedModel:
    """A fine-tuned network and its scores on the test data."""

    description: ModelDescription
    posterior: Posterior
    prediction: ClassPrediction
    y: torch.Tensor
    status: str
    seconds: float
    history: TrainingHistory = field(repr=False)
    test: Any = field(repr=False)

    @property
    def scores(self) -> dict[str, float]:
        """The metrics of the description."""
        return self.description.metrics

    def save(self, folder: str | os.PathLike[str]) -> SavedModel:
        """Write the model into a folder."""
        return write_model(folder, self.description, self.posterior)


def fine_tune(
    make: Callable[[], Classifier],
    train: Callable[[int], Batches],
    validation: Batches,
    settings: FineTuning,
    *,
    plain: Callable[[], Batches],
    **options: Any,
) -> tuple[Posterior, list[NetworkFit]]:
    """Fine-tune a network, or the members of an ensemble; returns the posterior and the fits.

    Arguments:
        make: makes the network; torch's global stream, from which it draws, is seeded for every member.
        train: makes the training batches, from a seed.
        plain: makes batches of the training data without augmentation, for what is estimated after training.
        options: of `nn.fit`: checkpoint, progress, callbacks, ...
    """
    count = settings.members if settings.method == "ensemble" else 1
    fits = []
    for number in range(count):
        seed = settings.seed + number
        with seeded(seed):
            network = make()
        own = dict(options)
        if count > 1 and own.get("checkpoint") is not None:
            own["checkpoint"] = f"{os.fspath(own['checkpoint'])}.{number}"
        fits.append(_fit(network, train(seed), validation, settings, seed, own))
        if fits[-1].interrupted:  # the members so far are the ensemble
            break
    for found in fits:
        if settings.batchnorm == "re-estimated" and isinstance(found.posterior, WeightPosterior):
            _estimate_statistics(found.posterior, plain())
    if settings.method == "ensemble":
        return Ensemble([found.posterior for found in fits]), fits
    if settings.method == "laplace":
        network = fits[0].posterior.model  # type: ignore[attr-defined]
        return fit_laplace(network, plain(), prior_sd="validation", validation=validation), fits
    return fits[0].posterior, fits


def _fit(
    network: Classifier,
    train: Batches,
    validation: Batches,
    s: FineTuning,
    seed: int,
    options: dict[str, Any],
) -> NetworkFit:
    chosen = dict(s.options)
    method, head = s.trained_as, f"{network.head}.*"
    if s.pretrained and method in CENTRED:
        chosen.setdefault("prior_mean", "current")
    own: dict[str, Any] = {} if chosen.get("prior_mean") != "current" else {"prior_mean": 0.0}
    if s.rates is not None:
        chosen.setdefault("lr", s.rates[0])
        own["lr"] = s.rates[1] if "lr" not in s.options else chosen["lr"]
    if method == "dropout":
        has_own = any(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in network.module.modules())
        chosen.setdefault("p", None if has_own else 0.1)
    if s.method == "last-layer":
        options = {"bayesian": head, "point_lr": chosen.get("lr", 1e-4), **options}
        chosen |= own
        own = {}
    return fit(
        network.module,
        train,
        method=method,
        epochs=s.epochs,
        validation=validation,
        patience=s.patience,
        seed=seed,
        accumulate=s.accumulate,
        autocast=s.autocast,
        batchnorm="training" if s.batchnorm == "training" else "frozen",
        group_options={head: own} if own else None,
        **options,
        **chosen,
    )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's global stream, seeded for the length of the block."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(seed, purpose="network").initial_seed())
        yield


def _estimate_statistics(posterior: WeightPosterior, batches: Batches) -> None:
    """BatchNorm's statistics of the training data at the mean of the posterior."""
    device = next(posterior.model.parameters()).device
    with posterior.mean_() as model:
        recalibrate_batchnorm(model, batches, device)
        found = {name: value.detach().clone() for name, value in own_tensors(model).items()}
    posterior.fixed.update({name: found[name] for name in posterior.fixed})
    posterior.write_centre()  # for what is made of the module, such as Laplace's approximation


def trained_model(
    posterior: Posterior,
    fits: list[NetworkFit],
    description: dict[str, Any],
    settings: FineTuning,
    predict: Callable[[Any], ClassPrediction],
    test: Any,
    outside: Any = None,
) -> TrainedModel:
    """The model with its scores on the test data, and how well it tells data of another kind by entropy."""
    prediction = predict(test)
    scores = evaluate(prediction, test.y, None if outside is None else predict(outside))
    whole = ModelDescription(**description, settings=asdict(settings), metrics=scores)
    status = "; ".join(found.status for found in fits)
    seconds = sum(found.seconds for found in fits)
    return TrainedModel(whole, posterior, prediction, test.y, status, seconds, fits[0].history, test)


def prediction_rows(
    column: str, names: list[str] | tuple[str, ...], prediction: ClassPrediction, classes: list[str]
) -> list[dict[str, str | int | float]]:
    """A row for each of the things that are named: class, probability, entropy, mutual information."""
    top = prediction.classes.tolist()
    probability = prediction.probs.max(1).values.tolist()
    entropy, information = prediction.entropy.tolist(), prediction.mutual_information.tolist()
    return [
        {
            column: name,
            "class": classes[top[i]],
            "probability": probability[i],
            "entropy": entropy[i],
            "mutual_information": information[i],
        }
        for i, name in enumerate(names)
    ]

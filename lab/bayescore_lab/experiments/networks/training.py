"""A training loop beside `nn.fit`, which has neither IVON nor the settings that the paper prints for MNIST.

All arms must see the same batches in the same order, start from the same weights, have their learning rate
lowered along the same cosine, and have the epoch chosen on validation by one rule; and the recorded numbers
depend on the random streams used here. The two arms "as printed" do what the paper's appendix C says and
nothing else (reference/networks.py): no cosine, and no averaging of the weights (`average`), which all others
may use.

A learner wraps an optimizer: a step on a mini-batch, and the posterior so far.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.data import Images, Split, images
from bayescore.data import split as split_data
from bayescore.models import mlp
from bayescore.nn import DropoutPosterior, GaussianPosterior, InsertedDropout, PointPosterior, Posterior
from bayescore.rng import generator
from bayescore_lab.experiments.networks.mnist_arms import EpochBudget
from bayescore_lab.methods import network_optimizer
from bayescore_lab.reference.networks import PrintedADVI, PrintedProximal

__all__ = ["LEARNERS", "Learned", "Learner", "batches", "learn", "mnist_split", "network", "nll", "pictures"]


@dataclass(frozen=True)
class Learned:
    """The posterior of the best epoch; None where no validation value was finite."""

    posterior: Posterior | None
    epoch: int
    validation_nll: float
    steps: int
    trace: dict[str, list[float]]


def network(seed: int, hidden: tuple[int, ...] = (1000, 1000, 1000)) -> nn.Sequential:
    """The paper's MLP; a seed gives every method the same initial weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return mlp(784, hidden, 10)


def learn(
    kind: str, options: dict[str, Any], split: Split, model: nn.Module, seed: int, s: EpochBudget
) -> Learned:
    """Learn with the method `kind`, best epoch on validation.

    Dropout and IVON draw from torch's global stream, which has a seed of this run and is put back.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(seed, purpose="training").initial_seed())
        return _learn(kind, options, split, model, seed, s)


def _learn(
    kind: str, options: dict[str, Any], split: Split, model: nn.Module, seed: int, s: EpochBudget
) -> Learned:
    count = len(split.train)
    per_epoch = -(-count // s.batch_size)
    learner = LEARNERS[kind](model, count, -(-count // per_epoch), per_epoch * s.epochs, seed, options)
    rng = generator(seed, "cpu", "batches")
    best: tuple[float, int, Posterior | None] = (math.inf, 0, None)
    trace: dict[str, list[float]] = {"epoch": [], "validation_nll": []}
    for epoch in range(1, s.epochs + 1):
        try:
            for rows in batches(count, s.batch_size, rng):
                learner.step(split.train.x[rows], split.train.y[rows])
        except FloatingPointError:  # gradients were not finite for many steps: it has diverged
            break
        if epoch % s.every and epoch < s.epochs:
            continue
        posterior = learner.posterior()
        if posterior is None:
            continue
        value = nll(posterior, split.validation.x, split.validation.y, s.draws)
        trace["epoch"].append(epoch)
        trace["validation_nll"].append(value)
        if value < best[0]:
            best = (value, epoch, posterior)
        if not math.isfinite(value) or (best[2] is not None and epoch - best[1] >= s.patience):
            break
    return Learned(best[2], best[1], best[0], learner.t, trace)


def nll(posterior: Posterior, x: Tensor, y: Tensor, draws: int) -> float:
    """Mean negative log probability of the labels under the averaged prediction."""
    return -float(posterior.predict(x, draws).log_prob(y).mean())


@cache
def pictures(name: str, part: str) -> Images:
    """A part of a data set in the pixel scale of MNIST."""
    return images(name, part, like="mnist")


@cache
def mnist_split(percent: float, seed: int) -> Split:
    """`percent` of the 60,000 training images; of the rest, 5,000 (or all, if fewer) to choose by."""
    data = pictures("mnist", "train")
    return split_data(data, round(len(data) * percent / 100), seed)


def batches(count: int, size: int, rng: torch.Generator) -> list[Tensor]:
    """All of `count` in random order, in batches of nearly equal size, at most `size`."""
    return list(torch.randperm(count, generator=rng).tensor_split(-(-count // size)))


class Learner(ABC):
    """One method on one network.

    Arguments:
        model: trained in place.
        num_data: images in the training set.
        batch_size: of the batches to come.
        steps: how many there will be at most.
        seed: of the method's own randomness.
        options: of the method.
    """

    scheduled = True
    #: whether the learner averages for its optimizer, which cannot: (3) of optim/base.py
    averages = False

    def __init__(
        self,
        model: nn.Module,
        num_data: int,
        batch_size: int,
        steps: int,
        seed: int,
        options: Mapping[str, Any],
    ) -> None:
        self.model, self.num_data, self.batch_size, self.steps = model, num_data, batch_size, steps
        self.seed, self.t = seed, 0
        chosen = dict(options)
        self.share = chosen.pop("average", 0.0) if self.averages else 0.0
        self.optimizer: Any = self.make(chosen)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.average = [p.detach().clone() for p in model.parameters()] if self.share else []

    @abstractmethod
    def make(self, options: dict[str, Any]) -> Any:
        """The optimizer."""

    @abstractmethod
    def learn(self, loss: Callable[[], Tensor]) -> None:
        """One step on the mean loss of a batch."""

    @abstractmethod
    def found(self) -> Posterior | None:
        """What has been learned, around the weights in the module; None while there is nothing yet."""

    def posterior(self) -> Posterior | None:
        """What has been learned so far, around the averaged weights where there are any."""
        with self.averaged():
            return self.found()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averages are in the module for a while."""
        if not self.share:
            yield
            return
        weights = list(self.model.parameters())
        last = [p.detach().clone() for p in weights]
        try:
            write(weights, self.average)
            yield
        finally:
            write(weights, last)

    def step(self, x: Tensor, y: Tensor) -> None:
        if self.scheduled:
            fall = 0.5 * (1 + math.cos(math.pi * self.t / self.steps))
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * fall
        self.model.train()
        self.learn(lambda: F.cross_entropy(self.model(x), y))
        self.t += 1
        if self.share:
            for mean, p in zip(self.average, self.model.parameters(), strict=True):
                mean.lerp_(p.detach(), 1 / max(1.0, self.share * self.t))


@torch.no_grad()
def write(weights: Iterable[Tensor], values: Iterable[Tensor]) -> None:
    """Copy values into weights."""
    for p, value in zip(weights, values, strict=True):
        p.copy_(value)


class Sampling(Learner):
    """An optimizer of ours, by its recorded name.

    `init_curvature` F, of one image, stands for the init_sd that it implies, sqrt(temperature/(N F)), and
    `prior_curvature` for such a prior_sd: they mean the same whatever the number of images.
    """

    name: str

    def make(self, options: dict[str, Any]) -> Any:
        options.setdefault("batch_size", self.batch_size)
        for name in ("init", "prior"):
            if f"{name}_curvature" in options:
                total = self.num_data * options.pop(f"{name}_curvature")
                options[f"{name}_sd"] = math.sqrt(options.get("temperature", 1.0) / total)
        return self.optimizer_of_ours(**options)

    def optimizer_of_ours(self, **options: Any) -> Any:
        weights = self.model.named_parameters()
        return network_optimizer(self.name, weights, self.num_data, seed=self.seed, **options)

    def learn(self, loss: Callable[[], Tensor]) -> None:
        for _ in range(self.optimizer.param_groups[0]["draws"]):
            with self.optimizer.sample():
                loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def found(self) -> Posterior | None:
        posterior: Posterior = self.optimizer.posterior(self.model)
        return posterior


class Proximal(Sampling):
    """ProximalScore, or ProximalDescent where the options say solver="gradient"."""

    name = "proximal"


class Ours(Sampling):
    """The library's default optimizer, as a user gets it who sets nothing."""

    name = "default"

    def make(self, options: dict[str, Any]) -> Any:
        if "residual" in options:
            options["batch_size"] = self.batch_size
        return self.optimizer_of_ours(**options)


class ADVI(Sampling):
    """ADVI with Adam."""

    name = "advi"


class BaM(Sampling):
    """Diagonal BaM."""

    name = "bam"


class SGLD(Sampling):
    """Langevin dynamics; after half of the steps its states are kept, evenly to the end."""

    name = "sgld"

    def make(self, options: dict[str, Any]) -> Any:
        keep = 30
        burn_in = self.steps // 2
        thin = max(1, (self.steps - burn_in) // keep)
        return self.optimizer_of_ours(burn_in=burn_in, thin=thin, keep=keep, **options)

    def found(self) -> Posterior | None:
        return super().found() if self.optimizer.param_groups[0]["kept"] else None


class Plain(Learner):
    """The network itself, by AdamW."""

    averages = True

    def make(self, options: dict[str, Any]) -> Any:
        return torch.optim.AdamW(self.model.parameters(), **options)

    def learn(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.zero_grad()
        loss().backward()
        self.optimizer.step()

    def found(self) -> Posterior | None:
        return PointPosterior(self.model)


class Dropout(Plain):
    """AdamW with dropout after every activation, which stays on when predicting."""

    def make(self, options: dict[str, Any]) -> Any:
        self.p = options.pop("p")
        InsertedDropout(self.model, self.p)
        return super().make(options)

    def found(self) -> Posterior | None:
        return DropoutPosterior(self.model, self.p)


class IVON(Learner):
    """The peer: IVON, from the package ivon-opt."""

    averages = True

    def make(self, options: dict[str, Any]) -> Any:
        try:
            from ivon import IVON as Optimizer
        except ImportError:
            raise ImportError("IVON is a peer of the benchmarks: pip install './lab[peers]'") from None
        torch.manual_seed(self.seed)  # it draws from torch's global stream
        ess = self.num_data / options.pop("temperature", 1.0)
        return Optimizer(self.model.parameters(), ess=ess, **options)

    def learn(self, loss: Callable[[], Tensor]) -> None:
        with self.optimizer.sampled_params(train=True):
            self.optimizer.zero_grad()
            loss().backward()
        self.optimizer.step()

    def found(self) -> Posterior | None:
        mean, sd = {}, {}
        (group,) = self.optimizer.param_groups
        flat = (group["ess"] * (group["hess"] + group["weight_decay"])).rsqrt()
        start = 0
        for name, p in self.model.named_parameters():
            mean[name] = p.detach().clone()
            sd[name] = flat[start : start + p.numel()].view_as(p).clone()
            start += p.numel()
        return GaussianPosterior(self.model, mean, sd)


class ProximalAsPrinted(Learner):
    """Algorithm 1 with SGD, momentum 0.5, learning rate 1e-2, on the loss as printed."""

    scheduled = False

    def make(self, options: dict[str, Any]) -> Any:
        return PrintedProximal(self.model, self.num_data, self.steps, seed=self.seed, **options)

    def learn(self, loss: Callable[[], Tensor]) -> None:
        self.optimizer.step(loss)

    def found(self) -> Posterior | None:
        posterior: Posterior = self.optimizer.posterior()
        return posterior


class ADVIAsPrinted(ProximalAsPrinted):
    """ADVI with SGD, momentum 0.5, learning rate 1e-2."""

    def make(self, options: dict[str, Any]) -> Any:
        return PrintedADVI(self.model, self.num_data, self.steps, seed=self.seed, **options)


LEARNERS: dict[str, type[Learner]] = {
    "plain": Plain,
    "dropout": Dropout,
    "ours": Ours,
    "proximal": Proximal,
    "advi": ADVI,
    "bam": BaM,
    "sgld": SGLD,
    "ivon": IVON,
    "proximal-as-printed": ProximalAsPrinted,
    "advi-as-printed": ADVIAsPrinted,
}

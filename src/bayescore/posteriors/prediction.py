"""What a posterior predicts: probabilities with their two kinds of uncertainty, or values with intervals.

Classes, from S draws with probabilities p_s, H the entropy:
    probs = mean_s p_s,   entropy = H(probs),   mutual_information = H(probs) - mean_s H(p_s)          (1)
Values, from S outputs o_s of a likelihood with mean mu, variance v and distribution function C:
    mean = mean_s mu(o_s),   std^2 = mean_s v(o_s) + Var_s mu(o_s),   quantile: mean_s C(o_s, y) = q   (2)
    CRPS = sum over whole numbers k of (mean_s C(o_s, k) - 1[y <= k])^2, for counts                    (3)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayescore.metrics.forecasts import mixture_crps
from bayescore.posteriors.likelihoods import Function, Likelihood, check_event, check_labels

__all__ = [
    "ClassPrediction",
    "Prediction",
    "ValuePrediction",
    "entropy",
    "mixture",
    "prediction_from_outputs",
]


def entropy(probs: Tensor, binary: bool = False) -> Tensor:
    """Entropy in nats over dimension 1, or elementwise for binary outcomes."""
    if binary:
        return -(torch.xlogy(probs, probs) + torch.xlogy(1 - probs, 1 - probs))
    return -torch.xlogy(probs, probs).sum(1)


@dataclass(frozen=True)
class Prediction:
    """A prediction from `draws` draws of the weights."""

    draws: int

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"a {type(self).__name__} has no {name}; classes have probs, entropy, mutual_information "
            "(epistemic) and expected_entropy (aleatoric), values have mean, std, epistemic_std, "
            f"aleatoric_std, quantile and interval{self._remedy()}"
        )

    def _remedy(self) -> str:
        """What to change, if predictions are not what was expected because of the likelihood."""
        return ""


@dataclass(frozen=True, repr=False)
class ClassPrediction(Prediction):
    """Class probabilities; for binary outcomes, the probability of 1 of every output.

    probs: (n, K, ...).  expected_entropy: mean entropy of the single draws, the part of the entropy that
    more data would not remove (aleatoric); the rest is `mutual_information` (epistemic).
    """

    probs: Tensor
    expected_entropy: Tensor
    binary: bool = False

    def __repr__(self) -> str:
        shape, has = tuple(self.probs.shape), "probs, classes, entropy, mutual_information, log_prob"
        return f"<ClassPrediction of the shape {shape} from {self.draws} draws: {has}>"

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty, in nats."""
        return entropy(self.probs, self.binary)

    @property
    def mutual_information(self) -> Tensor:
        """The part of the entropy that comes from not knowing the weights."""
        return (self.entropy - self.expected_entropy).clamp_min(0)

    @property
    def mean(self) -> Tensor:
        """The same as `probs`."""
        return self.probs

    @property
    def std(self) -> Tensor:
        """Standard deviation of the outcome's indicator."""
        return (self.probs * (1 - self.probs)).sqrt()

    @property
    def classes(self) -> Tensor:
        """The most probable class."""
        return (self.probs > 0.5).long() if self.binary else self.probs.argmax(1)

    def log_prob(self, y: Tensor) -> Tensor:
        """log of the averaged probability of the labels y, summed over the event, (n,)."""
        p = self.probs.clamp(torch.finfo(self.probs.dtype).tiny, 1)
        if self.binary:
            check_event(self.probs, y)
            if not bool(((y == 0) | (y == 1)).all()):
                raise ValueError("binary outcomes must be 0 or 1")
            chosen = torch.where(y.bool(), p, (1 - self.probs).clamp_min(torch.finfo(p.dtype).tiny))
        else:
            check_labels(y, p.shape[1])
            chosen = p.gather(1, y.unsqueeze(1)).squeeze(1)
        return chosen.log().flatten(1).sum(1) if chosen.dim() > 1 else chosen.log()


@dataclass(frozen=True, repr=False)
class ValuePrediction(Prediction):
    """Values: an equal mixture over the draws.

    outputs: (S, n, ...), the network's outputs under every draw.
    """

    outputs: Tensor
    likelihood: Likelihood

    def __repr__(self) -> str:
        shape = tuple(self.outputs.shape[1:])
        has = "mean, std, epistemic_std, aleatoric_std, quantile, interval, log_prob"
        return f"<ValuePrediction from outputs of the shape {shape}, {self.draws} draws: {has}>"

    def _remedy(self) -> str:
        if not isinstance(self.likelihood, Function):
            return ""
        return (
            "; a loss function of yours leaves the outputs as they are: likelihood='categorical' (which is "
            "cross_entropy) or 'bernoulli' gives probs"
        )

    @property
    def mean(self) -> Tensor:
        return self.likelihood.mean(self.outputs).mean(0)

    @property
    def std(self) -> Tensor:
        """Total standard deviation (2): noise and weights."""
        between = self.likelihood.mean(self.outputs).var(0, correction=0)
        return (self.likelihood.variance(self.outputs).mean(0) + between).sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """The part of `std` that comes from not knowing the weights."""
        return self.likelihood.mean(self.outputs).std(0, correction=0)

    @property
    def aleatoric_std(self) -> Tensor:
        """The part of `std` that more data would not remove: the noise of the values."""
        return self.likelihood.variance(self.outputs).mean(0).sqrt()

    def quantile(self, q: float | Sequence[float]) -> Tensor:
        """The q-quantile of every output, by bisection of the mixture's distribution function; for several
        q, one after the other, (len(q), n, ...)."""
        if isinstance(q, Sequence | Tensor | np.ndarray):
            return torch.stack([self.quantile(float(one)) for one in q])
        if not 0 < q < 1:
            raise ValueError(f"q must lie in (0, 1); got {q}")
        centre, spread = self.mean, self.std
        reach = spread * (2 / math.sqrt(q * (1 - q))) + 1e-6  # Cantelli's bound with a margin
        low, high = centre - reach, centre + reach
        if self.likelihood.discrete:
            low, high = low.floor().clamp_min(0) - 1, high.ceil()
        for _ in range(64):
            middle = (low + high) / 2
            if self.likelihood.discrete:
                middle = middle.floor()
            above = self.likelihood.cdf(self.outputs, middle).mean(0) >= q
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return high

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval with probability `level`."""
        if not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1); got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def cdf(self, y: Tensor) -> Tensor:
        """P(Y <= y) of every output: uniform over data if the prediction is calibrated (the PIT)."""
        return torch.stack([self.likelihood.cdf(o, y) for o in self.outputs]).mean(0)

    def crps(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score of every output: the less, the better, in units of y."""
        if not self.likelihood.discrete:
            sd = self.likelihood.variance(self.outputs).sqrt()
            return mixture_crps(self.likelihood.mean(self.outputs), y.to(self.outputs), sd)
        total = torch.zeros_like(self.mean)
        for k in range(int(max(float(y.max()), float(self.quantile(1 - 1e-6).max()))) + 1):
            at = torch.full_like(total, k)
            total += (self.cdf(at) - (y <= k).to(total)).square()  # (3)
        return total

    def log_prob(self, y: Tensor) -> Tensor:
        """log of the averaged density of y, (n,)."""
        rows = torch.stack([self.likelihood.log_prob(o, y) for o in self.outputs])
        return rows.logsumexp(0) - math.log(len(rows))


def prediction_from_outputs(
    outputs: Iterable[Tensor], likelihood: Likelihood
) -> ClassPrediction | ValuePrediction:
    """The prediction from the outputs (n, ...) of one draw after the other.

    For classes only sums over draws are kept; for values, all outputs.
    """
    if likelihood.kind == "values":
        stacked = torch.stack(list(outputs))  # (S, n, ...)
        return ValuePrediction(len(stacked), stacked, likelihood)
    binary = likelihood.kind == "binary"
    count, probs_sum, entropy_sum = 0, torch.zeros(()), torch.zeros(())
    for out in outputs:
        probs = likelihood.probs(out.double() if binary else out)  # in float32 1 - p would lose its digits
        h = entropy(probs, binary)
        probs_sum, entropy_sum = (probs_sum.add_(probs), entropy_sum.add_(h)) if count else (probs, h)
        count += 1
    return ClassPrediction(count, probs_sum / count, entropy_sum / count, binary)


def mixture(
    predictions: list[ClassPrediction] | list[ValuePrediction],
) -> ClassPrediction | ValuePrediction:
    """The mixture of equally probable predictions.

    For values, a prediction with fewer draws than the others repeats its draws, as evenly as possible.
    """
    count = sum(p.draws for p in predictions)
    first = predictions[0]
    if isinstance(first, ClassPrediction):
        rows = [p for p in predictions if isinstance(p, ClassPrediction)]
        probs = torch.stack([p.probs for p in rows]).mean(0)
        expected_entropy = torch.stack([p.expected_entropy for p in rows]).mean(0)
        return ClassPrediction(count, probs, expected_entropy, first.binary)
    most = max(p.draws for p in predictions)
    outputs = [p.outputs[torch.arange(most) * p.draws // most] for p in predictions]
    return ValuePrediction(most * len(outputs), torch.cat(outputs), first.likelihood)

"""Likelihoods of networks: a loss that is the mean over data of the negative log-likelihood.

    loss(outputs, y) = -(1/n) sum_i log p(y_i | outputs_i)                                             (1)
with log p summed over the outputs of a datum, the event. (`mse_loss` averages over them, so that for ten
outputs it is too small by a factor of ten.) Each likelihood also computes from the outputs the mean, variance
and distribution function, or the probabilities.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.checks import unknown_name
from bayescore.posteriors.inputs import require_tensor

__all__ = [
    "Bernoulli",
    "Categorical",
    "Function",
    "Gaussian",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Poisson",
    "as_likelihood",
    "frozen",
    "normal_cdf",
]


IGNORED = -100  # torch's label of a datum without one


def over_event(terms: Tensor) -> Tensor:
    """Sum (n, *event) over the event, to (n,)."""
    return terms.flatten(1).sum(1) if terms.dim() > 1 else terms


class Likelihood(nn.Module):
    """p(y | outputs). Calling it gives the loss (1)."""

    name: ClassVar[str]
    #: "classes" for probabilities over classes, "values" for a density or mass over numbers
    kind: ClassVar[str] = "values"
    discrete: ClassVar[bool] = False

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """log p(y_i | outputs_i), (n,)."""
        raise TypeError(f"{type(self).__name__} has no log density")

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -self.log_prob(require_tensor(outputs), y).mean()  # (1)

    def probs(self, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Class probabilities (n, K), for classes."""
        raise TypeError(f"{type(self).__name__} has no class probabilities")

    def mean(self, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """E[y | outputs]."""
        raise TypeError(f"{type(self).__name__} has no mean")

    def variance(self, outputs: Tensor) -> Tensor:  # noqa: ARG002
        """Var[y | outputs]."""
        raise TypeError(f"{type(self).__name__} has no variance")

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """P(Y <= y | outputs), elementwise."""
        raise TypeError(f"{type(self).__name__} has no distribution function")

    def config(self) -> dict[str, Any]:
        """The arguments of its constructor, by name."""
        return {}

    @property
    def status(self) -> str:
        """What it has learned, as a phrase for the status of a fit."""
        return ""


class Categorical(Likelihood):
    """Classes from logits (n, K), or (n, K, ...) with labels (n, ...) whose terms are summed."""

    name = "categorical"
    kind = "classes"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        check_logits(outputs)
        if y.is_floating_point():
            raise TypeError(
                f"class labels must be whole numbers; got {y.dtype}: use y.long() if they number classes, "
                "'gaussian' for values, 'bernoulli' for binary outcomes, a callable for soft labels"
            )
        if y.dim() == outputs.dim() and y.shape != (len(outputs), *outputs.shape[2:]):
            one_hot = y.shape == outputs.shape
            remedy = "y.argmax(1) of one-hot rows" if one_hot else "y.squeeze(1) if its second dimension is 1"
            raise ValueError(
                f"class labels must have the shape {(len(outputs), *outputs.shape[2:])}, one number for each "
                f"datum; got {tuple(y.shape)}: give {remedy}"
            )
        check_labels(y[y != IGNORED], outputs.shape[1])
        return over_event(-F.cross_entropy(outputs, y, reduction="none", ignore_index=IGNORED))

    def probs(self, outputs: Tensor) -> Tensor:
        check_logits(outputs)
        return outputs.softmax(1)


class Bernoulli(Likelihood):
    """Independent binary outcomes from logits."""

    name = "bernoulli"
    kind = "binary"

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        check_event(outputs, y)
        y = y.to(outputs)
        if bool(((y < 0) | (y > 1)).any()):
            raise ValueError("binary outcomes must lie between 0 and 1; labels of -1 and 1 are (y + 1) / 2")
        return over_event(-F.binary_cross_entropy_with_logits(outputs, y, reduction="none"))

    def probs(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()


class Gaussian(Likelihood):
    """y = outputs + noise.

    Arguments:
        noise: its standard deviation, or one for each of the outputs of a datum (the last dimension);
            "learned" makes it a parameter with initial value 1.
    """

    name = "gaussian"

    def __init__(self, noise: float | Sequence[float] | str = 1.0) -> None:
        super().__init__()
        learned = noise == "learned"
        several = isinstance(noise, tuple | list)
        each: list[Any] = list(noise) if several else [1.0 if learned else noise]  # type: ignore[arg-type]
        if not each or any(isinstance(v, str | bool) or not 0 < v < math.inf for v in each):
            raise ValueError(
                f"noise must be a positive number, one for each output, or 'learned'; got {noise!r}"
            )
        self.noise: float | list[float] | str = each if several else noise  # type: ignore[assignment]
        initial = torch.tensor([math.log(float(v)) for v in each])
        initial = initial if several else initial[0]
        if learned:
            self.log_noise = nn.Parameter(initial)
        else:
            self.register_buffer("log_noise", initial, persistent=False)

    def config(self) -> dict[str, Any]:
        return {"noise": self.noise}

    @property
    def status(self) -> str:
        if isinstance(self.noise, list):
            return ""
        return f"noise {self.noise_sd:.3g}" if self.noise == "learned" else f"noise fixed at {self.noise:g}"

    @property
    def noise_sd(self) -> float | list[float]:
        """The standard deviation of the noise, learned or given, as a number, or one for each output."""
        found: float | list[float] = self.log_noise.detach().double().exp().tolist()
        return found

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        check_event(outputs, y)
        return over_event(normal_log_prob(y, outputs, self.log_noise))

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        return (2 * self.log_noise).exp().to(outputs).expand_as(outputs)

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        return normal_cdf((y - outputs) / self.log_noise.exp().to(outputs))


class HeteroscedasticGaussian(Likelihood):
    """Mean and log standard deviation from the two halves of the last dimension of the outputs."""

    name = "heteroscedastic"

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape[-1] % 2:
            raise ValueError(
                "HeteroscedasticGaussian needs an even last dimension, means, then log standard deviations; "
                f"got outputs {tuple(outputs.shape)}"
            )
        mean, log_sd = outputs.chunk(2, -1)
        return mean, log_sd

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_sd = self.split(outputs)
        check_event(mean, y)
        return over_event(normal_log_prob(y, mean, log_sd))

    def mean(self, outputs: Tensor) -> Tensor:
        return self.split(outputs)[0]

    def variance(self, outputs: Tensor) -> Tensor:
        return (2 * self.split(outputs)[1]).exp()

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        mean, log_sd = self.split(outputs)
        return normal_cdf((y - mean) / log_sd.exp())


class Poisson(Likelihood):
    """Counts whose log rate is the output."""

    name = "poisson"
    discrete = True

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        check_event(outputs, y)
        y = y.to(outputs)
        return over_event(y * outputs - outputs.exp() - torch.lgamma(y + 1))

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def variance(self, outputs: Tensor) -> Tensor:
        return outputs.exp()

    def cdf(self, outputs: Tensor, y: Tensor) -> Tensor:
        # P(Y <= k) = Q(k + 1, rate), the regularised upper incomplete gamma function
        return torch.where(y < 0, 0.0, torch.special.gammaincc((y.floor() + 1).clamp_min(1), outputs.exp()))


class Function(Likelihood):
    """Any callable from (outputs, y) to the mean negative log-likelihood; predictions are raw outputs."""

    name = "function"

    def __init__(self, loss: Callable[[Any, Any], Tensor]) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.loss(outputs, y)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        return torch.zeros_like(outputs)


def check_logits(outputs: Tensor) -> None:
    """Raise unless there are two classes or more: the softmax of a single logit is always 1."""
    if outputs.dim() < 2 or outputs.shape[1] < 2:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} are not logits of two classes or more, (n, K); "
            "say what they are: likelihood='gaussian' for values, 'bernoulli' for one logit"
        )


def check_labels(y: Tensor, classes: int) -> None:
    """Raise unless every label is one of 0 to classes - 1."""
    wrong = y[(y < 0) | (y >= classes)]
    if wrong.numel():
        raise ValueError(
            f"class labels must be from 0 to {classes - 1}, one for each of the {classes} outputs; "
            f"got {int(wrong.flatten()[0])}: number the labels from 0, or give the model more outputs"
        )


def check_event(outputs: Tensor, y: Tensor) -> None:
    """Raise unless both have the same shape: broadcasting (n,) against (n, 1) would compare every pair."""
    if outputs.shape != y.shape:
        raise ValueError(
            f"outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} must have one shape; "
            "use unsqueeze or squeeze on one of them"
        )


def normal_log_prob(y: Tensor, mean: Tensor, log_sd: Tensor) -> Tensor:
    return -0.5 * ((y - mean) / log_sd.exp()).square() - log_sd - 0.5 * math.log(2 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    """The standard normal distribution function, in a quarter of the time of torch's ndtr, and true in the
    tail, where that is zero."""
    return 0.5 * torch.erfc(z * -math.sqrt(0.5))


KINDS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Categorical, Bernoulli, Gaussian, HeteroscedasticGaussian, Poisson)
}


def as_likelihood(what: str | Likelihood | Callable[[Any, Any], Tensor], **config: Any) -> Likelihood:
    """A likelihood from its name, a Likelihood, or a callable mean negative log-likelihood."""
    if isinstance(what, Likelihood):
        return what
    if isinstance(what, str):
        if what not in KINDS:
            raise unknown_name("likelihood", what, KINDS)
        return KINDS[what](**config)
    if callable(what):
        return Function(what)
    raise TypeError(f"likelihood must be a name, a Likelihood or a callable; got {type(what).__name__}")


def frozen(like: Likelihood) -> Likelihood:
    """The likelihood as it is now: a copy that later training does not change."""
    if next(like.parameters(), None) is None:
        return like
    return copy.deepcopy(like).requires_grad_(False)

"""The models of `calibration`, their simulators, and one run: simulate, fit, and place the truth.

normal      mu ~ N(0, 1), log sigma ~ N(0, 0.5), ten y ~ N(mu, sigma)
logistic    six coefficients ~ N(0, 1), 100 y ~ Bernoulli(sigmoid(x . b)) with fixed x
schools     mu ~ N(0, 5), tau ~ half-N(5), eight theta ~ N(mu, tau), y ~ N(theta, s) with the schools' s
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributions import Normal

from bayescore.inference.fitting import fit
from bayescore.inference.simulation import place
from bayescore.rng import generator
from bayescore.targets import Positive, Real, TorchModel
from bayescore_lab.engine import Run, RunOutcome

__all__ = ["SIMULATORS", "execute"]

DRAWS = 4000
F64 = torch.float64
X = torch.randn(100, 6, generator=generator(1, purpose="features of calibration"), dtype=F64)
S = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18], dtype=F64)

Truth = dict[str, Tensor]


def normal(rng: torch.Generator) -> tuple[Truth, TorchModel]:
    mu, z, *noise = torch.randn(12, generator=rng, dtype=F64)
    sigma = (0.5 * z).exp()
    y = mu + sigma * torch.stack(noise)

    def log_density(mu: Tensor, sigma: Tensor) -> Tensor:
        scale = Normal(0, 0.5).log_prob(sigma.log()) - sigma.log()
        return Normal(0, 1).log_prob(mu) + scale + Normal(mu, sigma).log_prob(y).sum()

    return {"mu": mu, "sigma": sigma}, TorchModel({"mu": Real(), "sigma": Positive()}, log_density)


def logistic(rng: torch.Generator) -> tuple[Truth, TorchModel]:
    b = torch.randn(6, generator=rng, dtype=F64)
    y = (torch.rand(100, generator=rng, dtype=F64) < torch.sigmoid(X @ b)).double()

    def log_density(b: Tensor) -> Tensor:
        logits = X @ b
        like = y * logits - torch.nn.functional.softplus(logits)
        return Normal(0, 1).log_prob(b).sum() + like.sum()

    return {"b": b}, TorchModel({"b": Real(6)}, log_density)


def _schools(rng: torch.Generator) -> tuple[Truth, Tensor]:
    mu, tau = 5 * torch.randn(2, generator=rng, dtype=F64)
    theta = mu + tau.abs() * torch.randn(8, generator=rng, dtype=F64)
    return {"mu": mu, "tau": tau.abs()}, theta + S * torch.randn(8, generator=rng, dtype=F64)


def noncentred(rng: torch.Generator) -> tuple[Truth, TorchModel]:
    truth, y = _schools(rng)

    def log_density(mu: Tensor, tau: Tensor, eta: Tensor) -> Tensor:
        prior = Normal(0, 5).log_prob(mu) + Normal(0, 5).log_prob(tau) + Normal(0, 1).log_prob(eta).sum()
        return prior + Normal(mu + tau * eta, S).log_prob(y).sum()

    return truth, TorchModel({"mu": Real(), "tau": Positive(), "eta": Real(8)}, log_density)


def centred(rng: torch.Generator) -> tuple[Truth, TorchModel]:
    truth, y = _schools(rng)

    def log_density(mu: Tensor, tau: Tensor, theta: Tensor) -> Tensor:
        prior = Normal(0, 5).log_prob(mu) + Normal(0, 5).log_prob(tau)
        return prior + Normal(mu, tau).log_prob(theta).sum() + Normal(theta, S).log_prob(y).sum()

    return truth, TorchModel({"mu": Real(), "tau": Positive(), "theta": Real(8)}, log_density)


SIMULATORS: dict[str, Callable[[torch.Generator], tuple[Truth, TorchModel]]] = {
    "normal": normal,
    "logistic": logistic,
    "schools, non-centred": noncentred,
    "schools, centred": centred,
}


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    for run in todo:
        began = time.perf_counter()
        name = run.config["model"]
        truth, target = SIMULATORS[name](generator(run.seed, purpose=f"calibration of {name}"))
        found = fit(target, seed=run.seed, progress=False)
        metrics = {
            "u": place(target, truth, found.family.sample(DRAWS, seed=0)),
            "u_resampled": place(target, truth, found.resample(DRAWS)),
            "grade": found.trust.name,
        }
        yield RunOutcome(run, metrics, found.score_calls, seconds=time.perf_counter() - began)

"""How a run of the PosteriorDB experiments is executed: seeds and noise levels of one arm as one batch.

The measure is the negative ELBO in nats above the best Gaussian of each posterior. Where a method has a
learning rate, it is the default ("learning_rates": []) or the best of a grid on pilot seeds that no result
uses, judged by the median final negative ELBO. Fit f of a batch has scores with noise at its own level,
    s_hat(x_f) = s(x_f) + beta_f |s(x_f)|_inf e,   e ~ N(0, I)                  (1)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import FullGaussian, GaussianMixture
from bayescore.families.base import Family
from bayescore.initial.finding import Start
from bayescore.metrics import ELBO
from bayescore.rng import Streams
from bayescore.targets.base import Target
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.posteriordb.arms import BEST, LOST, per_iteration
from bayescore_lab.methods import low_dimensional_method

__all__ = ["NoiseLevels", "execute"]

POSTERIORS = {name: f"{name}-{name}" for name in BEST}
LEVELS = (0.2, 0.5, 2.0)
TRACE_DRAWS, PRINTED_DRAWS, CHUNK = 500, 1000, 1000
RECORDS = {False: 40, True: 12}  # of a trace, with exact and with noisy scores
ROUND = 500  # score calls: searches of nearly one length leave equally many iterations
PILOT_SEEDS, PILOT_SHARE = 1000, 0.4  # pilots run a part of the iterations, schedules included
IMPOSSIBLE = 2.0  # nats below the best Gaussian: a factor that has lost its digits, not a better fit


class NoiseLevels(Target):
    """`target` with noisy scores (1), at level betas[f] > 0 in fit f of a batch.

    Row f of a batch has the numbers that `NoisyScore(target, beta_f)` gives it.

    Arguments:
        target: the density that all fits share.
        betas: a noise level for every fit.
    """

    name = "noise levels"
    stochastic = True

    def __init__(self, target: Target, betas: Sequence[float]) -> None:
        self.target, self.dim, self.dtype, self.device = target, target.dim, target.dtype, target.device
        self.betas = torch.tensor(betas, dtype=target.dtype, device=target.device)[:, None, None]

    def log_prob(self, x: Tensor) -> Tensor:
        return self.target.log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        if streams is None:
            raise TypeError("a noisy score needs `streams`, the random numbers of the fit")
        exact = self.target.score(x)
        return exact + self.betas * exact.abs().amax(-1, keepdim=True) * streams.normal(*x.shape[1:])  # (1)


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """All seeds of one arm on one posterior, at all of its noise levels."""
    for noisy in (False, True):  # exact scores take no random numbers, so they are a batch of their own
        if some := [run for run in runs if (_beta(run) > 0) == noisy]:
            yield from _execute(some)


def _execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    config = dict(runs[0].config)
    rates, pilots = _pilots(config, sorted({_beta(run) for run in runs}))
    for rate in dict.fromkeys(rates.values()):
        some = [run for run in runs if rates[_beta(run)] == rate]
        begin = time.perf_counter()
        fits, starts = _fit(config, [(run.seed, _beta(run)) for run in some], rate)
        seconds = (time.perf_counter() - begin) / len(some)
        for run, fit, start in zip(some, fits, starts, strict=True):
            metrics, trace = _measure(config, fit, start)
            if rate is not None:
                metrics |= {"learning_rate": rate, "pilot": pilots[_beta(run)]}
            ended = "ok" if math.isfinite(metrics["gap"]) else "diverged"
            calls = fit.score_calls + (start.counts.score_calls if start else 0)
            yield RunOutcome(run, metrics, calls, trace, ended=ended, seconds=seconds)


def _beta(run: Run) -> float:
    return float(run.config.get("beta", 0.0))


@cache
def _target(name: str) -> Target:
    return bs.targets.posteriordb(POSTERIORS[name])


def _pilots(
    config: dict[str, Any], betas: Sequence[float]
) -> tuple[dict[float, float | None], dict[float, dict[str, float]]]:
    """The learning rate at every noise level, and the median final gap of each that was tried."""
    scores: dict[float, dict[str, float]] = {beta: {} for beta in betas}
    rates = config["learning_rates"]
    jobs = [(PILOT_SEEDS + i, beta) for beta in betas for i in range(config["pilots"])]
    for rate in rates:
        fits, _ = _fit(config | {"share": PILOT_SHARE}, jobs, rate)
        for beta in betas:
            gaps = sorted(
                _gap(config, fit.family, 10)
                for fit, (_, level) in zip(fits, jobs, strict=True)
                if level == beta
            )
            scores[beta][str(rate)] = gaps[len(gaps) // 2]
    best = {
        beta: min(rates, key=lambda rate, tried=tried: tried[str(rate)], default=None)  # type: ignore[misc]
        for beta, tried in scores.items()
    }
    return best, scores


def _start(config: dict[str, Any], target: Target, seed: int) -> tuple[Family, Start | None]:
    """q0, the same for every arm: a mean in [0, 0.1]^D and covariance scale^2 I, or what a search finds.

    The components of a mixture have its covariance, and means half a standard deviation around its mean.
    """
    spec = config["start"]
    rng = bs.rng.generator(seed, purpose="start")
    mean = 0.1 * torch.rand(target.dim, generator=rng, dtype=torch.float64)
    q0 = FullGaussian.init(target.dim, scale=spec.get("scale", 1.0), mean=mean)
    if not spec.get("search"):
        return q0, None
    found = bs.find_start(target, q0, seed=seed, check=False)
    if components := config.get("components"):
        assert isinstance(found.family, FullGaussian)
        q = found.family.in_form("covariance")
        noise = torch.randn(components, q.dim, generator=rng, dtype=torch.float64)
        parts = FullGaussian(q.transform(0.5 * noise), q.factor.repeat(components, 1, 1))
        return GaussianMixture(torch.zeros(components, dtype=torch.float64), parts), found
    return found.family, found


def _fit(
    config: dict[str, Any], jobs: Sequence[tuple[int, float]], rate: float | None
) -> tuple[list[bs.Fit], list[Start | None]]:
    """One fit per seed and noise level; those with equally many iterations run together."""
    exact = _target(config["posterior"])
    begun = {seed: _start(config, exact, seed) for seed in dict.fromkeys(seed for seed, _ in jobs)}
    steps = {seed: _steps(config, start) for seed, (_, start) in begun.items()}
    fits: dict[tuple[int, float], bs.Fit] = {}
    for count in sorted(set(steps.values())):
        some = [job for job in jobs if steps[job[0]] == count]
        families = [begun[seed][0] for seed, _ in some]
        fits |= dict(zip(some, _together(config, families, some, rate, count), strict=True))
    return [fits[job] for job in jobs], [begun[seed][1] for seed, _ in jobs]


def _steps(config: dict[str, Any], start: Start | None) -> int:
    """Iterations that the budget leaves after the search, its calls rounded up to a full ROUND."""
    spent = math.ceil(start.counts.score_calls / ROUND) * ROUND if start else 0
    steps = config.get("iterations") or (config["calls"] - spent) // per_iteration(config)
    return max(1, round(steps * config.get("share", 1.0)))


def _together(
    config: dict[str, Any],
    families: list[Family],
    jobs: list[tuple[int, float]],
    rate: float | None,
    steps: int,
) -> list[bs.Fit]:
    options = dict(config["options"])
    if rate is not None:
        options["learning_rate"] = rate
    family = "mixture" if config.get("components") else "full"
    method = low_dimensional_method(config["method"], family=family, **options)
    exact = _target(config["posterior"])
    betas = [beta for _, beta in jobs]
    records = RECORDS[any(betas)]
    every = sorted({max(1, round(steps ** (i / (records - 1)))) for i in range(records)} | {steps})
    score = ELBO(TRACE_DRAWS, seed=1)
    return bs.fit_many(
        NoiseLevels(exact, betas) if any(betas) else exact,
        families,
        method,
        steps=steps,
        seeds=[seed for seed, _ in jobs],
        metrics={"negative_elbo": lambda q, _: -score(q, exact)},
        record_every=every,
        progress=False,
        check=False,
    )


def _measure(
    config: dict[str, Any], fit: bs.Fit, start: Start | None
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    best = BEST[config["posterior"]]
    spent = start.counts.score_calls if start else 0
    calls = [spent + c for c in fit.history.columns["score_calls"]]
    gaps = [value - best for value in fit.history.columns["negative_elbo"]]
    gaps = [gap if -IMPOSSIBLE < gap < LOST else LOST for gap in gaps]
    gap = _gap(config, fit.family, config["draws"] // CHUNK)
    printed = _negative_elbo(config, fit.family, PRINTED_DRAWS, 5)
    metrics: dict[str, Any] = {"gap": gap, "negative_elbo": gap + best, "negative_elbo_1000": printed}
    for level in LEVELS:
        hits = [c for c, g in zip(calls, gaps, strict=True) if g < level]
        metrics[f"calls_{level:g}"] = hits[0] if hits else math.inf
    metrics["start_calls"] = spent
    trace = {"score_calls": calls, "gap": gaps}
    return metrics, trace


def _gap(config: dict[str, Any], family: Family, chunks: int) -> float:
    values = [_negative_elbo(config, family, CHUNK, 10 + chunk) for chunk in range(chunks)]
    return sum(values) / chunks - BEST[config["posterior"]]


def _negative_elbo(config: dict[str, Any], family: Family, draws: int, seed: int) -> float:
    if not family.flat().isfinite().all():
        return math.inf
    with torch.no_grad():
        value = -float(ELBO(draws, seed=seed)(family, _target(config["posterior"])))
    return value if value > BEST[config["posterior"]] - IMPOSSIBLE else math.inf  # NaN too

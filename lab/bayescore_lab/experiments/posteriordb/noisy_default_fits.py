"""How a run of posteriordb-noisy-default is executed: the automatic fit, or ADVI with a tuned rate."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator, Sequence

import torch

from bayescore.families.base import Family
from bayescore.families.full import FullGaussian
from bayescore.inference.fitting import fit, fit_many
from bayescore.inference.result import Fit
from bayescore.initial.finding import default_family
from bayescore.methods import ADVI
from bayescore.metrics import ELBO
from bayescore.targets import NoisyScore
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.posteriordb.more import AUTO

__all__ = ["execute"]

RATES = (0.003, 0.01, 0.03, 0.1)
PILOTS, PILOT_SEEDS, PILOT_SHARE = 2, 1000, 0.4  # pilots run a part of the steps, schedules included
DRAWS = 20_000
CONSISTENT = 1.0  # nats between two values of the entropy of q
SEARCH_SHARE, RESERVE = 0.4, 0.15  # of the calls: the search, and what a second run may take


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """The seeds of one arm on one posterior at one noise level."""
    config = todo[0].config
    target = NoisyScore(posteriordb(config["posterior"]), config["beta"])
    yield from _auto(todo, target) if todo[0].method == AUTO else _advi(todo, target)


def _auto(todo: Sequence[Run], target: NoisyScore) -> Iterator[RunOutcome]:
    for run in todo:
        began = time.perf_counter()
        calls = run.config["calls"]
        # The default makes 10,000 calls by itself; other budgets are for a quick look.
        steps = None if calls == 10_000 else max(1, int((1 - SEARCH_SHARE - RESERVE) * calls))
        found = fit(target, seed=run.seed, steps=steps, metrics={}, progress=False)
        metrics = {**_measure(run, found.family), "notes": " | ".join(found.notes)}
        yield RunOutcome(run, metrics, found.score_calls, seconds=time.perf_counter() - began)


def _advi(todo: Sequence[Run], target: NoisyScore) -> Iterator[RunOutcome]:
    name, calls = todo[0].config["posterior"], todo[0].config["calls"]

    def median_elbo(rate: float) -> float:
        pilots = _together(target, rate, [PILOT_SEEDS + i for i in range(PILOTS)], int(PILOT_SHARE * calls))
        return sorted(_elbo(name, found.family) for found in pilots)[PILOTS // 2]

    tried = {rate: median_elbo(rate) for rate in RATES}
    best = max(tried, key=lambda rate: tried[rate])
    began = time.perf_counter()
    fits = _together(target, best, [run.seed for run in todo], calls)
    seconds = (time.perf_counter() - began) / len(todo)
    for run, found in zip(todo, fits, strict=True):
        metrics = {**_measure(run, found.family), "rate": best}
        yield RunOutcome(run, metrics, found.score_calls, seconds=seconds)


def _together(target: NoisyScore, rate: float, seeds: Sequence[int], steps: int) -> list[Fit]:
    q0 = default_family(target)
    options = {"steps": steps, "metrics": {}, "progress": False, "check": False}
    return fit_many(target, [q0] * len(seeds), ADVI(lr=rate), seeds=seeds, **options)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=2)
def _exact(name: str) -> Fit:
    return fit(posteriordb(name), seed=0, progress=False)


@functools.lru_cache(maxsize=2)
def _target(name: str) -> PosteriorDB:
    return posteriordb(name)


def _elbo(name: str, q: Family) -> float:
    """Over common noise; -inf where it is not finite, or where q is too ill-conditioned for its own density.

    The mean of log q over draws of a Gaussian q is -entropy up to about sqrt(D / (2 DRAWS)). A factor whose
    entries differ by tens of orders of magnitude cannot be solved with, and log q is then anything.
    """
    if not q.flat().isfinite().all():
        return -math.inf
    with torch.no_grad():
        value = float(ELBO(DRAWS, seed=1)(q, _target(name)))
        if isinstance(q, FullGaussian):
            x = q.sample(DRAWS, seed=1)
            if not abs(float(q.log_prob(x).mean() + q.entropy())) < CONSISTENT:
                return -math.inf
    return value if math.isfinite(value) else -math.inf


def _measure(run: Run, q: Family) -> dict[str, float]:
    name = run.config["posterior"]
    exact = _exact(name).family
    x = exact.sample(DRAWS, seed=2)
    eigenvalues = torch.linalg.eigvalsh(x.mT.cov())
    distance = (x.mean(0).abs() / x.std(0)).max()
    return {
        "gap": _elbo(name, exact) - _elbo(name, q),
        "condition": float(eigenvalues[-1] / eigenvalues[0]),
        "distance": float(distance),
    }

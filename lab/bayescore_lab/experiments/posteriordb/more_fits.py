"""How a run of posteriordb-more is executed: ours here, the peers in a process of their own.

Errors are those of the constrained parameters, as a user sees them, against reference draws; with m, s the
means and standard deviations under q (100,000 draws) and m*, s* those of the reference, per coordinate:
    mean error  median |m - m*| / s*,   sd error  median |log s / s*|,   error = their sum                 (1)
Peers get the seconds that the default fit took here (its median over the seeds, after a first fit that is not
counted), or four times as many; compiling is not timed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from bayescore.families import Family, FullGaussian
from bayescore.inference.fitting import fit
from bayescore.methods import Method
from bayescore.metrics import pareto_khat
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.engine.workers import ask_once
from bayescore_lab.experiments.posteriordb.more import AUTO, OURS, PEERS
from bayescore_lab.methods import low_dimensional_method

__all__ = ["errors", "execute"]

DRAWS = 100_000
KHAT_DRAWS = 4000


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """The runs of one posterior: ours, then every peer in turn."""
    name = todo[0].config["posterior"]
    target = posteriordb(name)
    seeds = sorted({run.seed for run in todo})
    fit(target, seed=max(seeds) + 1, progress=False)  # the first one is not counted
    wanted = {run.seed: run for run in todo if run.method == AUTO}
    taken: list[float] = []
    for seed in seeds:  # even where no outcome is wanted: the budget of the peers is measured here and now
        outcome = _ours(target, wanted.get(seed, Run(AUTO, seed)))
        taken.append(float(outcome.seconds or 0.0))
        if seed in wanted:
            yield outcome
    for run in todo:
        if run.method in OURS and run.method != AUTO:
            yield _ours(target, run)
    budget = statistics.median(taken)
    for library in ("jax", "pymc"):
        theirs = [run for run in todo if run.method in PEERS and _library(run) == library]
        if theirs:
            yield from _theirs(target, theirs, budget)


def _ours(target: PosteriorDB, run: Run) -> RunOutcome:
    began = time.perf_counter()
    found = fit(target, None, _method(run.method), seed=run.seed, progress=False)
    seconds = time.perf_counter() - began
    metrics = errors(target, found.family) | {"setting": found.status}
    return RunOutcome(run, metrics, found.score_calls, seconds=seconds)


def _method(arm: str) -> Method | None:
    """The method of one of our arms; None where the fit chooses it."""
    spec = OURS[arm]
    return None if spec is None else low_dimensional_method(spec["method"], **spec["options"])


def _library(run: Run) -> str:
    return "pymc" if PEERS[run.method][0] == "pymc" else "jax"


def _theirs(target: PosteriorDB, todo: Sequence[Run], budget: float) -> Iterator[RunOutcome]:
    """Peers of one library, in one process."""
    request = {
        "posterior": target.title,
        "peers": sorted({PEERS[run.method][0] for run in todo}),
        "seeds": sorted({run.seed for run in todo}),
        "budgets": [factor * budget for factor in sorted({PEERS[run.method][1] for run in todo})],
    }
    done = ask_once("bayescore_lab.bench.posteriordb_peers", request)
    if done.answer is None:
        raise RuntimeError(f"the process of the peers ended with: {done.errors[-300:]}")
    answer = done.answer
    for run in todo:
        peer, factor = PEERS[run.method]
        if isinstance(answer[peer], str):
            raise ImportError(answer[peer])
        found = next(r for r in answer[peer] if r["seed"] == run.seed and r["budget"] == factor * budget)
        mean, factors = (torch.tensor(found[key], dtype=torch.float64) for key in ("mean", "factor"))
        sound = bool(mean.isfinite().all() and factors.isfinite().all() and (factors.diagonal() > 0).all())
        measured = errors(target, FullGaussian(mean, factors)) if sound else {}
        metrics = {**measured, "setting": found["setting"], "budget": found["budget"]}
        ended = "ok" if sound else "diverged"
        yield RunOutcome(run, metrics, found["score_calls"], ended=ended, seconds=found["seconds"])


def errors(target: PosteriorDB, q: Family) -> dict[str, float]:
    """(1) of an approximation on the unconstrained space, and its k-hat."""
    reference = target.reference_draws
    with torch.no_grad():
        draws = target.to_posterior(q.sample(DRAWS, seed=1))["posterior"]
        points = q.sample(KHAT_DRAWS, seed=2)
        ratios = target.log_prob(points) - q.log_prob(points)
    ours, true = _columns(draws, reference), _columns(reference, reference)
    away = ((ours.mean(0) - true.mean(0)).abs() / true.std(0)).nan_to_num(math.inf, posinf=math.inf)
    spread = (ours.std(0) / true.std(0)).log().abs().nan_to_num(math.inf, posinf=math.inf)
    mean_error, sd_error = float(away.quantile(0.5)), float(spread.quantile(0.5))
    return {
        "error": mean_error + sd_error,
        "mean_error": mean_error,
        "sd_error": sd_error,
        "khat": pareto_khat(ratios).value if bool(ratios.isfinite().all()) else math.inf,
    }


def _columns(draws: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> Tensor:
    """The quantities of the reference as columns, (n, K)."""
    parts = []
    for name, values in reference.items():
        shape = values.shape[2:]
        parts.append(draws[name].reshape(-1, shape.numel()))
    return torch.cat(parts, -1)

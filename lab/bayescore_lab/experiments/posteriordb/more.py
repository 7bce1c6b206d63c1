"""Twelve PosteriorDB posteriors: the default fit beside other libraries' VI, at equal wall-clock.

Errors are those of the constrained parameters, as a user sees them, against reference draws; with m, s the
means and standard deviations under q (100,000 draws) and m*, s* those of the reference, per coordinate:
    mean error  median |m - m*| / s*,   sd error  median |log s / s*|,   error = their sum                 (1)
Peers run in a process of their own and get the seconds that the default fit took here (its median over the
seeds, after a first fit that is not counted), or four times as many; compiling is on nobody's clock.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescore.families import Family, FullGaussian
from bayescore.inference.fitting import fit
from bayescore.methods import BaM, ProximalScore
from bayescore.metrics import pareto_khat
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore_lab.engine import Experiment, Figure, Outcome, Profile, Records, Run
from bayescore_lab.experiments.posteriordb.more_tables import AUTO, CLAIMS, tables

__all__ = ["EXPERIMENT", "errors"]

POSTERIORS = (
    "arK-arK",
    "diamonds-diamonds",
    "earnings-logearn_interaction",
    "eight_schools-eight_schools_centered",
    "eight_schools-eight_schools_noncentered",
    "garch-garch11",
    "gp_pois_regr-gp_pois_regr",
    "gp_pois_regr-gp_regr",
    "kidiq-kidscore_interaction",
    "low_dim_gauss_mix-low_dim_gauss_mix",
    "mesquite-mesquite",
    "sblrc-blr",
)
IN_PYMC = (
    "arK-arK",
    "eight_schools-eight_schools_noncentered",
    "kidiq-kidscore_interaction",
    "sblrc-blr",
)
OURS: dict[str, BaM | ProximalScore | None] = {
    AUTO: None,
    "BaM, batch 32": BaM(32),
    "ProximalScore": ProximalScore(),
}
#: arm: what the worker calls it, and its budget in units of the default fit's seconds
PEERS = {
    "NumPyro": ("numpyro", 1),
    "NumPyro, 4x": ("numpyro", 4),
    "Pathfinder": ("pathfinder", 1),
    "Pathfinder, 4x": ("pathfinder", 4),
    "PyMC": ("pymc", 1),
    "PyMC, 4x": ("pymc", 4),
}
DRAWS = 100_000
JUDGES = 4000


def runs(settings: Mapping[str, Any], seeds: Sequence[int], methods: Sequence[str]) -> list[Run]:
    return [
        Run(method, seed, {"posterior": name}, group=name)
        for name in settings.get("posteriors", POSTERIORS)
        for method in methods
        if not method.startswith("PyMC") or name in IN_PYMC
        for seed in seeds
    ]


def execute(todo: Sequence[Run]) -> Iterator[Outcome]:
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


def _ours(target: PosteriorDB, run: Run) -> Outcome:
    began = time.perf_counter()
    found = fit(target, None, OURS[run.method], seed=run.seed, progress=False)
    seconds = time.perf_counter() - began
    metrics = errors(target, found.family) | {"setting": found.status}
    return Outcome(run, metrics, found.score_calls, seconds=seconds)


def _library(run: Run) -> str:
    return "pymc" if PEERS[run.method][0] == "pymc" else "jax"


def _theirs(target: PosteriorDB, todo: Sequence[Run], budget: float) -> Iterator[Outcome]:
    """Peers of one library, in one process."""
    request = {
        "posterior": target.title,
        "peers": sorted({PEERS[run.method][0] for run in todo}),
        "seeds": sorted({run.seed for run in todo}),
        "budgets": [factor * budget for factor in sorted({PEERS[run.method][1] for run in todo})],
    }
    command = [sys.executable, "-m", "bayescore_lab.bench.posteriordb_worker", json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"the process of the peers ended with: {done.stderr.strip()[-300:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
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
        yield Outcome(run, metrics, found["score_calls"], ended=ended, seconds=found["seconds"])


def errors(target: PosteriorDB, q: Family) -> dict[str, float]:
    """(1) of an approximation on the unconstrained space, and its k-hat."""
    reference = target.reference_draws
    with torch.no_grad():
        draws = target.to_posterior(q.sample(DRAWS, seed=1))["posterior"]
        points = q.sample(JUDGES, seed=2)
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


def figures(records: Records) -> list[Figure]:  # noqa: ARG001
    return []


EXPERIMENT = Experiment(
    id="posteriordb-more",
    title="Twelve real posteriors beside other libraries",
    location="not in the paper",
    shows="Errors of means and standard deviations against reference draws, k-hat and wall-clock, with the "
    "default fit and with NumPyro, BlackJAX and PyMC at the same seconds and at four times as many.",
    methods=(*OURS, *PEERS),
    profiles={
        "quick": Profile(seeds=1, minutes=4, settings={"posteriors": ["kidiq-kidscore_interaction"]}),
        "paper": Profile(seeds=5, minutes=30, settings={}),
    },
    runs=runs,
    execute=execute,
    tables=tables,
    figures=figures,
    claims=CLAIMS,
)

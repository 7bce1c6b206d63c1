"""How a run of posteriordb-all is executed: the default fit, its own word, and its errors where known.

With m, s the means and standard deviations of 10,000 resampled draws and m*, s* those of reference draws, per
constrained parameter:
    mean error  max |m - m*| / s*,   sd error  max |log s / s*|                                          (1)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch

from bayescore.inference.export import columns
from bayescore.inference.fitting import fit
from bayescore.inference.result import Fit
from bayescore.targets import Target
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore.targets.stan import Stan
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.posteriordb.models import MODELS

__all__ = ["errors", "execute"]

DRAWS = 10_000


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """The runs of one posterior; a program is compiled before the clock starts."""
    target = target_of(todo[0].config["posterior"])
    for run in todo:
        began = time.perf_counter()
        found = fit(target, seed=run.seed, progress=False)
        seconds = time.perf_counter() - began
        diagnosis = found.diagnosis
        assert diagnosis is not None
        grade = found.trust.name if found.trust.name in ("GOOD", "USABLE") else "POOR"
        metrics = {
            "grade": grade,
            "verdict": found.verdict,
            "khat": diagnosis.khat.value,
            "elbo": diagnosis.elbo.value,
            **errors(found),
        }
        yield RunOutcome(run, metrics, found.score_calls, seconds=seconds)


def target_of(name: str) -> Target:
    """A model of the list, or a posterior of $BAYESCORE_DATA/posteriordb."""
    if name in MODELS:
        return Stan(MODELS[name].program, MODELS[name].data())
    return posteriordb(name)


def errors(found: Fit) -> dict[str, float]:
    """(1), where the target has reference draws and draws can be weighted."""
    target = found.target
    if not isinstance(target, PosteriorDB) or not target.has_reference or not found.diagnosis.finite:  # type: ignore[union-attr]
        return {}
    reference = columns(target.reference_draws, lead=2)
    ours = columns(target.to_posterior(found.resample(DRAWS))["posterior"])
    names = [name for name in reference if name in ours]
    x, true = (torch.stack([values[name] for name in names], -1) for values in (ours, reference))
    return {
        "mean_error": float(((x.mean(0) - true.mean(0)).abs() / true.std(0)).max()),
        "sd_error": float((x.std(0) / true.std(0)).log().abs().max()),
    }

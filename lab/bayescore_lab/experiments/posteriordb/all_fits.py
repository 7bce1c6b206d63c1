"""How a run of posteriordb-all is executed: the default fit, its own word, and its errors where known.

With m, s and z_p the means, standard deviations and quantiles of 10,000 resampled draws, and m*, s*, z_p*
those of the reference, per constrained parameter:
    mean error  max |m - m*| / s*,   sd error  max |log s / s*|                                          (1)
    quantile error  max |z_p - z_p*| 3.29 / (z_95* - z_5*),   p = 5, 50, 95 %                            (2)
A parameter whose reference has a tail index of 0.5 or more has no standard deviation, and enters (2) alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescore.inference.export import columns
from bayescore.inference.fitting import fit
from bayescore.inference.options import Effort
from bayescore.inference.result import Fit
from bayescore.targets import Target
from bayescore.targets.posterior_db import PosteriorDB, posteriordb
from bayescore.targets.stan import Stan
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.posteriordb.all_models import HEAVY, THOROUGH
from bayescore_lab.experiments.posteriordb.models import MODELS
from bayescore_lab.experiments.posteriordb.references import reference, tail_index

__all__ = ["draw_errors", "errors", "execute", "target_of"]

DRAWS = 10_000
QUANTILES = {"q5": 0.05, "q50": 0.5, "q95": 0.95}
NORMAL_RANGE = 3.29  # standard deviations between the 5 and 95 % quantiles of a normal law


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """One run; a program is compiled before the clock starts, and the diagnosis is a part of the fit."""
    for run in todo:
        name = run.config["posterior"]
        target = target_of(name)
        began = time.perf_counter()
        effort: Effort = "thorough" if run.method == THOROUGH else "normal"
        found = fit(target, seed=run.seed, progress=False, effort=effort)
        diagnosis = found.diagnosis
        seconds = time.perf_counter() - began
        assert diagnosis is not None
        grade = found.trust.name if found.trust.name in ("GOOD", "USABLE") else "POOR"
        metrics = {
            "grade": grade,
            "verdict": found.verdict,
            "family": type(found.family).__name__,
            "khat": diagnosis.khat.value,
            "elbo": diagnosis.elbo.value,
            "advice": next((note for note in found.notes if "write the non-centred form" in note), ""),
            **errors(found, name),
        }
        yield RunOutcome(run, metrics, found.score_calls + diagnosis.score_calls, seconds=seconds)


@functools.lru_cache(maxsize=2)
def target_of(name: str) -> Target:
    """A model of the list, or a posterior of the PosteriorDB folder."""
    if name in MODELS:
        return Stan(MODELS[name].program, MODELS[name].data(), threads=1)
    return posteriordb(name)


def errors(found: Fit, name: str) -> dict[str, Any]:
    """(1) and (2), where there is a reference and draws can be weighted."""
    assert found.diagnosis is not None
    assert found.target is not None
    if _known(found.target, name) is None or not found.diagnosis.finite:
        return {}
    return draw_errors(found.target, name, found.resample(DRAWS))


def draw_errors(target: Target, name: str, draws: Tensor) -> dict[str, Any]:
    """(1) and (2) of draws (n, D) on the unconstrained space, where there is a reference."""
    if (known := _known(target, name)) is None:
        return {}
    assert isinstance(target, PosteriorDB | Stan)
    ours = columns(target.to_posterior(draws)["posterior"])
    places = [i for i, name in enumerate(known["names"]) if name in ours]
    x = torch.stack([ours[known["names"][i]] for i in places], -1)  # (n, K)
    true = {
        key: torch.tensor(known[key], dtype=x.dtype)[places] for key in ("mean", "sd", "tail", *QUANTILES)
    }
    light = true["tail"] < HEAVY
    scale = (true["q95"] - true["q5"]) / NORMAL_RANGE
    away = [(x.quantile(p, 0) - true[key]).abs() / scale for key, p in QUANTILES.items()]
    mean = (x.mean(0) - true["mean"]).abs() / true["sd"]
    sd = (x.std(0) / true["sd"]).log().abs()
    worst = int(torch.where(light, torch.maximum(mean, sd), -1.0).argmax())
    return {
        "mean_error": float(mean[light].max()),
        "sd_error": float(sd[light].max()),
        "quantile_error": float(torch.stack(away).max()),
        "worst": known["names"][places[worst]],
        "heavy": int((~light).sum()),
    }


@functools.lru_cache(maxsize=2)
def _known(target: Target, name: str) -> dict[str, Any] | None:
    """The reference by the keys of references.json, or None."""
    if name in MODELS:
        return reference(name)
    if not isinstance(target, PosteriorDB) or not target.has_reference:
        return None
    draws = columns(target.reference_draws, lead=2)
    kept = {name: x for name, x in draws.items() if float(x.std()) > 0}
    x = torch.stack(list(kept.values()), -1)
    numbers = {"mean": x.mean(0), "sd": x.std(0), "tail": torch.tensor([tail_index(c) for c in x.T])}
    numbers |= {key: x.quantile(p, 0) for key, p in QUANTILES.items()}
    return {"names": list(kept), **{key: value.tolist() for key, value in numbers.items()}}

"""A check of the whole pipeline by simulation: do fits of simulated data put the truth where they should?

Run i draws parameters theta_i from the prior and data from the model given them, fits the data, and notes for
every parameter where the truth lies among draws of the fit,
    u_i = P_q(theta < theta_i).                                                                          (1)
If q were the posterior, u would be uniform (simulation-based calibration, Talts et al. 2018). A q whose
centre is right has a symmetric u, even if its width is not (VSBC, Yao et al. 2018):
    uniform    Kolmogorov-Smirnov distance of u from the uniform law                                     (2)
    centred    the same distance of u from 1 - u                                                         (3)
(2) has a p-value by Kolmogorov's law, with Stephens' correction for few runs, (3) by that of the largest
|value| of a walk (Butler 1969): u and 1 - u are not independent. What is wrong has a direction:
    mean of u above or below 1/2: q is too low or too high;  sd of u above or below 1/sqrt 12: q is too narrow
    or too wide                                                                                          (4)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.inference.export import columns, model_of
from bayescore.inference.fitting import fit
from bayescore.inference.options import FitKeywords, RunOptions
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.stan import Stan

__all__ = ["Calibration", "CalibrationRow", "check_calibration", "place"]

log = logging.getLogger(__name__)

LEVEL = 0.01  # of all parameters together: a p-value below LEVEL / their number is told
BINS = 10

Simulate = Callable[[torch.Generator], tuple[Mapping[str, Any], Any]]


@dataclass(frozen=True)
class CalibrationRow:
    """One parameter: (2) and (3) as p-values, mean and sd of u, and the counts of u in ten bins."""

    name: str
    uniform: float
    centred: float
    mean: float
    sd: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Calibration:
    """What `check_calibration` found: u (1), (runs, K), of K parameters, and the grade of every fit."""

    names: tuple[str, ...]
    probabilities: Tensor
    grades: tuple[str, ...]
    failed: int

    @property
    def rows(self) -> list[CalibrationRow]:
        """The table of parameters."""
        found = []
        for name, u in zip(self.names, self.probabilities.T, strict=True):
            counts = torch.histc(u, BINS, 0.0, 1.0).long().tolist()
            spread = float(u.std()) if len(u) > 1 else math.nan
            found.append(
                CalibrationRow(
                    name, _uniform(u), _symmetric(u), float(u.mean()), spread, tuple(int(c) for c in counts)
                )
            )
        return found

    @property
    def wrong(self) -> list[str]:
        """A sentence per parameter whose u is not uniform, in the words of (4)."""
        limit = LEVEL / max(1, len(self.names))
        return [_sentence(row) for row in self.rows if row.uniform < limit or row.centred < limit]

    @property
    def verdict(self) -> str:
        """One sentence."""
        number = f"{len(self.probabilities)} fits of simulated data"
        if not self.wrong:
            return f"calibrated as far as {number} can tell"
        return f"not calibrated, by {number}: {'; '.join(self.wrong)}"

    def summary(self) -> str:
        """The verdict, the grades of the fits, and the table of parameters."""
        counted = {grade: self.grades.count(grade) for grade in dict.fromkeys(self.grades)}
        said = ", ".join(f"{grade.lower()} {n}" for grade, n in counted.items())
        lines = [self.verdict, f"grades of the fits: {said}"]
        if self.failed:
            lines.append(f"{self.failed} runs failed and are left out")
        width = max(len("parameter"), *(len(name) for name in self.names))
        lines.append(f"{'parameter':{width}}  uniform  centred   mean     sd  counts in tenths")
        for row in self.rows:
            numbers = f"{row.uniform:7.3f}  {row.centred:7.3f}  {row.mean:5.2f}  {row.sd:5.2f}"
            lines.append(f"{row.name:{width}}  {numbers}  {' '.join(map(str, row.counts))}")
        return "\n".join(lines)


def check_calibration(
    simulate: Simulate,
    target: Callable[[Any], Target],
    *,
    runs: int = 100,
    draws: int = 1000,
    resample: bool = False,
    seed: int = 0,
    **options: Unpack[FitKeywords],
) -> Calibration:
    """Fit data that are simulated from the model, and see where the truth lies; (1) to (4).

    Arguments:
        simulate: from a generator to (parameters by name, data): one draw of the prior and of the data.
        target: from data to a target with named parameters, such as
            `lambda data: bs.targets.Stan("model.stan", data)` or a `TorchModel`.
        runs: how many data sets.
        draws: draws of every fit that place the truth.
        resample: use draws that are resampled by importance weights.
        seed: of the simulations; run i fits with the seed i.
        options: of `bs.fit`.

    A run that raises ValueError or RuntimeError is counted as failed and left out. Give as many runs as you
    can wait for: with 100, a mean of u that is off by 0.1 is found nine times out of ten.

        found = bs.check_calibration(simulate, lambda data: bs.targets.Stan("model.stan", data), runs=200)
        print(found.summary())
    """
    check_count("runs", runs)
    check_count("draws", draws)
    RunOptions.from_keywords("check_calibration", FitKeywords, options)  # before the first run
    options.setdefault("progress", False)
    rng = generator(seed, purpose="calibration")
    names: tuple[str, ...] = ()
    rows: list[Tensor] = []
    grades: list[str] = []
    for i in range(runs):
        truth, data = simulate(rng)
        try:
            model = target(data)
            found = fit(model, seed=i, **options)
            x = found.resample(draws, seed=i) if resample else found.family.sample(draws, seed=i)
        except (ValueError, RuntimeError) as problem:
            log.warning("run %d of %d failed: %s", i + 1, runs, problem)
            continue
        placed = place(model, truth, x)
        names = tuple(placed)
        rows.append(torch.tensor(list(placed.values()), dtype=torch.float64))
        grades.append(found.trust.name)
        log.info("run %d of %d: %s", i + 1, runs, found.status)
    if not rows:
        raise RuntimeError(f"all {runs} runs failed; look at one by hand: bs.fit(target(simulate(rng)[1]))")
    return Calibration(names, torch.stack(rows), tuple(grades), runs - len(rows))


def place(target: Target, truth: Mapping[str, Any], x: Tensor) -> dict[str, float]:
    """(1) of every true parameter, by name, from unconstrained draws x (n, D)."""
    model = model_of(target)
    if not isinstance(model, Stan | ConstrainedModel):
        raise TypeError(
            "target must return a model with named parameters (Stan, TorchModel); "
            f"got {type(target).__name__}"
        )
    named = columns(model.to_posterior(x)["posterior"])
    values = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in truth.items()}
    true = columns({name: value.unsqueeze(0) for name, value in values.items()})
    if missing := [name for name in true if name not in named]:
        raise ValueError(
            f"simulate returned {', '.join(missing)}, which the target does not name; it names "
            f"{', '.join(named)}"
        )
    return {name: float((named[name] < value).double().mean()) for name, value in true.items()}  # (1)


def _kolmogorov(distance: float, n: float) -> float:
    """The p-value of a Kolmogorov-Smirnov distance with n observations, Stephens' form."""
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if x < 0.2:
        return 1.0
    return min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 101))))


def _uniform(u: Tensor) -> float:
    """The p-value of (2)."""
    n, ordered = len(u), u.sort().values
    steps = torch.arange(n + 1, dtype=u.dtype) / n
    return _kolmogorov(float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max()), n)


def _symmetric(u: Tensor) -> float:
    """The p-value of (3): n times the distance is the largest |value| of a walk of fair signs."""
    n = len(u)
    points = torch.cat([u, 1 - u]).sort().values
    ours, theirs = (x.sort().values for x in (u, 1 - u))
    walk = torch.searchsorted(ours, points, right=True) - torch.searchsorted(theirs, points, right=True)
    x = float(walk.abs().max()) / math.sqrt(n)
    if x == 0:
        return 1.0
    odd = range(1, 400, 2)
    below = sum((-1) ** (k // 2) / k * math.exp(-((math.pi * k / x) ** 2) / 8) for k in odd)
    return min(1.0, max(0.0, 1 - 4 / math.pi * below))  # of Brownian motion on [0, 1]


def _sentence(row: CalibrationRow) -> str:
    words = []
    if row.centred < LEVEL:
        words.append("too low" if row.mean > 0.5 else "too high")
    if row.uniform < LEVEL:
        words.append("too narrow" if row.sd > math.sqrt(1 / 12) else "too wide")
    return f"{row.name} is {' and '.join(words)} (mean of u {row.mean:.2f}, sd {row.sd:.2f})"

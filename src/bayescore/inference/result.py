"""The result of a fit: the approximation, its history, its diagnosis, its draws, and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.inference import storage
from bayescore.inference.export import columns, groups, inference_data, model_of
from bayescore.inference.history import History
from bayescore.initial.checks import check_match
from bayescore.initial.finding import Start
from bayescore.io import refusing_damage
from bayescore.methods.base import Method, State
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import pareto_khat, smoothed_log_weights
from bayescore.metrics.reference import Comparison, compare_draws
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.counting import Counts

if TYPE_CHECKING:
    import arviz

__all__ = ["Counts", "Fit", "Outcome", "Pending", "Trust", "join_stages", "why_no_diagnosis"]

DIAGNOSIS_DRAWS = 4000
CONSTANT_SPREAD = 0.1  # nats: log ratios that vary less than this need no tail index to be trusted


class Outcome(Enum):
    """How a run ended, as a code; `Fit.status` says it in a sentence."""

    RUNNING = "running"
    CONVERGED = "converged"
    BUDGET = "step budget used"
    WORSE = "got worse"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by a callback"


class Trust(Enum):
    """How far to trust a fit, as a code; `Fit.verdict` says it in a sentence."""

    GOOD = "good"
    USABLE = "usable"
    POOR = "poor"
    IMPROPER = "the target cannot be normalised"
    UNKNOWN = "unknown"


class Pending(NamedTuple):
    """What a run has accumulated for its next record."""

    loss_sum: float = 0.0  # of the losses since the last record
    losses: int = 0  # their number
    skipped: int = 0  # steps skipped in a row, across records


@dataclass(frozen=True)
class Fit:
    """A fitted approximation.

    `family` is the approximation and `history` the records. Three fields are sentences: `status`, how the run
    ended; `verdict`, whether to trust the approximation, and why or why not; `notes`, what an automatic fit
    did. `outcome` and `trust` are the first two as codes. `khat` and `elbo` are diagnostics with Monte Carlo
    errors; they are None if there is no density, and the verdict then says so.
    """

    family: Family
    method: Method
    target: Target | None
    outcome: Outcome
    status: str
    history: History
    counts: Counts
    seconds: float
    seed: int
    state: State = field(repr=False)
    streams: Tensor = field(repr=False)
    pending: Pending = field(default=Pending(), repr=False)
    notes: tuple[str, ...] = ()
    # reasons against the target that the search found and the diagnostics cannot see; they enter the verdict
    _objections: tuple[str, ...] = field(default=(), repr=False)

    @property
    def score_calls(self) -> int:
        return self.counts.score_calls

    # -- diagnosis ---------------------------------------------------------------------------------

    @cached_property
    def _log_ratios(self) -> Tensor | None:
        """log Phi - log q at draws from q, (DIAGNOSIS_DRAWS,); None where there is no density."""
        if why_no_diagnosis(self) is not None:
            return None
        return self._log_ratios_at(self.family.sample(DIAGNOSIS_DRAWS, seed=self.seed + 7919))

    def _log_ratios_at(self, x: Tensor) -> Tensor:
        assert self.target is not None
        with torch.no_grad():
            return self.target.log_prob(x) - self.family.log_prob(x)

    @property
    def elbo(self) -> Estimate | None:
        """E_q[log Phi - log q] and its Monte Carlo error."""
        ratios = self._log_ratios
        if ratios is None:
            return None
        return Estimate(float(ratios.mean()), float(ratios.std()) / math.sqrt(len(ratios)))

    @property
    def khat(self) -> Estimate | None:
        """PSIS k-hat: below 0.5 q is good, up to 0.7 usable, above 0.7 not to be trusted."""
        return None if self._log_ratios is None else pareto_khat(self._log_ratios)

    @property
    def trust(self) -> Trust:
        """Whether to trust q, as a code."""
        return self._judgement[0]

    @property
    def verdict(self) -> str:
        """Whether to trust q, in a sentence."""
        return self._judgement[1]

    @cached_property
    def _judgement(self) -> tuple[Trust, str]:
        refusal = "do not trust this approximation"
        if self._objections:
            return Trust.IMPROPER, f"{refusal}: {'; '.join(self._objections)}"
        ratios = self._log_ratios
        if ratios is None:
            return Trust.UNKNOWN, f"unknown: {why_no_diagnosis(self)}"
        lost = float((~ratios.isfinite()).double().mean())
        if lost > 0:
            return Trust.POOR, f"{refusal}: the density is not finite at {lost:.2%} of its draws"
        khat, spread = pareto_khat(ratios).value, float(ratios.std())
        if spread < CONSTANT_SPREAD:
            return Trust.GOOD, f"good: log density and log q differ by a constant up to {spread:.1g} nats"
        if khat < 0.5:
            return Trust.GOOD, "good"
        return (Trust.USABLE, "usable") if khat <= 0.7 else (Trust.POOR, refusal)

    def summary(self) -> str:
        """What a person wants to know, in a few lines."""
        none = f"none: {why_no_diagnosis(self)}"
        lines = [
            f"{type(self.method).__name__} with {self.family}",
            f"status       {self.status}",
            f"score calls  {self.counts.score_calls} in {self.seconds:.2f} s",
            f"ELBO         {self.elbo or none}",
            f"k-hat        {self.khat or none}",
            f"verdict      {self.verdict}",
            *(f"             {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    # -- draws -------------------------------------------------------------------------------------

    def resample(self, n: int, seed: int = 0) -> Tensor:
        """n draws (n, D) closer to the target than q: draws of q, resampled by Pareto-smoothed weights Phi/q.

        They are chosen with replacement from max(n, 4000) draws of q, so some are repeated. Trust them if
        k-hat is at most 0.7.
        """
        check_count("n", n)
        if (reason := why_no_diagnosis(self)) is not None:
            raise ValueError(f"draws cannot be weighted: {reason}")
        x = self.family.sample(max(n, DIAGNOSIS_DRAWS), generator(seed, self.family.device, "resample"))
        weights = smoothed_log_weights(self._log_ratios_at(x))[0].exp()
        if not bool(weights.isfinite().all()):
            raise ValueError("draws cannot be weighted: the log density is not finite at some draws of q")
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator(seed, purpose="choice"))
        return x[chosen.to(x.device)]

    def to_arviz(self, draws: int = 4000, seed: int = 0, *, resample: bool = False) -> arviz.InferenceData:
        """Draws from q as ArviZ InferenceData, with log q and log Phi in `sample_stats`.

        Models with named parameters (Stan, TorchModel, PosteriorDB) give their constrained parameters and
        generated quantities, in the groups posterior, log_likelihood and posterior_predictive; every other
        target gives `theta`. With `resample` the draws are those of `resample`.
        """
        x = self.resample(draws, seed) if resample else self.family.sample(draws, seed)
        stats = {"log_q": self.family.log_prob(x).unsqueeze(0)}
        if self.target is not None and self.target.has_density:
            with torch.no_grad():
                stats["lp"] = self.target.log_prob(x).unsqueeze(0)
        attrs = {"method": repr(self.method), "status": self.status, "score_calls": self.counts.score_calls}
        if self.khat is not None:
            attrs |= {"khat": self.khat.value, "verdict": self.verdict}
        return inference_data(groups(self.target, x.unsqueeze(0), seed), stats, attrs)

    def compare(
        self, reference: Tensor | Mapping[str, Tensor] | None = None, draws: int = 10_000, seed: int = 0
    ) -> Comparison:
        """Errors against reference draws, in posterior standard deviations.

        Arguments:
            reference: draws (n, D) on the space of q, or constrained quantities by name, each
                (chains, draws, *shape); by default the reference draws of the target.
            draws: number of draws of q to compare.
            seed: of these draws.
        """
        x = self.family.sample(draws, seed)
        if isinstance(reference, Tensor):
            return compare_draws(x, reference, getattr(model_of(self.target), "names", None))
        if reference is None:
            reference = getattr(model_of(self.target), "reference_draws", None)
        if reference is None:
            raise ValueError(f"{self.target!r} has no reference draws; give some as reference=")
        theirs = columns(reference, lead=2)
        ours = columns(groups(self.target, x, seed)["posterior"])
        names = [name for name in theirs if name in ours]
        if not names:
            raise ValueError(
                f"the reference draws ({', '.join(reference)}) name no quantity of the fit; "
                f"it has {', '.join(ours)}"
            )
        return compare_draws(
            torch.stack([ours[n] for n in names], -1), torch.stack([theirs[n] for n in names], -1), names
        )

    # -- file --------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fit to one file, atomically."""
        storage.write(Path(path), self)

    @classmethod
    def load(cls, path: str | os.PathLike[str], target: Target | None = None) -> Fit:
        """Read a saved fit; with its target it can be diagnosed and resumed."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no saved fit at {path}")
        with refusing_damage(path, "bayescore fit"):
            fields = storage.read(path, torch.device("cpu") if target is None else target.device)
            if target is not None:
                check_match(target, fields["family"])
            if fields["outcome"] not in Outcome.__members__:
                raise ValueError(f"its outcome is {fields['outcome']!r}, which no run has")
            fields |= {"outcome": Outcome[fields["outcome"]], "pending": Pending(*fields["pending"])}
            return cls(target=target, **fields)


def why_no_diagnosis(fit: Fit) -> str | None:
    """Why a fit has neither ELBO nor k-hat; None if it has them."""
    if fit.target is None:
        return "the fit was loaded without its target; pass it to Fit.load(path, target)"
    if not fit.target.has_density:
        return f"{type(fit.target).__name__} has scores but no log density"
    return None


def join_stages(best: Fit, stages: Sequence[Fit], start: Start) -> Fit:
    """`best`, one of the stages of a run, with the counts, records and time of the start and all stages."""
    history, step = History(), 0
    counts, seconds = start.counts, start.seconds
    for stage in stages:
        for row in stage.history:
            row["step"] += step
            row["score_calls"] += counts.score_calls
            row["seconds"] += seconds
            history.add(**row)
        step += stage.state.step
        counts += stage.counts
        seconds += stage.seconds
    return replace(
        best,
        history=history,
        counts=counts,
        seconds=seconds,
        notes=start.notes,
        _objections=start.objections,
    )

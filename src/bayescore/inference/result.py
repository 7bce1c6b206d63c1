"""The result of a fit: the approximation, its history, its diagnosis, its draws, and its file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.inference import storage
from bayescore.inference.diagnosis import (
    FIRST_DRAWS,
    LEFT_LIMIT,
    MOST_NUMBERS,
    Diagnosis,
    Shifts,
    diagnose,
    memory,
)
from bayescore.inference.export import columns, data_of, groups, inference_data, model_of
from bayescore.inference.history import History
from bayescore.inference.marginals import Marginals, marginals_of
from bayescore.inference.moves import Walkers, can_move, tempered
from bayescore.initial.checks import check_match
from bayescore.initial.finding import Start
from bayescore.io import refusing_damage
from bayescore.methods.base import Method, State
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import smoothed_log_weights
from bayescore.metrics.reference import Comparison, compare_draws
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.counting import Counts
from bayescore.targets.propriety import coordinate_names

if TYPE_CHECKING:
    import arviz

__all__ = ["Counts", "Fit", "Outcome", "Pending", "Trust", "join_stages", "to_arviz", "why_no_diagnosis"]

POOL = 4  # draws of q for each that is resampled
MOVES = (
    16,
    32,
    64,
)  # of resampled draws, where q is not good: as many as it takes to forget where they began
FORGOTTEN = 0.3  # of the memory (diagnosis.py, 6) of every parameter
TOGETHER = 500  # the most draws that are moved together; more are their states after half as many moves more
LEAST_TOGETHER = 100  # how many adapt the step together: alone, each would be biased by its own past
TABLE_NUMBERS = 20_000_000  # the most draws times dimensions behind the table of parameters
REFLECTED, REFLECTED_DIM = 10, 400  # draws whose coordinates change sign in turn, and in how many dimensions
REFUSAL = "do not trust this approximation"
_MOMENTS = "fit.marginals() has mean, sd and quantiles of every parameter; fit.family is the approximation"
#: what users of other libraries look for, and where it is
INSTEAD = {
    "covariance": _MOMENTS,
    "draws": "fit.family.sample(1000, seed=0) draws",
    "log_prob": "fit.family.log_prob(x) is the density",
    "mean": _MOMENTS,
    "plot": "bayescore.plotting.plot_fit(fit) and plot_marginals(fit) draw it",
    "posterior": "fit.family is the approximation",
    "sample": "fit.family.sample(1000, seed=0) draws",
    "sd": _MOMENTS,
    "std": _MOMENTS,
}


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

    if not TYPE_CHECKING:  # a type checker knows what a fit has

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):  # a property that failed: its own error
                return object.__getattribute__(self, name)
            remedy = INSTEAD.get(name, "print(fit.summary()) shows the most of it")
            raise AttributeError(f"a Fit has no {name}; {remedy}")

    # -- diagnosis ---------------------------------------------------------------------------------

    @cached_property
    def weighed(self) -> Diagnosis | None:
        """What importance ratios at draws from q say, before any moves; None without a density."""
        if why_no_diagnosis(self) is not None:
            return None
        return diagnose(self._diagnosis_draws, self._log_ratios_at, self._parameters_at)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What importance ratios, and moves where q is not good, say (inference/diagnosis.py).

        None without a density.
        """
        found, target, q = self.weighed, self.target, self.family
        if found is None or found.good or found.shifts is None or self._objections:
            return found
        assert target is not None
        if not can_move(target, q):
            return found
        seed = self.seed + 7919
        x, noise = self._resampled(TOGETHER, FIRST_DRAWS, generator(seed, q.device), seed, moves=True)
        assert noise is not None
        walkers = Walkers(target, q, noise, generator(seed, q.device, "moves of the pilot"))
        before, done = self._parameters_at(x).cpu().double(), 0
        for moves in MOVES:
            walkers.move(moves - done, adapt=True)
            after, done = self._parameters_at(walkers.x).cpu().double(), moves
            if bool((memory(before, after) <= FORGOTTEN).all()):
                break
        return found.with_moves(done, before, after, walkers.score_calls)

    def take_diagnosis(self, other: Fit) -> None:
        """Keep what another fit of the same q, target and seed has already found of its diagnosis."""
        for part in ("weighed", "diagnosis"):
            if part in other.__dict__:
                self.__dict__[part] = other.__dict__[part]

    def _diagnosis_draws(self, n: int, block: int) -> Tensor:
        purpose = f"diagnosis {block}" if block else ""
        return self.family.sample(n, generator(self.seed + 7919, self.family.device, purpose))

    def _log_ratios_at(self, x: Tensor) -> Tensor:
        assert self.target is not None
        with torch.no_grad():
            return self.target.log_prob(x) - self.family.log_prob(x)

    def _parameters_at(self, x: Tensor) -> Tensor:
        """The model's own parameters at draws (n, D), one column per number; the draws if it has none."""
        constrain = getattr(model_of(self.target), "constrain", None)
        if constrain is None:
            return x
        with torch.no_grad():
            return torch.stack(list(columns(constrain(x)).values()), -1)

    @property
    def elbo(self) -> Estimate | None:
        """E_q[log Phi - log q] and its Monte Carlo error."""
        return None if self.weighed is None else self.weighed.elbo

    @property
    def khat(self) -> Estimate | None:
        """PSIS k-hat, the tail index of importance ratios: above 0.7 weights correct q slowly."""
        return None if self.weighed is None else self.weighed.khat

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
        if self._objections:
            return Trust.IMPROPER, f"{REFUSAL}: {'; '.join(self._objections)}"
        found = self.diagnosis
        if found is None:
            return Trust.UNKNOWN, f"unknown: {why_no_diagnosis(self)}"
        lost = float((~found.log_ratios.isfinite()).double().mean())
        if lost > 0:
            lack = f"the density is not finite at {lost:.2%} of its draws"
            return Trust.POOR, f"{REFUSAL}: {lack}{self._without_bound()}"
        if found.close:
            close = f"log density and log q differ by a constant up to {found.spread:.1g} nats"
            return Trust.GOOD, f"good: {close}"
        trust, words = self._graded(found)
        return trust, f"{words}{self._without_bound()}"

    def _without_bound(self) -> str:
        """The hint at a scale without its bound: no draw has a finite density if its sign is changed."""
        x = self._diagnosis_draws(REFLECTED, 0)
        x = x[self._log_ratios_at(x).isfinite()]
        positive = (x > 0).all(0).nonzero().flatten()  # (K,)
        if not len(x) or not len(positive) or self.family.dim > REFLECTED_DIM:
            return ""
        chosen = torch.eye(self.family.dim, dtype=x.dtype, device=x.device)[positive]  # (K, D)
        signs = 1 - 2 * chosen
        finite = self._log_ratios_at((x * signs.unsqueeze(1)).flatten(0, 1)).isfinite()
        bounded = positive[~finite.reshape(-1, len(x)).any(-1)]
        if not len(bounded):
            return ""
        assert self.target is not None
        name = coordinate_names(model_of(self.target) or self.target)[int(bounded[0])]
        return (
            f"; the density is finite only where {name} is positive. Is it a scale without its bound? "
            f"Declare it as real<lower=0> {name} in Stan, or as Positive() in a TorchModel"
        )

    def _graded(self, found: Diagnosis) -> tuple[Trust, str]:
        """Grade and sentence from the shifts and what is left of them; words say how near the limit is."""
        k = found.khat
        tail = f"k-hat is {k}"
        if found.shifts is None or found.left is None:
            return Trust.POOR, f"{REFUSAL}: a parameter is not finite at some draws; {tail}"
        shift, left = self._worst(found.shifts), float(found.left.max())
        if found.good:
            return Trust.GOOD, f"good: importance weights move {shift}; {tail}"
        near = f", near the limit of {LEFT_LIMIT:g}" if LEFT_LIMIT / 2 < left < 2 * LEFT_LIMIT else ""
        if found.usable:
            means = f"weights and {found.moves} moves" if found.moves else "weights"
            return (
                Trust.USABLE,
                f"usable after resampling: importance weights move {shift}, and draws of fit.resample are "
                f"corrected for it by {means} but for about {left:.2g} sd{near}; {tail}",
            )
        if left >= 1 and not k.value <= 1:
            why = "q misses a part of the posterior that weights and moves of its draws cannot replace"
            return Trust.POOR, f"{REFUSAL}: {tail}: {why}"
        name = self._names()[int(found.left.argmax())]
        much = f"about {left:.2g} sd" if left < 1 else "an unknown error"
        what = f"weights and {found.moves} moves" if found.moves else "weights"
        why = (
            f"{what} of its draws correct it in part only: weights move {shift}, and {much} may be left in "
            f"{name}"
        )
        return Trust.POOR, f"{REFUSAL} as it is: {tail}; {why}{near}; check what matters against MCMC"

    def _pilot_calls(self) -> str:
        """The calls of the diagnosis, which the fit did not make."""
        calls = 0 if self.diagnosis is None else self.diagnosis.score_calls
        return f", and {calls} for the diagnosis" if calls else ""

    def _names(self) -> list[str]:
        """The names of the parameters that are judged."""
        return list(columns(getattr(model_of(self.target), "constrain", _plain)(self.family.sample(2, 0))))

    def _worst(self, shifts: Shifts) -> str:
        """The largest shifts in words."""
        names = self._names()
        i, j = int(shifts.mean.abs().argmax()), int(shifts.sd.abs().argmax())
        mean = f"the mean of {names[i]} by {float(shifts.mean[i].abs()):.2f} sd"
        return f"at most {mean} and the sd of {names[j]} by {float(shifts.sd[j].expm1().abs()):.0%}"

    def marginals(self) -> Marginals:
        """Every quantity of the model: mean, sd, quantiles under q, and how far weights would move them."""
        draws = max(1000, min(10_000, TABLE_NUMBERS // self.family.dim))
        x = self.family.sample(draws, seed=self.seed)
        weights = None
        if why_no_diagnosis(self) is None:
            smoothed = smoothed_log_weights(self._log_ratios_at(x))[0].exp()
            weights = smoothed if bool(smoothed.isfinite().all()) else None
        named = columns(groups(self.target, x, self.seed)["posterior"])
        return marginals_of(named, weights)

    def summary(self) -> str:
        """What a person wants to know in a few lines, and the table of parameters."""
        none = f"none: {why_no_diagnosis(self)}"
        lines = [
            f"{type(self.method).__name__} with {self.family}",
            f"status       {self.status}",
            f"score calls  {self.counts.score_calls} in {self.seconds:.2f} s{self._pilot_calls()}",
            f"ELBO         {self.elbo or none}",
            f"k-hat        {self.khat or none}",
            f"verdict      {self.verdict}",
            *(f"             {note}" for note in self.notes),
        ]
        if bool(self.family.flat().isfinite().all()):
            lines += ["", str(self.marginals())]
        return "\n".join(lines)

    # -- draws -------------------------------------------------------------------------------------

    def resample(self, n: int, seed: int = 0, *, moves: int | None = None) -> Tensor:
        """n draws (n, D) closer to the target than q: draws of q, resampled by weights Phi/q, then moved.

        They are chosen with replacement, by Pareto-smoothed weights, from four times as many draws of q, at
        least 4,000 (no more than n where D is large). Where q is not good they then make `moves` Hamiltonian
        moves (inference/moves.py), of four scores each. More than 500 draws are states of 500 walkers,
        `moves`/2 apart and next to each other, so that they are worth fewer independent ones. Trust them if
        the verdict calls them usable.

        Arguments:
            n: number of draws.
            seed: of the draws and of the moves.
            moves: by default those on which the verdict rests, `fit.diagnosis.moves`: 16, 32 or 64, or none
                if q is good, moves would leave more than weights, the target is noisy, or the family is a
                mixture. 0 only weights.
        """
        check_count("n", n)
        if (reason := why_no_diagnosis(self)) is not None:
            raise ValueError(f"draws cannot be weighted: {reason}")
        assert self.target is not None
        if moves is not None:
            check_count("moves", moves, least=0)
        if moves is None:
            assert self.diagnosis is not None
            moves = self.diagnosis.moves
        elif moves and not can_move(self.target, self.family):
            raise ValueError(
                f"draws of {self.family!r} for {self.target!r} cannot be moved: that takes an exact log "
                "density and a family whose draws are transformed noise"
            )
        pool = max(n, FIRST_DRAWS, min(POOL * n, MOST_NUMBERS // self.family.dim))
        rng = generator(seed, self.family.device, "resample")
        if not moves:
            return self._resampled(n, pool, rng, seed, moves=False)[0]
        rounds = -(-n // TOGETHER)
        together = max(LEAST_TOGETHER, -(-n // rounds))
        noise = self._resampled(together, pool, rng, seed, moves=True)[1]
        assert noise is not None
        walkers = Walkers(self.target, self.family, noise, generator(seed, self.family.device, "moves"))
        walkers.move(moves, adapt=True)
        kept = [walkers.x]
        while len(kept) < rounds:
            walkers.move(-(-moves // 2))
            kept.append(walkers.x)
        return torch.stack(kept, 1).flatten(0, 1)[:n]  # all states of a walker, then those of the next

    def _resampled(
        self, n: int, pool: int, rng: torch.Generator, seed: int, *, moves: bool
    ) -> tuple[Tensor, Tensor | None]:
        """n draws (n, D) by weights out of `pool` draws of q from `rng`, and the noise that they transform.

        With moves to follow, weights that leave fewer than n effective draws are tempered.
        """
        q, noise = self.family, None
        if q.reparametrised:
            noise = torch.randn(pool, q.noise_dim, generator=rng, dtype=q.dtype, device=q.device)
            with torch.no_grad():
                x = q.transform(noise)
        else:
            x = q.sample(pool, rng)
        log_weights = smoothed_log_weights(self._log_ratios_at(x))[0]
        if not bool(log_weights.exp().isfinite().all()):
            raise ValueError("draws cannot be weighted: the log density is not finite at some draws of q")
        weights = (tempered(log_weights, n) if moves else log_weights).exp()
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator(seed, purpose="choice"))
        chosen = chosen.to(x.device)
        return x[chosen], None if noise is None else noise[chosen]

    def to_arviz(
        self,
        draws: int = 4000,
        seed: int = 0,
        *,
        resample: bool = False,
        observed: Mapping[str, Any] | None = None,
    ) -> arviz.InferenceData:
        """Draws from q as ArviZ InferenceData, with log q and log Phi in `sample_stats`: one chain.

        Models with named parameters (Stan, TorchModel, PosteriorDB) give their constrained parameters and
        generated quantities, in the groups posterior, log_likelihood and posterior_predictive; every other
        target gives `theta`. With `resample` the draws are those of `resample`. `observed` are the data by
        name, for `observed_data`; those of a Stan program are known. `bs.to_arviz` makes one chain of each of
        several fits.
        """
        return to_arviz([self], draws, seed, resample=resample, observed=observed)

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


def to_arviz(
    fits: Sequence[Fit],
    draws: int = 1000,
    seed: int = 0,
    *,
    resample: bool = False,
    observed: Mapping[str, Any] | None = None,
) -> arviz.InferenceData:
    """k independent fits of one target as k chains of ArviZ InferenceData, as `Fit.to_arviz`.

    Draws of a fit are independent, so r_hat says nothing about one fit; over several it tells whether they
    agree.

        fits = bs.fit_many(target, seeds=range(4))
        arviz.summary(bs.to_arviz(fits))
    """
    if not fits:
        raise ValueError("to_arviz needs at least one fit; got none")
    if any(fit.target is not fits[0].target for fit in fits):
        raise ValueError("the chains of one file are fits of one target; export other targets one by one")
    first = fits[0]
    chains = [
        fit.resample(draws, seed + i) if resample else fit.family.sample(draws, seed + i)
        for i, fit in enumerate(fits)
    ]
    x = torch.stack(chains)  # (k, draws, D)
    rows = zip(fits, chains, strict=True)
    stats = {"log_q": torch.stack([fit.family.log_prob(chain) for fit, chain in rows])}
    if first.target is not None and first.target.has_density:
        with torch.no_grad():
            stats["lp"] = torch.stack([first.target.log_prob(chain) for chain in chains])
    attrs = {
        "method": repr(first.method),
        "status": "; ".join(fit.status for fit in fits),
        "score_calls": sum(fit.counts.score_calls for fit in fits),
    }
    if all(fit.khat is not None for fit in fits):
        attrs["khat"] = max(fit.khat.value for fit in fits if fit.khat is not None)
        attrs["verdict"] = "; ".join(fit.verdict for fit in fits)
    return inference_data(groups(first.target, x, seed), stats, attrs, data_of(first.target, observed))


def _plain(x: Tensor) -> dict[str, Tensor]:
    """The draws of a target whose parameters have no names."""
    return {"theta": x}


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

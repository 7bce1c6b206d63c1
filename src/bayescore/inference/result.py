"""The result of a fit: the approximation, its history, its diagnosis, its draws, and its file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families import by_name as family_by_name
from bayescore.families.base import Family
from bayescore.inference import storage as saved
from bayescore.inference.export import columns, groups, inference_data, model_of
from bayescore.inference.history import History
from bayescore.inference.outcome import Outcome
from bayescore.initial.checks import check_match
from bayescore.methods import by_name as method_by_name
from bayescore.methods.base import Method, State
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import pareto_khat, smoothed_log_weights
from bayescore.metrics.reference import Comparison, compare_draws
from bayescore.rng import generator
from bayescore.targets.base import Target
from bayescore.targets.counting import Counts

if TYPE_CHECKING:
    import arviz

__all__ = ["Counts", "Fit", "Outcome"]

DIAGNOSIS_DRAWS = 4000
EVEN = 0.1  # nats: log ratios that vary less than this need no tail index to be trusted


@dataclass(frozen=True)
class Fit:
    """A fitted approximation.

    `family` is the approximation, `status` says in a sentence how the run ended, `history` holds what was
    recorded, `khat` and `elbo` are diagnostics with Monte Carlo errors (None where there is no density;
    `reasons` then says why). `notes` are sentences on what an automatic fit did; `doubts` are reasons not to
    trust it that the diagnostics do not see.
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
    # sum and number of the losses since the last record, and steps skipped in a row
    pending: tuple[float, int, int] = field(default=(0.0, 0, 0), repr=False)
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def score_calls(self) -> int:
        return self.counts.score_calls

    # -- diagnosis ---------------------------------------------------------------------------------

    @cached_property
    def _log_ratios(self) -> Tensor | str:
        """log Phi - log q at draws from q, or why there is none."""
        if self.target is None:
            return "the fit was loaded without its target; pass it to Fit.load(path, target)"
        if not self.target.has_density:
            return f"{type(self.target).__name__} has scores but no log density"
        return self._ratios(self.family.sample(DIAGNOSIS_DRAWS, seed=self.seed + 7919), self.target)

    def _ratios(self, x: Tensor, target: Target) -> Tensor:
        with torch.no_grad():
            return target.log_prob(x) - self.family.log_prob(x)

    @property
    def elbo(self) -> Estimate | None:
        """E_q[log Phi - log q] and its Monte Carlo error."""
        ratios = self._log_ratios
        if isinstance(ratios, str):
            return None
        return Estimate(float(ratios.mean()), float(ratios.std()) / math.sqrt(len(ratios)))

    @property
    def khat(self) -> Estimate | None:
        """PSIS k-hat: below 0.5 good, up to 0.7 usable, above it do not trust q."""
        ratios = self._log_ratios
        return None if isinstance(ratios, str) else pareto_khat(ratios)

    @property
    def reasons(self) -> dict[str, str]:
        """Why a diagnostic is None, by name."""
        ratios = self._log_ratios
        return {"elbo": ratios, "khat": ratios} if isinstance(ratios, str) else {}

    def summary(self) -> str:
        """What a person wants to know, in a few lines."""
        elbo, khat = self.elbo, self.khat
        why = self.reasons
        lines = [
            f"{type(self.method).__name__} with {self.family}",
            f"status       {self.status}",
            f"score calls  {self.counts.score_calls} in {self.seconds:.2f} s",
            f"ELBO         {'none: ' + why['elbo'] if elbo is None else elbo}",
            f"k-hat        {'none: ' + why['khat'] if khat is None else khat}",
            f"verdict      {self.verdict}",
            *(f"             {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """Whether to trust q, in plain words."""
        if self.doubts:
            return f"do not trust this approximation: {'; '.join(self.doubts)}"
        ratios = self._log_ratios
        if isinstance(ratios, str):
            return f"unknown: {ratios}"
        lost = float((~ratios.isfinite()).double().mean())
        if lost > 0:
            return f"do not trust this approximation: the density is not finite at {lost:.2%} of its draws"
        khat, spread = pareto_khat(ratios).value, float(ratios.std())
        if spread < EVEN:
            return f"good: log density and log q differ by a constant up to {spread:.1g} nats"
        if khat < 0.5:
            return "good"
        return "usable" if khat <= 0.7 else "do not trust this approximation"

    # -- draws -------------------------------------------------------------------------------------

    def resample(self, n: int, seed: int = 0) -> Tensor:
        """n draws (n, D) nearer to the target than q: drawn from q, kept by Pareto-smoothed weights Phi/q.

        The draws come with replacement from max(n, 4000) draws of q, so some are repeated. They are to be
        trusted where k-hat is at most 0.7.
        """
        check_count("n", n)
        if self.target is None or isinstance(self._log_ratios, str):
            raise ValueError(f"draws cannot be weighted: {self._log_ratios}")
        x = self.family.sample(max(n, DIAGNOSIS_DRAWS), generator(seed, self.family.device, "resample"))
        weights = smoothed_log_weights(self._ratios(x, self.target))[0].exp()
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
            draws: how many of q to compare with.
            seed: of these.
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
        """Write the fit to one file, whole or not at all."""
        config = self.method.config()
        for key, value in config.items():
            if callable(value):
                raise TypeError(
                    f"{key}={value!r} is a function and cannot be saved; use a named schedule or a number"
                )
        header = {
            "family": {"name": self.family.name, **self.family.config()},
            "method": {"name": self.method.name, **config},
            "step": self.state.step,
            "horizon": self.state.horizon,
            "outcome": self.outcome.name,
            "status": self.status,
            "history": {k: [saved.encode(v) for v in values] for k, values in self.history.columns.items()},
            "counts": asdict(self.counts),
            "seconds": self.seconds,
            "seed": self.seed,
            "pending": [saved.encode(self.pending[0]), *self.pending[1:]],
            "notes": self.notes,
            "doubts": self.doubts,
        }
        tensors = {f"state.{key}": value for key, value in self.state.tensors().items()}
        saved.write(Path(path), header, {**tensors, "streams": self.streams})

    @classmethod
    def load(cls, path: str | os.PathLike[str], target: Target | None = None) -> Fit:
        """Read a saved fit; with its target it can be diagnosed and resumed."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no saved fit at {path}")
        try:
            return _rebuild(*saved.read(path), target)
        except (
            SafetensorError,
            KeyError,
            IndexError,
            ValueError,
            TypeError,
            RecursionError,
            OSError,
        ) as error:
            raise ValueError(
                f"{path} is not a readable bayescore fit (truncated, or written by something else): {error}"
            ) from error


def _rebuild(header: dict[str, Any], tensors: dict[str, Tensor], target: Target | None) -> Fit:
    method_config = dict(header["method"])
    method = method_by_name(method_config.pop("name"))(**method_config)
    family_config = dict(header["family"])
    kind = family_by_name(family_config.pop("name"))
    states = {k.removeprefix("state."): v for k, v in tensors.items() if k.startswith("state.")}
    device = target.device if target is not None else torch.device("cpu")
    states = {k: v.to(device) for k, v in states.items()}
    batch = kind.rebuild(
        family_config, {k.removeprefix("family."): v for k, v in states.items() if k.startswith("family.")}
    )
    fresh = method.init(batch, header["horizon"]).tensors()
    if {k: v.shape for k, v in fresh.items()} != {k: v.shape for k, v in states.items()}:
        raise ValueError("its tensors are not those of its method and family")
    state = replace(method.init(batch, header["horizon"]), step=header["step"]).with_tensors(states)
    if target is not None:
        check_match(target, state.family)
    total, n, skips = header["pending"]
    return Fit(
        family=state.family[0],
        method=method,
        target=target,
        outcome=Outcome[header["outcome"]],
        status=header["status"],
        history=History({key: [float(v) for v in values] for key, values in header["history"].items()}),
        counts=Counts(**header["counts"]),
        seconds=header["seconds"],
        seed=header["seed"],
        state=state,
        streams=tensors["streams"],
        pending=(float(total), int(n), int(skips)),
        notes=tuple(header.get("notes", ())),
        doubts=tuple(header.get("doubts", ())),
    )

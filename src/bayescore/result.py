"""The result of a fit: the approximation, its history, its diagnosis, and its file.

A fit is saved as one safetensors file: tensors (family, optimizer state, random streams) and, in the header,
a JSON text (configuration, counts, history). Nothing is pickled, and a file is written whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bayescore.families import by_name as family_by_name
from bayescore.families.base import Family
from bayescore.history import History
from bayescore.methods import by_name as method_by_name
from bayescore.methods.base import Method, State
from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import pareto_khat
from bayescore.start import check_match
from bayescore.targets.base import Target

if TYPE_CHECKING:
    import arviz

__all__ = ["Counts", "Fit", "Outcome"]

FORMAT = "bayescore-fit-1"
DIAGNOSIS_DRAWS = 4000
EVEN = 0.1  # nats: log ratios that vary less than this need no tail index to be trusted


class Outcome(Enum):
    """How a run ended."""

    CONVERGED = "converged"
    BUDGET = "step budget used"
    WORSE = "got worse"
    DIVERGED = "diverged"
    INTERRUPTED = "interrupted"
    STOPPED = "stopped by a callback"


@dataclass(frozen=True)
class Counts:
    """What a run asked of its target."""

    score_calls: int = 0
    hessian_products: int = 0
    density_evaluations: int = 0  # for the recorded metrics
    check_calls: int = 0  # scores taken by the check of the target at the start
    skipped_steps: int = 0  # steps left out because a score was not finite


@dataclass(frozen=True)
class Fit:
    """A fitted approximation.

    `family` is the approximation, `status` says in a sentence how the run ended, `history` holds what was
    recorded, `khat` and `elbo` are diagnostics with Monte Carlo errors (None where there is no density;
    `reasons` then says why).
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
        x = self.family.sample(DIAGNOSIS_DRAWS, seed=self.seed + 7919)
        with torch.no_grad():
            return self.target.log_prob(x) - self.family.log_prob(x)

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
            f"k-hat        {'none: ' + why['khat'] if khat is None else f'{khat} ({self.verdict})'}",
        ]
        return "\n".join(lines)

    @property
    def verdict(self) -> str:
        """Whether to trust q, in plain words."""
        ratios = self._log_ratios
        if isinstance(ratios, str):
            return f"unknown: {ratios}"
        khat, spread = pareto_khat(ratios).value, float(ratios.std())
        if spread < EVEN:
            return f"good: log density and log q differ by a constant up to {spread:.1g} nats"
        if khat < 0.5:
            return "good"
        return "usable" if khat <= 0.7 else "do not trust this approximation"

    def to_arviz(self, draws: int = 4000, seed: int = 0) -> arviz.InferenceData:
        """Draws from q as ArviZ InferenceData, with log q and log Phi in `sample_stats`."""
        try:
            import arviz
        except ImportError as error:
            raise ImportError("to_arviz needs ArviZ: pip install 'bayescore[arviz]'") from error
        x = self.family.sample(draws, seed)
        stats = {"log_q": self.family.log_prob(x).unsqueeze(0).cpu().numpy()}
        if self.target is not None and self.target.has_density:
            with torch.no_grad():
                stats["lp"] = self.target.log_prob(x).unsqueeze(0).cpu().numpy()
        attrs = {"method": repr(self.method), "status": self.status, "score_calls": self.counts.score_calls}
        if self.khat is not None:
            attrs["khat"] = self.khat.value
        return arviz.from_dict(
            posterior={"theta": x.unsqueeze(0).cpu().numpy()}, sample_stats=stats, posterior_attrs=attrs
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
            "format": FORMAT,
            "family": {"name": self.family.name, **self.family.config()},
            "method": {"name": self.method.name, **config},
            "step": self.state.step,
            "horizon": self.state.horizon,
            "outcome": self.outcome.name,
            "status": self.status,
            "history": {key: [_encode(v) for v in values] for key, values in self.history.columns.items()},
            "counts": self.counts.__dict__,
            "seconds": self.seconds,
            "seed": self.seed,
            "pending": [_encode(self.pending[0]), *self.pending[1:]],
        }
        tensors = {
            f"state.{k}": v.detach().cpu().contiguous().clone() for k, v in self.state.tensors().items()
        }
        text = json.dumps(header, allow_nan=False)
        data = save({**tensors, "streams": self.streams.cpu()}, {"json": text})
        _write(Path(path), data)

    @classmethod
    def load(cls, path: str | os.PathLike[str], target: Target | None = None) -> Fit:
        """Read a saved fit; with its target it can be diagnosed and resumed."""
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"there is no saved fit at {path}")
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["json"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return _rebuild(header, tensors, target)
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


def _encode(value: float) -> float | str:
    """A number as strict JSON has it: NaN and infinities as words."""
    return value if math.isfinite(value) else str(value)


def _write(path: Path, data: bytes) -> None:
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to save {path.name} in; make it first")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


_KINDS: dict[str, type] = {
    "format": str,
    "family": dict,
    "method": dict,
    "step": int,
    "horizon": int,
    "outcome": str,
    "status": str,
    "history": dict,
    "counts": dict,
    "seconds": float,
    "seed": int,
    "pending": list,
}


def _check_header(header: Any) -> None:
    if not isinstance(header, dict):
        raise ValueError(f"its header is {type(header).__name__}, not an object")
    for key, kind in _KINDS.items():
        if type(header.get(key)) is not kind:
            raise ValueError(f"its header has no {key} of the kind {kind.__name__}")
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
    lengths = {len(values) for values in header["history"].values()}
    if len(lengths) > 1:
        raise ValueError("the columns of its history differ in length")


def _rebuild(header: Any, tensors: dict[str, Tensor], target: Target | None) -> Fit:
    _check_header(header)
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
    )

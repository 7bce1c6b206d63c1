"""The JAX peers run in a process of their own (jax_worker.py), because JAX's 64-bit switch is global.

The process keeps what it has compiled. It runs one chunk of steps at a time, reports the Gaussian it has and
the seconds it computed, and waits; the ELBO is evaluated on this side, outside its clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bayescore.families.full import FullGaussian
from bayescore_lab.bench.choices import INSTALL
from bayescore_lab.bench.entries import PeerMethod, RunResult, Setting
from bayescore_lab.bench.problems import Problem
from bayescore_lab.engine.workers import RequestError, Worker, WorkerError, WorkerSilentError

__all__ = ["CHUNK", "PeerError", "PeerProcess", "missing"]

CHUNK = 50  # steps of a peer between two checks
PATIENCE = 180.0  # seconds without an answer after which the process counts as hung: XLA's CPU runtime can
TRIES = 3
WORKER = "bayescore_lab.bench.jax_worker"


def missing(entry: PeerMethod) -> str | None:
    """Why a peer cannot run here, or None."""
    absent = [name for name in entry.modules if find_spec(name) is None]
    return f"not installed: {INSTALL}" if absent else None


class PeerError(RuntimeError):
    """A peer, or the process of the peers, failed."""


class PeerSilenceError(PeerError):
    """The process of the peers has not answered for long."""


class PeerProcess:
    """The process in which the peers run; use it in a `with` statement."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._worker = Worker(WORKER, PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._worker.end()

    def log_density(self, problem: Problem, points: Tensor) -> Tensor:
        """The peers' log density at points (n, D)."""
        answer = self._ask("density", spec=problem.density(), points=points.tolist())
        return torch.tensor(answer["values"], dtype=torch.float64)

    def run(
        self, entry: PeerMethod, problem: Problem, setting: Setting, seed: int, limit: float
    ) -> RunResult:
        """Run until the goal is reached, the budget is used, or `limit` seconds are over.

        A run that hangs is discarded and restarted in a new process.
        """
        for _ in range(TRIES - 1):
            try:
                return self._run(entry, problem, setting, seed, limit)
            except PeerSilenceError:
                self._end()
                self._begin()
        return self._run(entry, problem, setting, seed, limit)

    def _run(
        self, entry: PeerMethod, problem: Problem, setting: Setting, seed: int, limit: float
    ) -> RunResult:
        answer = self._ask("begin", **self._plan(entry, problem, setting), seed=seed)
        compiling, one_shot = answer["compile_seconds"], answer["one_shot"]
        elbo = -math.inf
        for _ in range(1 if one_shot else math.ceil(problem.budget / CHUNK)):
            answer = self._ask("advance")
            elbo = self._elbo(problem, answer["mean"], answer["factor"])
            if elbo >= problem.goal or answer["seconds"] > limit:
                break
        seconds = answer["seconds"] if elbo >= problem.goal else None
        return RunResult(seconds, answer["score_calls"], answer["steps"], problem.best - elbo, compiling)

    def count(self, entry: PeerMethod, problem: Problem, setting: Setting, seed: int) -> int:
        """The score calls of a one-shot method, from a second run."""
        return int(self._ask("count", **self._plan(entry, problem, setting), seed=seed)["score_calls"])

    @staticmethod
    def _plan(entry: PeerMethod, problem: Problem, setting: Setting) -> dict[str, Any]:
        what = {"method": entry.method, "setting": dict(setting), "horizon": problem.budget, "chunk": CHUNK}
        return {"name": f"{problem.name}: {what}", "plan": {"spec": problem.density(), **what}}

    @staticmethod
    def _elbo(problem: Problem, mean: Any, factor: Any) -> float:
        mean, factor = np.asarray(mean, dtype=np.float64), np.asarray(factor, dtype=np.float64)
        if not (np.isfinite(mean).all() and np.isfinite(factor).all() and (np.diagonal(factor) > 0).all()):
            return -math.inf
        return problem.elbo(FullGaussian(torch.tensor(mean), torch.tensor(factor)))

    def _ask(self, do: str, **request: Any) -> Mapping[str, Any]:
        try:
            return self._worker.ask(do=do, **request)
        except WorkerSilentError as problem:
            raise PeerSilenceError(
                f"failed: the process of the JAX peers was silent for {PATIENCE:g} s"
            ) from problem
        except WorkerError as problem:
            raise PeerError("failed: the process of the JAX peers ended") from problem
        except RequestError as problem:
            raise PeerError(f"failed: {problem}") from problem

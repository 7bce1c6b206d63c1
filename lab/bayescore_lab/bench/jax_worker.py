"""The process of the JAX peers: compile, run one chunk at a time, report.

    python -m bayescore_lab.bench.jax_worker

answers requests (engine/workers.py):
    {"do": "density", "spec", "points"}         values of the log density
    {"do": "begin", "name", "plan", "seed"}     compile the plan unless it was, begin a run
    {"do": "advance"}                           one chunk; the Gaussian, steps, score calls, seconds so far
    {"do": "count", "name", "plan", "seed"}     the score calls of a one-shot method, off the clock
The seconds are those of `begin` and `advance` of a compiled method. Compilation is what the very first call
of both takes longer than the second one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from bayescore_lab.bench.jax_methods import PEERS, Chunked, Density, log_density
from bayescore_lab.engine.workers import Answer, answer_requests

__all__ = ["ONE_THREAD", "JaxServer"]

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class _Plan:
    """What to run on which density; two plans of one name are the same."""

    spec: Mapping[str, Any]
    method: str
    setting: Mapping[str, Any]
    horizon: int
    chunk: int

    def make(self, wrap: Callable[[Density], Density]) -> Chunked:
        """The method on the density, wrapped."""
        density, dim = log_density(self.spec)
        return PEERS[self.method](wrap(density), dim, self.setting, self.horizon, self.chunk)


class JaxServer:
    """Answers requests: compiled methods by the names of their plans, and the run under way."""

    def __init__(self, jax: Any) -> None:
        self.jax = jax
        self.compiled: dict[str, tuple[Chunked, float]] = {}
        self.counted: dict[str, Chunked] = {}
        self.ticks = 0
        self.state: Any = None
        self.seconds, self.steps = 0.0, 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request asks for; whatever a peer raises is an answer too, and the process lives on."""
        requests: dict[str, Callable[..., dict[str, Any]]] = {
            "density": self.density,
            "begin": self.begin,
            "advance": self.advance,
            "count": self.count,
        }
        try:
            found: dict[str, Any] = _plain(requests[request.pop("do")](**request))
        except Exception as problem:
            return {"error": f"{type(problem).__name__}: {problem}"}
        return found

    def density(self, spec: Mapping[str, Any], points: Any) -> dict[str, Any]:
        values = self.jax.vmap(log_density(spec)[0])(np.asarray(points, dtype=np.float64))
        return {"values": np.asarray(values)}

    def begin(self, name: str, plan: Mapping[str, Any], seed: int) -> dict[str, Any]:
        if name not in self.compiled:
            self.compiled[name] = self._compile(_Plan(**plan))
        self.method, compile_seconds = self.compiled[name]
        key = self.jax.random.key(seed)
        self.seconds, self.steps = 0.0, 0
        self._timed(lambda: self.method.begin(key))
        return {"compile_seconds": compile_seconds, "one_shot": self.method.one_shot}

    def advance(self) -> dict[str, Any]:
        self._timed(lambda: self.method.advance(self.state))
        self.steps += self.method.steps
        mean, factor = self.method.export(self.state)
        calls = None if self.method.one_shot else self.method.calls * self.steps
        counts = {"steps": self.steps, "score_calls": calls}
        return {"seconds": self.seconds, **counts, "mean": mean, "factor": factor}

    def count(self, name: str, plan: Mapping[str, Any], seed: int) -> dict[str, Any]:
        """The gradients a one-shot method takes, by a density that calls back at each of them."""
        if name not in self.counted:
            self.counted[name] = _Plan(**plan).make(self._ticking)
        self.ticks = 0
        method = self.counted[name]
        self.jax.block_until_ready(method.advance(method.begin(self.jax.random.key(seed))))
        self.jax.effects_barrier()
        return {"score_calls": self.ticks}

    def _timed(self, run: Callable[[], Any]) -> None:
        began = time.perf_counter()
        self.state = self.jax.block_until_ready(run())
        self.seconds += time.perf_counter() - began

    def _compile(self, plan: _Plan) -> tuple[Chunked, float]:
        """The compiled method and the seconds that took."""
        began = time.perf_counter()
        method = plan.make(lambda density: density)
        times = []
        for _ in range(2):
            self.jax.block_until_ready(method.advance(method.begin(self.jax.random.key(0))))
            times.append(time.perf_counter())
        return method, (times[0] - began) - (times[1] - times[0])

    def _ticking(self, density: Density) -> Density:
        """The same density, adding one to `ticks` whenever its gradient is taken."""

        def forward(x: Any) -> Any:
            self.jax.debug.callback(self._tick)
            return self.jax.value_and_grad(density)(x)

        counted = self.jax.custom_vjp(density)
        counted.defvjp(forward, lambda grad, cotangent: (cotangent * grad,))
        return counted

    def _tick(self) -> None:
        self.ticks += 1


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """The same with arrays as lists."""
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in found.items()}


def _prepare() -> Answer:
    """Import the libraries, on one thread and in 64 bits."""
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    for name in ("blackjax", "numpyro.infer", "optax"):  # now, so that no clock sees it
        with suppress(ImportError):
            import_module(name)
    return JaxServer(jax).answer


if __name__ == "__main__":
    answer_requests(_prepare)

"""What the process of the JAX peers does: compile, run one chunk at a time, report.

Requests and answers go through a pipe:
    ("density", spec, points)       values of the log density
    ("begin", spec, plan, seed)     compile unless it was, begin a run
    ("advance",)                    one chunk; the Gaussian, steps, score calls and the seconds so far
The seconds are those of `begin` and `advance` of a compiled method. Compilation is what the very first call
of both takes longer than the second one.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from bayescore.bench.jax_densities import log_density
from bayescore.bench.jax_methods import PEERS, Chunked

__all__ = ["serve"]

ONE_THREAD = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
}


def serve(pipe: Connection) -> None:
    """Answer requests until the other side goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the other side, which then ends this one
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    bench = _Bench()
    while True:
        try:
            name, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(getattr(bench, name)(*arguments))
        except Exception as problem:  # whatever a peer raises is reported, and the process lives on
            pipe.send({"error": f"{type(problem).__name__}: {problem}"})


class _Bench:
    """Compiled methods by problem, name and setting, and the run under way."""

    def __init__(self) -> None:
        self.compiled: dict[str, tuple[Chunked, float, int]] = {}
        self.state: Any = None
        self.seconds, self.steps = 0.0, 0

    def density(self, spec: Mapping[str, Any], points: Any) -> dict[str, Any]:
        jax = import_module("jax")
        return {"values": np.asarray(jax.vmap(log_density(spec)[0])(points))}

    def begin(self, spec: Mapping[str, Any], plan: Mapping[str, Any], seed: int) -> dict[str, Any]:
        jax = import_module("jax")
        name = repr((sorted((k, str(v)) for k, v in spec.items()), plan))
        if name not in self.compiled:
            self.compiled[name] = _compile(spec, plan)
        self.method, compile_seconds, self.calls = self.compiled[name]
        key = jax.random.key(seed)
        self.seconds, self.steps = 0.0, 0
        self._timed(lambda: self.method.begin(key))
        return {"compile_seconds": compile_seconds, "one_shot": self.method.one_shot}

    def advance(self) -> dict[str, Any]:
        self._timed(lambda: self.method.advance(self.state))
        self.steps += self.method.steps
        mean, factor = self.method.export(self.state)
        calls = self.calls * (1 if self.method.one_shot else self.steps)
        return {
            "seconds": self.seconds,
            "steps": self.steps,
            "score_calls": calls,
            "mean": mean,
            "factor": factor,
        }

    def _timed(self, run: Callable[[], Any]) -> None:
        jax = import_module("jax")
        began = time.perf_counter()
        self.state = jax.block_until_ready(run())
        self.seconds += time.perf_counter() - began


def _compile(spec: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[Chunked, float, int]:
    """The compiled method, the seconds that took, and the gradients per step (in all, if it is one-shot)."""
    jax = import_module("jax")
    density, dim = log_density(spec)

    def made(of: Callable[[Any], Any]) -> Chunked:
        return PEERS[plan["method"]](of, dim, plan["setting"], plan["horizon"], plan["chunk"])

    def once(method: Chunked) -> float:
        began = time.perf_counter()
        jax.block_until_ready(method.advance(method.begin(jax.random.key(0))))
        return time.perf_counter() - began

    began = time.perf_counter()
    method = made(density)
    once(method)
    compile_seconds = time.perf_counter() - began - once(method)
    return method, compile_seconds, method.calls or _count_gradients(density, lambda of: once(made(of)))


def _count_gradients(density: Callable[[Any], Any], run: Callable[[Callable[[Any], Any]], object]) -> int:
    """How many gradients a run takes, with a density that calls back at each of them."""
    jax = import_module("jax")
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    def forward(x: Any) -> Any:
        jax.debug.callback(tick)
        return jax.value_and_grad(density)(x)

    counted = jax.custom_vjp(density)
    counted.defvjp(forward, lambda grad, cotangent: (cotangent * grad,))
    run(counted)
    jax.effects_barrier()
    return count

"""The peers on PosteriorDB: NumPyro's SVI and BlackJAX's pathfinder, given the seconds that our fit took.

A peer is compiled first, off the clock. Every run then ends at a Gaussian on the unconstrained space:
    NumPyro     AutoMultivariateNormal with its default start, Adam on a cosine schedule. The number of steps
                that fit in the budget is found by timing; the learning rate and the number of particles are
                those with the best ELBO at that budget on a seed of its own, which is not on the clock.
    Pathfinder  one path after the other from uniform starts until the budget is used; the path with the best
                ELBO is kept. The gradients of one path are counted, in a second run.
The libraries are imported where they are used, in the peers' own process (posteriordb_worker.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from bayescore_lab.bench.jax_methods import Array, Density, gaussian_of_path

__all__ = ["Found", "numpyro_runs", "pathfinder_runs"]

RATES = (0.01, 0.03, 0.1, 0.3)
PARTICLES = (1, 16)
TUNING_SEED = 10_000
TIMED_STEPS = 200
JUDGES = 1000


@dataclass(frozen=True)
class Found:
    """The Gaussian of one run, what it cost, and the setting it had."""

    seed: int
    budget: float
    seconds: float
    score_calls: int
    mean: Array
    factor: Array
    setting: str


def numpyro_runs(
    density: Density, dim: int, seeds: Sequence[int], budgets: Sequence[float]
) -> Iterator[Found]:
    """SVI with every budget and seed."""
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    model, guide = _guided(density, dim)
    svis = {particles: _svi(model, guide, particles) for particles in PARTICLES}
    pace = {particles: _pace(run) for particles, run in svis.items()}
    densities = jax.jit(jax.vmap(density))

    def elbo(mean: Any, factor: Any) -> float:
        z = jax.random.normal(jax.random.key(1), (JUDGES, dim))
        x = mean + z @ factor.T
        entropy = 0.5 * dim * np.log(2 * np.pi * np.e) + np.log(np.diagonal(factor)).sum()
        value = float(densities(jnp.asarray(x)).mean() + entropy)
        return value if np.isfinite(value) else -np.inf

    for budget in budgets:
        steps = {particles: max(TIMED_STEPS, round(budget / pace[particles])) for particles in PARTICLES}
        tried = {
            (rate, particles): elbo(*svis[particles](TUNING_SEED, rate, steps[particles]))
            for particles in PARTICLES
            for rate in RATES
        }
        rate, particles = max(tried, key=lambda setting: tried[setting])
        for seed in seeds:
            n, seconds = steps[particles], 0.0
            while seconds < budget:  # a run that falls short of its budget is repeated with more steps
                n = n if seconds == 0 else math.ceil(1.1 * n * budget / seconds)
                began = time.perf_counter()
                mean, factor = svis[particles](seed, rate, n)
                seconds = time.perf_counter() - began
            words = f"learning rate {rate:g}, {particles} particle{'s' if particles > 1 else ''}"
            yield Found(seed, budget, seconds, particles * n, mean, factor, words)


def _guided(density: Density, dim: int) -> tuple[Callable[[], None], Any]:
    """The density as a model, and its guide, set up."""
    jax, numpyro, infer = (import_module(name) for name in ("jax", "numpyro", "numpyro.infer"))
    distributions, optax = import_module("numpyro.distributions"), import_module("optax")

    def model() -> None:
        flat = distributions.ImproperUniform(distributions.constraints.real_vector, (), (dim,))
        numpyro.factor("log_density", density(numpyro.sample("x", flat)))

    guide = infer.autoguide.AutoMultivariateNormal(model)
    infer.SVI(model, guide, optax.adam(0.01), infer.Trace_ELBO()).init(jax.random.key(0))
    return model, guide


def _svi(
    model: Callable[[], None], guide: Any, particles: int
) -> Callable[[int, float, int], tuple[Array, Array]]:
    """Seed, learning rate and number of steps to mean and factor; one compilation serves all of them."""
    jax, infer, optax = (import_module(name) for name in ("jax", "numpyro.infer", "optax"))
    loss = infer.Trace_ELBO(num_particles=particles)

    def run(key: Any, rate: Any, steps: Any) -> Any:
        def schedule(step: Any) -> Any:
            return 0.5 * rate * (1 + jax.numpy.cos(jax.numpy.pi * jax.numpy.minimum(step / steps, 1)))

        svi = infer.SVI(model, guide, optax.adam(schedule), loss)
        state = jax.lax.fori_loop(0, steps, lambda _, state: svi.stable_update(state)[0], svi.init(key))
        found = svi.get_params(state)
        return found["auto_loc"], found["auto_scale_tril"]

    compiled = jax.jit(run)

    def call(seed: int, rate: float, steps: int) -> tuple[Array, Array]:
        mean, factor = compiled(jax.random.key(seed), rate, steps)
        return np.asarray(mean), np.asarray(factor)

    return call


def _pace(run: Callable[[int, float, int], tuple[Array, Array]]) -> float:
    """Seconds per step of a compiled run: the difference of a long and a short one."""
    run(TUNING_SEED, RATES[0], 2)
    times = []
    for steps in (TIMED_STEPS, 5 * TIMED_STEPS):
        began = time.perf_counter()
        run(TUNING_SEED, RATES[0], steps)
        times.append(time.perf_counter() - began)
    return max(times[1] - times[0], 1e-3 * times[1]) / (4 * TIMED_STEPS)


def pathfinder_runs(
    density: Density, dim: int, seeds: Sequence[int], budgets: Sequence[float]
) -> Iterator[Found]:
    """Paths until the budget is used, with every budget and seed."""
    jax, pathfinder = import_module("jax"), import_module("blackjax.vi.pathfinder")

    def path(on: Density) -> Callable[[Any], Any]:
        def one(key: Any) -> Any:
            start, run = jax.random.split(key)
            position = jax.random.uniform(start, (dim,), minval=-2.0, maxval=2.0)
            return pathfinder.approximate(run, on, position)[0]

        return jax.jit(one)

    compiled = path(density)

    def paths(seed: int, budget: float) -> tuple[Any, int, float]:
        """The best path, how many there were, and the seconds they took."""
        best: Any = None
        n, began = 0, time.perf_counter()
        while n == 0 or time.perf_counter() - began < budget:
            state = jax.block_until_ready(compiled(jax.random.fold_in(jax.random.key(seed), n)))
            n += 1
            usable = np.isfinite(state.elbo) and np.isfinite(gaussian_of_path(state)[1]).all()
            if usable and (best is None or state.elbo > best.elbo):
                best = state
        return best, n, time.perf_counter() - began

    paths(TUNING_SEED, min(budgets))  # compiles
    gradients = _gradients(density, path)
    for budget in budgets:
        for seed in seeds:
            best, n, seconds = paths(seed, budget)
            nothing = np.full(dim, np.nan), np.full((dim, dim), np.nan)
            mean, factor = nothing if best is None else gaussian_of_path(best)
            words = f"{n} path{'s' if n > 1 else ''}"
            yield Found(seed, budget, seconds, gradients * n, mean, factor, words)


def _gradients(density: Density, path: Callable[[Density], Callable[[Any], Any]]) -> int:
    """The gradients of one path, by a density that calls back at each of them."""
    jax = import_module("jax")
    ticks: list[None] = []

    def forward(x: Any) -> Any:
        jax.debug.callback(lambda: ticks.append(None))
        return jax.value_and_grad(density)(x)

    counted = jax.custom_vjp(density)
    counted.defvjp(forward, lambda grad, cotangent: (cotangent * grad,))
    jax.block_until_ready(path(counted)(jax.random.key(TUNING_SEED)))
    jax.effects_barrier()
    return len(ticks)

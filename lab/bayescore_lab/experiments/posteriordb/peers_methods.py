"""The peers of posteriordb-peers: NumPyro's guides, BlackJAX's Pathfinder, PyMC's ADVI and DADVI.

Each takes a counted density, a seed and a budget of scores, and returns draws with their log q:
    NumPyro     SVI with one particle and `stable_update`, AutoMultivariateNormal or AutoIAFNormal with their
                defaults, Adam on a cosine schedule with each of RATES, or FLOW_RATES.
    flow        "converged": AutoIAFNormal with 16 particles and Adam at a constant rate in chunks of 1,000
                steps, until the mean loss of two chunks in a row is not below the best one by 0.02 nats, at
                most 20 chunks.
    Pathfinder  BlackJAX's, one path after the other from uniform starts in (-2, 2)^D, as long as a further
                path of the mean length is within the budget: at most 64 paths of its default 30 iterations
                of L-BFGS, or at most 16 of 200, as 30 do not reach the mode of every regression. q is the
                Gaussian of the path with the best ELBO, and the draws of all usable paths are weighted, as
                in the paper's multi-path form. Values for the ELBOs on its way are counted apart.
    ADVI        PyMC's mean-field and full-rank ADVI, one draw a step, its default optimizer, and Adam with
                each of RATES.
    DADVI       of pymc-extras: mean-field, 30 fixed draws, its default start, L-BFGS, because its default
                optimizer needs second derivatives, which a callback has not; its last search may overstep.
Where there are several trials, each has the whole budget, and the one with the best ELBO over common draws is
kept: a generous rule, as its other trials are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from bayescore_lab.bench.jax_methods import gaussian_of_path
from bayescore_lab.bench.posteriordb_peers import Advi, guided, svi_runner
from bayescore_lab.experiments.posteriordb.peers_density import (
    Array,
    CountedDensity,
    jax_density,
    pytensor_density,
)

__all__ = ["PEERS", "Approximation"]

RATES = (0.03, 0.1, 0.3)
FLOW_RATES = (0.001, 0.003, 0.01)
POOL = 40_000  # draws of q, and of all paths together
TRIAL_DRAWS = 2000  # over which trials are compared
PATHS = {30: 64, 200: 16}  # the most paths, by the iterations of one
CHUNK, MOST_CHUNKS, FLOW_PARTICLES, FLOW_GAIN = 1000, 20, 16, 0.02
FIXED_DRAWS = 30


@dataclass(frozen=True)
class Approximation:
    """Draws (n, D) of q with log q (n,), what they cost, and what the method itself weights, if anything."""

    draws: Array
    log_q: Array
    setting: str
    scores: int
    values: int
    pool: tuple[Array, Array] | None = None


#: draws (n, D) and their log q (n,)
Draw = Callable[[int], tuple[Array, Array]]


def _gaussian(mean: Array, factor: Array, seed: int) -> Draw:
    """Draws of N(mean, factor factor^T)."""

    def draw(n: int) -> tuple[Array, Array]:
        z = np.random.default_rng(seed).standard_normal((n, len(mean)))
        log_det = np.log(np.abs(np.diagonal(factor))).sum()
        log_q = -0.5 * (z**2).sum(-1) - log_det - 0.5 * len(mean) * math.log(2 * math.pi)
        return mean + z @ factor.T, log_q

    return draw


def _elbo(density: CountedDensity, draw: Draw) -> float:
    """Over TRIAL_DRAWS draws; -inf where it is not finite."""
    x, log_q = draw(TRIAL_DRAWS)
    if not (np.isfinite(x).all() and np.isfinite(log_q).all()):
        return -math.inf
    value = float((density.value(x) - log_q).mean())
    return value if math.isfinite(value) else -math.inf


def _best(density: CountedDensity, trials: Iterator[tuple[str, Draw]]) -> Approximation | None:
    """The trial with the best ELBO; None if there is none."""
    best, kept = -math.inf, None
    while True:
        density.reset()
        if (trial := next(trials, None)) is None:
            break
        setting, draw = trial
        scores, values = density.scores, density.values
        if (elbo := _elbo(density, draw)) > best:
            best, kept = elbo, (setting, draw, scores, values)
    if kept is None:
        return None
    setting, draw, scores, values = kept
    return Approximation(*draw(POOL), setting, scores, values)


def numpyro_gaussian(density: CountedDensity, seed: int, budget: int) -> Approximation | None:
    model, guide = guided(jax_density(density), density.dim)
    run = svi_runner(model, guide, 1)

    def trials() -> Iterator[tuple[str, Draw]]:
        for rate in RATES:
            found = run(seed, rate, budget)
            yield f"Adam {rate:g}", _gaussian(found["auto_loc"], found["auto_scale_tril"], seed)

    return _best(density, trials())


def numpyro_flow(density: CountedDensity, seed: int, budget: int) -> Approximation | None:
    model, guide = guided(jax_density(density), density.dim, "AutoIAFNormal")
    run = svi_runner(model, guide, 1)

    def trials() -> Iterator[tuple[str, Draw]]:
        for rate in FLOW_RATES:
            yield f"Adam {rate:g}", _flow(guide, run(seed, rate, budget), seed)

    return _best(density, trials())


def _flow(guide: Any, parameters: Any, seed: int) -> Draw:
    jax = import_module("jax")

    def draw(n: int) -> tuple[Array, Array]:
        q = guide.get_posterior(parameters)
        x, between = q.sample_with_intermediates(jax.random.key(seed), (n,))
        return np.asarray(x), np.asarray(q.log_prob(x, between))

    return draw


def converged_flow(density: CountedDensity, seed: int, budget: int) -> Approximation | None:  # noqa: ARG001
    jax, infer, optax = (import_module(name) for name in ("jax", "numpyro.infer", "optax"))
    model, guide = guided(jax_density(density), density.dim, "AutoIAFNormal")
    loss = infer.Trace_ELBO(num_particles=FLOW_PARTICLES)

    def trials() -> Iterator[tuple[str, Draw]]:
        for rate in FLOW_RATES:
            svi = infer.SVI(model, guide, optax.adam(rate), loss)
            chunk = jax.jit(
                lambda state, svi=svi: jax.lax.scan(lambda s, _: svi.stable_update(s), state, length=CHUNK)
            )
            state, best, behind, chunks = svi.init(jax.random.key(seed)), math.inf, 0, 0
            while chunks < MOST_CHUNKS and behind < 2:
                state, losses = chunk(state)
                reached, chunks = float(np.mean(losses)), chunks + 1
                behind = 0 if reached < best - FLOW_GAIN else behind + 1
                best = min(best, reached)
            yield f"Adam {rate:g}, {chunks:,} x {CHUNK:,} steps", _flow(guide, svi.get_params(state), seed)

    return _best(density, trials())


def pathfinder(density: CountedDensity, seed: int, budget: int) -> Approximation | None:
    found = [_paths(density, seed, budget, iterations) for iterations in PATHS]
    usable = [each for each in found if each is not None]
    return max(
        usable, key=lambda each: _elbo(density, lambda n: (each.draws[:n], each.log_q[:n])), default=None
    )


def _paths(density: CountedDensity, seed: int, budget: int, iterations: int) -> Approximation | None:
    """As many paths of so many iterations as the budget allows."""
    jax, library = import_module("jax"), import_module("blackjax.vi.pathfinder")
    on = jax_density(density)

    def path(key: Any) -> Any:
        start, run = jax.random.split(key)
        position = jax.random.uniform(start, (density.dim,), minval=-2.0, maxval=2.0)
        return library.approximate(run, on, position, maxiter=iterations)[0]

    compiled, key = jax.jit(path), jax.random.key(seed)
    density.reset()
    paths: list[tuple[float, Array, Array]] = []
    made = 0
    while made < PATHS[iterations] and (made == 0 or density.scores * (made + 1) / made <= budget):
        state = jax.block_until_ready(compiled(jax.random.fold_in(key, made)))
        made += 1
        mean, factor = gaussian_of_path(state)
        if np.isfinite(state.elbo) and np.isfinite(mean).all() and np.isfinite(factor).all():
            paths.append((float(state.elbo), mean, factor))
    scores, values = density.scores, density.values
    if not paths:
        return None
    each = -(-POOL // len(paths))
    draws = [_gaussian(mean, factor, seed + i)(each) for i, (_, mean, factor) in enumerate(paths)]
    pool = np.concatenate([x for x, _ in draws]), np.concatenate([log_q for _, log_q in draws])
    _, mean, factor = max(paths, key=lambda one: one[0])
    setting = f"{iterations} iterations, {made} path{'s' if made > 1 else ''}, {len(paths)} usable"
    return Approximation(*_gaussian(mean, factor, seed)(POOL), setting, scores, values, pool)


def pymc_advi(density: CountedDensity, seed: int, budget: int, method: str) -> Approximation | None:
    shared = import_module("pytensor").shared

    def declare(pm: Any) -> None:
        pm.Potential("log_density", pytensor_density(density)(pm.Flat("x", shape=density.dim)))

    def trials() -> Iterator[tuple[str, Draw]]:
        for rate in (None, *RATES):
            advi = default if rate is None else adam
            if rate is not None:
                adam.rate.set_value(rate)
            density.reset()
            advi.steps(seed, budget)
            setting = "PyMC's default optimizer" if rate is None else f"Adam {rate:g}"
            yield setting, _gaussian(*advi.gaussian(), seed)

    default, adam = Advi(declare, None, method), Advi(declare, shared(RATES[0]), method)
    return _best(density, trials())


def dadvi(density: CountedDensity, seed: int, budget: int) -> Approximation | None:
    pm, extras = import_module("pymc"), import_module("pymc_extras.inference")
    with pm.Model() as model:
        pm.Potential("log_density", pytensor_density(density)(pm.Flat("x", shape=density.dim)))

    def trials() -> Iterator[tuple[str, Draw]]:
        found = extras.fit_dadvi(
            model,
            n_fixed_draws=FIXED_DRAWS,
            n_draws=1,
            optimizer_method="L-BFGS-B",
            random_seed=seed,
            progressbar=False,
            options={"maxfun": max(1, budget // FIXED_DRAWS)},
        )
        mean, log_sd = np.split(np.asarray(found.optimizer_result["x"]), 2)
        yield "L-BFGS", _gaussian(mean, np.diag(np.exp(log_sd)), seed)

    return _best(density, trials())


#: by the names of the arms
PEERS: dict[str, Callable[[CountedDensity, int, int], Approximation | None]] = {
    "NumPyro Gaussian": numpyro_gaussian,
    "NumPyro flow": numpyro_flow,
    "NumPyro flow to convergence": converged_flow,
    "Pathfinder": pathfinder,
    "PyMC ADVI": lambda density, seed, budget: pymc_advi(density, seed, budget, "ADVI"),
    "PyMC full-rank ADVI": lambda density, seed, budget: pymc_advi(density, seed, budget, "FullRankADVI"),
    "DADVI": dadvi,
}

"""Peers on one PosteriorDB posterior, given the seconds that our fit took, in a process of their own.

    python -m bayescore_lab.bench.posteriordb_peers '{"posterior": "arK-arK", "peers": ["numpyro"],
                                                  "seeds": [0], "budgets": [0.5, 2.0]}'

prints one line of JSON: per peer a list of Gaussians on the unconstrained space with what they cost, one per
budget and seed, or the reason why there are none. Peers are "numpyro", "pathfinder" and "pymc". With "points"
in place of the last three it prints the JAX density there. The process is their own because JAX's 64-bit
switch is global; the libraries are imported where they are used. A peer is compiled first, off the clock.
    NumPyro     AutoMultivariateNormal with its default start, Adam on a cosine schedule. The number of steps
                that fit in the budget is found by timing; the learning rate and the number of particles are
                those with the best ELBO at that budget on a seed of its own, which is not on the clock.
    Pathfinder  one path after the other from uniform starts until the budget is used; the path with the best
                ELBO is kept. The gradients of one path are counted, in a second run.
    PyMC        full-rank ADVI on four models, written natively in PyMC. They declare their parameters in the
                order of our targets, and PyMC takes logarithms of positive ones as we do, so that its
                Gaussian lives on our unconstrained space. The step function is compiled once per optimizer
                and then called until the budget is used; its start, its optimizer's state and its random
                numbers are reset for every run. The optimizer with the lowest loss on a seed of its own at
                the same budget is chosen, off the clock: PyMC's default, or Adam with one of four rates.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from bayescore.targets.posterior_db.folder import Entry, Folder
from bayescore_lab.bench.choices import INSTALL
from bayescore_lab.bench.jax_methods import Array, Density, gaussian_of_path
from bayescore_lab.bench.jax_worker import ONE_THREAD
from bayescore_lab.bench.posteriordb_densities import log_density

__all__ = ["Advi", "answer", "guided", "svi_runner"]

RATES = (0.01, 0.03, 0.1, 0.3)
PARTICLES = (1, 16)
TUNING_SEED = 10_000
TIMED_STEPS = 200
ELBO_DRAWS = 1000
LOOK = 20  # steps between two looks at the clock
AVERAGED = 500  # losses at the end of a trial that judge it


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for, as JSON types."""
    entry = Folder(request.get("path"))[request["posterior"]]
    if "points" in request:
        jax = _jax()
        density, _ = log_density(entry.model_name, entry.data)
        values = jax.jit(jax.vmap(density))(np.asarray(request["points"], dtype=np.float64))
        return {"values": np.asarray(values).tolist()}
    return {peer: _run(peer, entry, request["seeds"], request["budgets"]) for peer in request["peers"]}


def _run(peer: str, entry: Entry, seeds: Sequence[int], budgets: Sequence[float]) -> Any:
    try:
        if peer == "pymc":
            runs = pymc_runs(entry.model_name, entry.data, seeds, budgets)
        else:
            _jax()
            method = {"numpyro": numpyro_runs, "pathfinder": pathfinder_runs}[peer]
            runs = method(*log_density(entry.model_name, entry.data), seeds, budgets)
        return [vars(run) | {"mean": run.mean.tolist(), "factor": run.factor.tolist()} for run in runs]
    except ImportError as missing:
        return f"{missing}; {INSTALL}"


def _jax() -> Any:
    jax = import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


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
    model, guide = guided(density, dim)
    svis = {particles: _gaussians(svi_runner(model, guide, particles)) for particles in PARTICLES}
    step_seconds = {particles: _step_seconds(run) for particles, run in svis.items()}
    densities = jax.jit(jax.vmap(density))

    def elbo(mean: Any, factor: Any) -> float:
        z = jax.random.normal(jax.random.key(1), (ELBO_DRAWS, dim))
        x = mean + z @ factor.T
        entropy = 0.5 * dim * np.log(2 * np.pi * np.e) + np.log(np.diagonal(factor)).sum()
        value = float(densities(jnp.asarray(x)).mean() + entropy)
        return value if np.isfinite(value) else -np.inf

    for budget in budgets:
        steps = {p: max(TIMED_STEPS, round(budget / step_seconds[p])) for p in PARTICLES}
        tried = {
            (rate, particles): elbo(*svis[particles](TUNING_SEED, rate, steps[particles]))
            for particles in PARTICLES
            for rate in RATES
        }
        rate, particles = max(tried, key=lambda pair: tried[pair])
        for seed in seeds:
            n, seconds = steps[particles], 0.0
            while seconds < budget:  # a run that falls short of its budget is repeated with more steps
                n = n if seconds == 0 else math.ceil(1.1 * n * budget / seconds)
                began = time.perf_counter()
                mean, factor = svis[particles](seed, rate, n)
                seconds = time.perf_counter() - began
            setting = f"learning rate {rate:g}, {particles} particle{'s' if particles > 1 else ''}"
            yield Found(seed, budget, seconds, particles * n, mean, factor, setting)


def guided(
    density: Density, dim: int, name: str = "AutoMultivariateNormal"
) -> tuple[Callable[[], None], Any]:
    """The density as a model, and a guide of NumPyro's for it, set up."""
    jax, numpyro, infer = (import_module(name) for name in ("jax", "numpyro", "numpyro.infer"))
    distributions, optax = import_module("numpyro.distributions"), import_module("optax")

    def model() -> None:
        flat = distributions.ImproperUniform(distributions.constraints.real_vector, (), (dim,))
        numpyro.factor("log_density", density(numpyro.sample("x", flat)))

    guide = getattr(infer.autoguide, name)(model)
    infer.SVI(model, guide, optax.adam(0.01), infer.Trace_ELBO()).init(jax.random.key(0))
    return model, guide


def svi_runner(
    model: Callable[[], None], guide: Any, particles: int
) -> Callable[[int, float, int], dict[str, Any]]:
    """Seed, learning rate and number of steps to parameters; one compilation serves all of them."""
    jax, infer, optax = (import_module(name) for name in ("jax", "numpyro.infer", "optax"))
    loss = infer.Trace_ELBO(num_particles=particles)

    def run(key: Any, rate: Any, steps: Any) -> Any:
        def schedule(step: Any) -> Any:
            return 0.5 * rate * (1 + jax.numpy.cos(jax.numpy.pi * jax.numpy.minimum(step / steps, 1)))

        svi = infer.SVI(model, guide, optax.adam(schedule), loss)
        state = jax.lax.fori_loop(0, steps, lambda _, state: svi.stable_update(state)[0], svi.init(key))
        return svi.get_params(state)

    compiled = jax.jit(run)

    def call(seed: int, rate: float, steps: int) -> dict[str, Any]:
        found: dict[str, Any] = jax.tree.map(np.asarray, compiled(jax.random.key(seed), rate, steps))
        return found

    return call


def _gaussians(run: Callable[[int, float, int], dict[str, Any]]) -> Callable[..., tuple[Array, Array]]:
    """Mean and factor instead of parameters."""

    def call(seed: int, rate: float, steps: int) -> tuple[Array, Array]:
        found = run(seed, rate, steps)
        return found["auto_loc"], found["auto_scale_tril"]

    return call


def _step_seconds(run: Callable[[int, float, int], tuple[Array, Array]]) -> float:
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
            setting = f"{n} path{'s' if n > 1 else ''}"
            yield Found(seed, budget, seconds, gradients * n, mean, factor, setting)


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


def kidscore(pm: Any, data: Mapping[str, Any]) -> None:
    school, iq, score = (np.asarray(data[name], dtype=float) for name in ("mom_hs", "mom_iq", "kid_score"))
    beta, sigma = pm.Flat("beta", shape=4), pm.HalfCauchy("sigma", 2.5)
    mean = beta[0] + beta[1] * school + beta[2] * iq + beta[3] * school * iq
    pm.Normal("y", mean, sigma, observed=score)


def schools(pm: Any, data: Mapping[str, Any]) -> None:
    y, error = (np.asarray(data[name], dtype=float) for name in ("y", "sigma"))
    z, mu, tau = pm.Normal("theta_trans", shape=len(y)), pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    pm.Normal("y", mu + tau * z, error, observed=y)


def ark(pm: Any, data: Mapping[str, Any]) -> None:
    y, order = np.asarray(data["y"], dtype=float), int(data["K"])
    lags = np.column_stack([y[order - k : len(y) - k] for k in range(1, order + 1)])
    alpha, beta = pm.Normal("alpha", 0, 10), pm.Normal("beta", 0, 10, shape=order)
    pm.Normal("y", alpha + lags @ beta, pm.HalfCauchy("sigma", 2.5), observed=y[order:])


def blr(pm: Any, data: Mapping[str, Any]) -> None:
    X, y = (np.asarray(data[name], dtype=float) for name in ("X", "y"))
    beta = pm.Normal("beta", 0, 10, shape=X.shape[1])
    pm.Normal("y", X @ beta, pm.HalfNormal("sigma", 10), observed=y)


MODELS: dict[str, Callable[[Any, Mapping[str, Any]], None]] = {
    "arK": ark,
    "blr": blr,
    "eight_schools_noncentered": schools,
    "kidscore_interaction": kidscore,
}


class Advi:
    """A compiled step of ADVI, full-rank by default, with one optimizer; `reset` takes it back to its start.

    `declare` writes the model, given PyMC. The optimizer is PyMC's default, or Adam with a shared rate.
    """

    def __init__(self, declare: Callable[[Any], None], rate: Any, method: str = "FullRankADVI") -> None:
        pm = import_module("pymc")
        with pm.Model() as model:
            declare(pm)
            self.approx = getattr(pm, method)(random_seed=0)
        self.names = [value.name for value in model.value_vars]
        options = {} if rate is None else {"obj_optimizer": pm.adam(learning_rate=rate)}
        self.rate = rate
        self.step = self.approx.objective.step_function(score=True, **options)
        self.shared = [variable for variable in self.step.get_shared() if variable is not rate]
        self.start = [variable.get_value(borrow=False) for variable in self.shared]
        self.step()

    def reset(self, seed: int) -> None:
        for place, (variable, value) in enumerate(zip(self.shared, self.start, strict=True)):
            random = isinstance(value, np.random.Generator)
            variable.set_value(np.random.default_rng([seed, place]) if random else np.array(value))

    def steps(self, seed: int, count: int) -> None:
        """So many steps from the start."""
        self.reset(seed)
        for _ in range(count):
            self.step()

    def run(self, seed: int, budget: float) -> tuple[float, int, float]:
        """Steps for `budget` seconds: the seconds, the steps and the loss at the end."""
        self.reset(seed)
        losses: list[float] = []
        began = time.perf_counter()
        while not losses or time.perf_counter() - began < budget:
            losses += [float(self.step()) for _ in range(LOOK)]
        seconds = time.perf_counter() - began
        loss = float(np.mean(losses[-AVERAGED:]))
        return seconds, len(losses), loss if np.isfinite(loss) else np.inf

    def gaussian(self) -> tuple[Array, Array]:
        """Mean and factor, coordinates in the order in which the model declares them."""
        order = self.approx.approx.ordering
        taken = np.concatenate([np.arange(order[name][1].start, order[name][1].stop) for name in self.names])
        mean, cov = self.approx.approx.mean.eval()[taken], self.approx.approx.cov.eval()[np.ix_(taken, taken)]
        try:
            return mean, np.linalg.cholesky(cov)
        except np.linalg.LinAlgError:
            return mean, np.full_like(cov, np.nan)


def pymc_runs(
    name: str, data: Mapping[str, Any], seeds: Sequence[int], budgets: Sequence[float]
) -> Iterator[Found]:
    """Full-rank ADVI with every budget and seed."""
    shared = import_module("pytensor").shared

    def declare(pm: Any) -> None:
        MODELS[name](pm, data)

    default, adam = Advi(declare, None), Advi(declare, shared(RATES[0]))
    for budget in budgets:
        trials: dict[float | None, float] = {None: default.run(TUNING_SEED, budget)[2]}
        for rate in RATES:
            adam.rate.set_value(rate)
            trials[rate] = adam.run(TUNING_SEED, budget)[2]
        best = min(trials, key=lambda rate: trials[rate])
        setting = "PyMC's default optimiser" if best is None else f"Adam, learning rate {best:g}"
        chosen = default if best is None else adam
        if best is not None:
            adam.rate.set_value(best)
        for seed in seeds:
            seconds, steps, _ = chosen.run(seed, budget)
            mean, factor = chosen.gaussian()
            yield Found(seed, budget, seconds, steps, mean, factor, setting)


if __name__ == "__main__":
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    warnings.simplefilter("ignore")
    print(json.dumps(answer(json.loads(sys.argv[1]))))

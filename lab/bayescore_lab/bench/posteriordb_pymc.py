"""PyMC's full-rank ADVI on four PosteriorDB models, written natively in PyMC.

The models declare their parameters in the order of our targets, and PyMC takes logarithms of positive ones
as we do, so that its Gaussian lives on our unconstrained space. The step function is compiled once per
optimiser, off the clock, and then called until the budget is used; its start, its optimiser's state and its
random numbers are set anew for every run. The optimiser with the lowest loss on a seed of its own at the same
budget is chosen, off the clock: PyMC's default, or Adam with one of four learning rates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from bayescore_lab.bench.jax_methods import Array
from bayescore_lab.bench.posteriordb_peers import TUNING_SEED, Found

__all__ = ["MODELS", "pymc_runs"]

RATES = (0.01, 0.03, 0.1, 0.3)
LOOK = 20  # steps between two looks at the clock
AVERAGED = 500  # losses at the end of a trial that judge it


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


class _Advi:
    """A compiled step of full-rank ADVI with one optimiser; `reset` takes it back to its start."""

    def __init__(self, name: str, data: Mapping[str, Any], rate: Any) -> None:
        pm = import_module("pymc")
        with pm.Model() as model:
            MODELS[name](pm, data)
            self.approx = pm.FullRankADVI(random_seed=0)
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
    default, adam = _Advi(name, data, None), _Advi(name, data, shared(RATES[0]))
    for budget in budgets:
        trials: dict[float | None, float] = {None: default.run(TUNING_SEED, budget)[2]}
        for rate in RATES:
            adam.rate.set_value(rate)
            trials[rate] = adam.run(TUNING_SEED, budget)[2]
        best = min(trials, key=lambda rate: trials[rate])
        words = "PyMC's default optimiser" if best is None else f"Adam, learning rate {best:g}"
        chosen = default if best is None else adam
        if best is not None:
            adam.rate.set_value(best)
        for seed in seeds:
            seconds, steps, _ = chosen.run(seed, budget)
            mean, factor = chosen.gaussian()
            yield Found(seed, budget, seconds, steps, mean, factor, words)

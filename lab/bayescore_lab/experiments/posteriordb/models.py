"""The further models of posteriordb-all: Stan programs of our own, with data that are simulated here.

The list was fixed before the first fit of any of them. Each model is one program of programs/, written from
the public description of a kind of model, and one function that simulates its data from a stated seed. A
centred hierarchical model names its non-centred form, whose long HMC run is the reference of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

__all__ = ["CENTRED", "MODELS", "Model"]

PROGRAMS = Path(__file__).with_name("programs")
SEED = 20_260_205  # of all simulated data

Data = dict[str, Any]


@dataclass(frozen=True)
class Model:
    """One model: a program, its data, and what kind of model it is.

    `reference` is the model whose HMC draws serve as the reference; itself unless it says another.
    """

    name: str
    kind: str
    simulate: Callable[[Generator], Data]
    reference: str | None = None

    @property
    def program(self) -> Path:
        return PROGRAMS / f"{self.name}.stan"

    @property
    def reference_name(self) -> str:
        return self.name if self.reference is None else self.reference

    def data(self) -> Data:
        """The data, the same in every call."""
        return self.simulate(np.random.default_rng(SEED))


def _correlated(rng: Generator, n: int, k: int, rho: float = 0.5) -> np.ndarray:
    """Standard normal covariates (n, k) with the correlation rho between any two."""
    return np.sqrt(1 - rho) * rng.normal(size=(n, k)) + np.sqrt(rho) * rng.normal(size=(n, 1))


def _groups(rng: Generator) -> Data:
    s = rng.uniform(1, 4, 30)
    return {"J": 30, "s": s, "y": rng.normal(rng.normal(3, 2, 30), s)}


def _counties(rng: Generator) -> Data:
    J, N = 60, 400
    size = rng.dirichlet(np.full(J, 0.8))
    county = np.concatenate([np.arange(J), rng.choice(J, N - J, p=size)])
    floor = (rng.uniform(size=N) < 0.2).astype(float)
    alpha = rng.normal(1.5, 0.3, J)
    y = alpha[county] - 0.7 * floor + rng.normal(0, 0.75, N)
    return {"N": N, "J": J, "county": county + 1, "floor_": floor, "y": y}


def _slopes(rng: Generator) -> Data:
    J, N = 25, 500
    county = np.concatenate([np.arange(J), rng.integers(0, J, N - J)])
    floor = rng.normal(size=N)
    alpha, slope = rng.normal(1, 0.6, J), rng.normal(-0.5, 0.3, J)
    y = alpha[county] + slope[county] * floor + rng.normal(0, 0.8, N)
    return {"N": N, "J": J, "county": county + 1, "floor_": floor, "y": y}


def _items(rng: Generator) -> Data:
    I, J = 20, 100
    theta, a, b = rng.normal(0, 1, J), np.exp(rng.normal(0, 0.5, I)), rng.normal(0.3, 1, I)
    p = 1 / (1 + np.exp(-a[:, None] * (theta - b[:, None])))
    return {"I": I, "J": J, "y": (rng.uniform(size=(I, J)) < p).astype(int)}


def _counts_by_group(rng: Generator) -> Data:
    J, N = 40, 300
    g, x = np.concatenate([np.arange(J), rng.integers(0, J, N - J)]), rng.normal(size=N)
    rate = np.exp(rng.normal(0.7, 0.5, J)[g] + 0.4 * x)
    return {"N": N, "J": J, "g": g + 1, "x": x, "y": rng.poisson(rate)}


def _logistic(rng: Generator) -> Data:
    X = _correlated(rng, 400, 20)
    p = 1 / (1 + np.exp(-(0.3 + X @ rng.normal(0, 0.5, 20))))
    return {"N": 400, "K": 20, "X": X, "y": (rng.uniform(size=400) < p).astype(int)}


def _negative_binomial(rng: Generator) -> Data:
    X = _correlated(rng, 300, 8)
    mean, phi = np.exp(1 + X @ rng.normal(0, 0.3, 8)), 2.0
    y = rng.poisson(mean * rng.gamma(phi, 1 / phi, 300))
    return {"N": 300, "K": 8, "X": X, "y": y}


def _ordinal(rng: Generator) -> Data:
    X = _correlated(rng, 250, 4)
    latent = X @ np.array([0.8, -0.5, 0.3, 0.0]) + rng.logistic(size=250)
    y = np.digitize(latent, [-2, -0.5, 1, 2.5]) + 1
    return {"N": 250, "K": 4, "C": 5, "X": X, "y": y}


def _robust(rng: Generator) -> Data:
    X = _correlated(rng, 200, 6)
    y = 1 + X @ rng.normal(0, 1, 6) + 0.7 * rng.standard_t(4, 200)
    return {"N": 200, "K": 6, "X": X, "y": y}


def _multinomial(rng: Generator) -> Data:
    X = np.column_stack([np.ones(300), rng.normal(size=(300, 3))])
    eta = np.column_stack([np.zeros(300), X @ rng.normal(0, 0.8, (4, 3))])
    p = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
    y = [int(rng.choice(4, p=row)) + 1 for row in p]
    return {"N": 300, "K": 4, "C": 4, "X": X, "y": y}


def _horseshoe(rng: Generator) -> Data:
    X = rng.normal(size=(100, 30))
    beta = np.concatenate([[2, -1.5, 1], np.zeros(27)])
    return {"N": 100, "K": 30, "X": X, "y": X @ beta + rng.normal(0, 1, 100)}


def _many_coefficients(rng: Generator) -> Data:
    X = rng.normal(size=(1000, 300))
    p = 1 / (1 + np.exp(-X @ rng.normal(0, 0.2, 300)))
    return {"N": 1000, "K": 300, "X": X, "y": (rng.uniform(size=1000) < p).astype(int)}


def _gp_regression(rng: Generator) -> Data:
    x = np.sort(rng.uniform(-3, 3, 50))
    return {"N": 50, "x": x, "y": np.sin(2 * x) + rng.normal(0, 0.3, 50)}


def _gp_classification(rng: Generator) -> Data:
    x = np.sort(rng.uniform(-3, 3, 60))
    y = (rng.uniform(size=60) < 1 / (1 + np.exp(-3 * np.sin(1.5 * x)))).astype(int)
    return {"N": 60, "x": x, "y": y}


def _states(rng: Generator, T: int, A: np.ndarray) -> np.ndarray:
    """A path of a Markov chain with the transition matrix A."""
    path = [0]
    for _ in range(T - 1):
        path.append(int(rng.choice(len(A), p=A[path[-1]])))
    return np.array(path)


def _hmm_two_states(rng: Generator) -> Data:
    path = _states(rng, 250, np.array([[0.9, 0.1], [0.2, 0.8]]))
    return {"T": 250, "y": rng.normal(np.array([-1.0, 2.0])[path], np.array([1.0, 0.7])[path])}


def _hmm_three_states(rng: Generator) -> Data:
    A = np.full((3, 3), 0.07) + 0.79 * np.eye(3)
    path = _states(rng, 300, A / A.sum(1, keepdims=True))
    return {"T": 300, "y": rng.poisson(np.array([1.0, 6.0, 15.0])[path])}


def _ode_pharmacokinetics(rng: Generator) -> Data:
    t = np.linspace(0.5, 12, 20)
    ka, Vm, Km, dose, fine = 1.2, 1.5, 1.0, 8.0, 12_000
    amount, values, h = 0.0, [], 12 / fine
    for i in range(fine):  # Euler steps, far finer than the noise
        amount += h * (ka * dose * np.exp(-ka * i * h) - Vm * amount / (Km + amount))
        values.append(amount)
    c = np.interp(t, h * np.arange(1, fine + 1), values) * np.exp(rng.normal(0, 0.2, 20))
    return {"N": 20, "t": t, "c": c, "dose": dose}


def _ode_predator_prey(rng: Generator) -> Data:
    z, fine, values = np.array([12.0, 5.0]), 200, []
    for _ in range(20):
        for _ in range(fine):
            z = z + np.array([(0.6 - 0.03 * z[1]) * z[0], (-0.8 + 0.03 * z[0]) * z[1]]) / fine
        values.append(z * np.exp(rng.normal(0, 0.2, 2)))
    return {"N": 20, "t": np.arange(1.0, 21), "y": np.array(values)}


def _mixture_three(rng: Generator) -> Data:
    which = rng.choice(3, 600, p=[0.3, 0.5, 0.2])
    y = rng.normal(np.array([-4.0, 0.0, 3.5])[which], np.array([0.8, 1.0, 0.7])[which])
    return {"N": 600, "y": y}


def _zero_inflated(rng: Generator) -> Data:
    X = _correlated(rng, 300, 3, 0.3)
    y = rng.poisson(np.exp(0.5 + X @ np.array([0.5, -0.3, 0.2]))) * (rng.uniform(size=300) > 0.3)
    return {"N": 300, "K": 3, "X": X, "y": y}


def _stochastic_volatility(rng: Generator) -> Data:
    h = [-1.0]
    for _ in range(149):
        h.append(-1 + 0.95 * (h[-1] + 1) + rng.normal(0, 0.25))
    return {"T": 150, "y": rng.normal(0, np.exp(np.array(h) / 2))}


def _local_level(rng: Generator) -> Data:
    return {"T": 100, "y": np.cumsum(rng.normal(0, 0.5, 100)) + rng.normal(0, 0.8, 100)}


def _arma(rng: Generator) -> Data:
    e, y = rng.normal(0, 0.6, 200), [2.0]
    for t in range(1, 200):
        y.append(2 + 0.7 * (y[-1] - 2) + 0.4 * e[t - 1] + e[t])
    return {"T": 200, "y": y}


def _survival_weibull(rng: Generator) -> Data:
    X = _correlated(rng, 200, 4, 0.2)
    scale = np.exp(-(X @ np.array([0.6, -0.4, 0.0, 0.2])) / 1.4)
    t, end = scale * rng.weibull(1.4, 200), rng.uniform(0.3, 2.5, 200)
    return {"N": 200, "K": 4, "X": X, "t": np.minimum(t, end), "died": (t <= end).astype(int)}


def _survival_frailty(rng: Generator) -> Data:
    J, N = 30, 300
    hospital, x = np.concatenate([np.arange(J), rng.integers(0, J, N - J)]), rng.normal(size=N)
    rate = np.exp(rng.normal(-1, 0.6, J)[hospital] + 0.5 * x)
    t = rng.exponential(1 / rate)
    data = {"N": N, "J": J, "hospital": hospital + 1, "x": x}
    return {**data, "t": np.minimum(t, 4), "died": (t <= 4).astype(int)}


def _binomial_by_group(rng: Generator) -> Data:
    n = rng.integers(10, 50, 40)
    return {"J": 40, "n": n, "y": rng.binomial(n, rng.beta(6, 14, 40))}


MODELS = {
    model.name: model
    for model in (
        Model("groups_centred", "hierarchical, centred", _groups, "groups_noncentred"),
        Model("groups_noncentred", "hierarchical, non-centred", _groups),
        Model("counties_centred", "hierarchical, centred", _counties, "counties_noncentred"),
        Model("counties_noncentred", "hierarchical, non-centred", _counties),
        Model("slopes_centred", "hierarchical, centred", _slopes, "slopes_noncentred"),
        Model("slopes_noncentred", "hierarchical, non-centred", _slopes),
        Model("irt_2pl_centred", "item response, centred", _items, "irt_2pl_noncentred"),
        Model("irt_2pl_noncentred", "item response, non-centred", _items),
        Model("rasch", "item response", _items),
        Model("counts_by_group_centred", "GLM, centred", _counts_by_group, "counts_by_group_noncentred"),
        Model("counts_by_group_noncentred", "GLM, non-centred", _counts_by_group),
        Model("logistic", "GLM", _logistic),
        Model("negative_binomial", "GLM", _negative_binomial),
        Model("ordinal", "GLM", _ordinal),
        Model("robust", "regression", _robust),
        Model("multinomial", "GLM", _multinomial),
        Model("horseshoe", "sparse regression", _horseshoe),
        Model("many_coefficients", "high dimension", _many_coefficients),
        Model("gp_regression", "GP", _gp_regression),
        Model("gp_classification", "GP", _gp_classification),
        Model("hmm_two_states", "HMM", _hmm_two_states),
        Model("hmm_three_states", "HMM", _hmm_three_states),
        Model("ode_pharmacokinetics", "ODE", _ode_pharmacokinetics),
        Model("ode_predator_prey", "ODE", _ode_predator_prey),
        Model("mixture_three", "mixture", _mixture_three),
        Model("zero_inflated", "mixture", _zero_inflated),
        Model("stochastic_volatility", "time series", _stochastic_volatility),
        Model("local_level", "time series", _local_level),
        Model("arma", "time series", _arma),
        Model("survival_weibull", "survival", _survival_weibull),
        Model("survival_frailty", "survival, centred", _survival_frailty, "survival_frailty_noncentred"),
        Model("survival_frailty_noncentred", "survival, non-centred", _survival_frailty),
        Model("binomial_by_group", "hierarchical", _binomial_by_group),
    )
}
#: centred hierarchical models, whose density grows without bound as a population sd goes to zero
CENTRED = tuple(name for name, model in MODELS.items() if model.reference is not None)

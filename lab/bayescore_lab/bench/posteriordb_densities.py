"""The twelve PosteriorDB densities in JAX, equal to our targets: one function per model serves every peer.

Each maker takes PosteriorDB's data and returns log Phi: (D,) to () on the unconstrained space, with all
constants and the log-Jacobian, and D. Linear regressions go by the sufficient statistics that our targets
use, so that a value costs D^2 operations there too:
    |y - A w|^2 = R + (w - v)^T G (w - v)                                                          (1)
jax is imported where it is used; this module is loaded in the peers' own process (posteriordb_peers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MODELS", "log_density"]

Array = npt.NDArray[np.float64]
Data = Mapping[str, Any]
Density = Callable[[Any], Any]
LOG_2PI = math.log(2 * math.pi)
STUDENT_3 = math.lgamma(2.0) - math.lgamma(1.5) - 0.5 * math.log(3 * math.pi)
GAMMA_25_4 = 25 * math.log(4) - math.lgamma(25)


def log_density(model: str, data: Data) -> tuple[Density, int]:
    """log Phi and D of a model, from its data."""
    return MODELS[model](data)


def _regression(design: Array, y: Array, log_prior: Callable[[Any, Any], Any]) -> tuple[Density, int]:
    """y ~ N(A w, sigma^2), u = (w, log sigma), by (1)."""
    jnp = import_module("jax.numpy")
    best = np.linalg.lstsq(design, y, rcond=None)[0]
    gram, least, n = jnp.asarray(design.T @ design), float(((y - design @ best) ** 2).sum()), len(y)
    best = jnp.asarray(best)

    def value(x: Any) -> Any:
        d, s = x[:-1] - best, x[-1]
        squares = least + d @ gram @ d
        fit = -n * s - 0.5 * squares * jnp.exp(-2 * s) - 0.5 * n * LOG_2PI
        return fit + log_prior(x[:-1], s) + s

    return value, design.shape[1] + 1


def diamonds(data: Data) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    X, y = _arrays(data, "X", "Y")
    centred = X[:, 1:] - X[:, 1:].mean(0)
    constant = -0.5 * centred.shape[1] * LOG_2PI + 2 * (STUDENT_3 - math.log(10)) + math.log(2)

    def log_prior(w: Any, s: Any) -> Any:
        tails = jnp.log1p((w[-1] - 8) ** 2 / 300) + jnp.log1p(jnp.exp(2 * s) / 300)
        return constant - 0.5 * w[:-1] @ w[:-1] - 2 * tails

    return _regression(np.column_stack([centred, np.ones(len(y))]), y, log_prior)


def ark(data: Data) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    (y,), order = _arrays(data, "y"), int(data["K"])
    lags = [y[order - k : len(y) - k] for k in range(1, order + 1)]
    constant = -(order + 1) * (0.5 * LOG_2PI + math.log(10)) - math.log(2.5 * math.pi)

    def log_prior(w: Any, s: Any) -> Any:
        return constant - w @ w / 200 - jnp.log1p(jnp.exp(2 * s) / 6.25)

    return _regression(np.column_stack([np.ones(len(lags[0])), *lags]), y[order:], log_prior)


def logearn(data: Data) -> tuple[Density, int]:
    height, male, earn = _arrays(data, "height", "male", "earn")
    return _regression(_design(height, male, height * male), np.log(earn), _flat)


def mesquite(data: Data) -> tuple[Density, int]:
    columns = _arrays(data, "diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return _regression(_design(*columns), _arrays(data, "weight")[0], _flat)


def kidscore(data: Data) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    school, iq, score = _arrays(data, "mom_hs", "mom_iq", "kid_score")

    def log_prior(w: Any, s: Any) -> Any:  # noqa: ARG001
        return -math.log(2.5 * math.pi) - jnp.log1p(jnp.exp(2 * s) / 6.25)

    return _regression(_design(school, iq, school * iq), score, log_prior)


def blr(data: Data) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    X, y = _arrays(data, "X", "y")
    constant = -(X.shape[1] + 1) * (0.5 * LOG_2PI + math.log(10))
    return _regression(X, y, lambda w, s: constant - (w @ w + jnp.exp(2 * s)) / 200)


def schools(data: Data, *, centred: bool) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    y, sigma = _arrays(data, "y", "sigma")
    constant = -0.5 * (2 * len(y) + 1) * LOG_2PI - np.log(sigma).sum() - math.log(5) - math.log(5 * math.pi)

    def value(x: Any) -> Any:
        effects, mu, s = x[:-2], x[-2], x[-1]
        z = (effects - mu) * jnp.exp(-s) if centred else effects
        theta = effects if centred else mu + jnp.exp(s) * effects
        volume = len(y) * s if centred else 0.0
        misfit = (((y - theta) / sigma) ** 2).sum() + z @ z
        return constant - 0.5 * misfit - volume + s - mu**2 / 50 - jnp.log1p(jnp.exp(2 * s) / 25)

    return value, len(y) + 2


def garch(data: Data) -> tuple[Density, int]:
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    (y,), first = _arrays(data, "y"), float(data["sigma1"]) ** 2

    def value(x: Any) -> Any:
        alpha0, alpha1 = jnp.exp(x[1]), jax.nn.sigmoid(x[2])
        beta1 = jax.nn.sigmoid(-x[2]) * jax.nn.sigmoid(x[3])
        squares = (y - x[0]) ** 2
        h = jnp.concatenate([jnp.array([first]), alpha0 + alpha1 * squares[:-1]])
        power, lag = beta1, 1
        while lag < len(y):
            h = h + power * jnp.concatenate([jnp.zeros(lag), h[:-lag]])
            power, lag = power**2, 2 * lag
        log, rest = jax.nn.log_sigmoid, jax.nn.log_sigmoid(-x[2])
        jacobian = x[1] + log(x[2]) + rest + log(x[3]) + log(-x[3]) + rest
        return -0.5 * (LOG_2PI * len(y) + (jnp.log(h) + squares / h).sum()) + jacobian

    return value, 4


def gp_counts(data: Data) -> tuple[Density, int]:
    jnp = import_module("jax.numpy")
    x, k = _arrays(data, "x", "k")
    squares, jitter = (x[:, None] - x) ** 2, 1e-10 * np.eye(len(x))
    factorials = sum(math.lgamma(count + 1) for count in k)
    constant = GAMMA_25_4 - 0.5 * (len(x) + 1) * LOG_2PI - math.log(2) - factorials

    def value(u: Any) -> Any:
        rho, alpha, z = jnp.exp(u[0]), jnp.exp(u[1]), u[2:]
        f = jnp.linalg.cholesky(alpha**2 * jnp.exp(-squares / (2 * rho**2)) + jitter) @ z
        return (
            constant + (k * f - jnp.exp(f)).sum() + (25 * u[0] - 4 * rho + u[1] - alpha**2 / 8) - 0.5 * z @ z
        )

    return value, len(x) + 2


def gp_normal(data: Data) -> tuple[Density, int]:
    jnp, linalg = import_module("jax.numpy"), import_module("jax.scipy.linalg")
    x, y = _arrays(data, "x", "y")
    squares, eye = (x[:, None] - x) ** 2, np.eye(len(x))
    constant = GAMMA_25_4 - 0.5 * (len(x) + 2) * LOG_2PI - math.log(2)

    def value(u: Any) -> Any:
        rho, alpha, sigma = jnp.exp(u)
        L = jnp.linalg.cholesky(alpha**2 * jnp.exp(-squares / (2 * rho**2)) + sigma * eye)
        white = linalg.solve_triangular(L, y, lower=True)
        priors = 24 * u[0] - 4 * rho - alpha**2 / 8 - sigma**2 / 2
        return constant - 0.5 * white @ white - jnp.log(jnp.diagonal(L)).sum() + priors + u.sum()

    return value, 3


def mixture(data: Data) -> tuple[Density, int]:
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    (y,) = _arrays(data, "y")
    constant = -4 * (math.log(2) + 0.5 * LOG_2PI) + math.log(630) - 0.5 * len(y) * LOG_2PI

    def value(x: Any) -> Any:
        mu = jnp.array([x[0], x[0] + jnp.exp(x[1])])
        sigma, log = jnp.exp(x[2:4]), jax.nn.log_sigmoid
        weights = jnp.array([log(x[4]), log(-x[4])])
        each = weights - x[2:4] - 0.5 * ((y[:, None] - mu) / sigma) ** 2
        normals = -(mu @ mu + sigma @ sigma) / 8
        return (
            constant
            + jnp.logaddexp(each[:, 0], each[:, 1]).sum()
            + normals
            + 5 * weights.sum()
            + x[1:4].sum()
        )

    return value, 5


def _flat(w: Any, s: Any) -> float:  # noqa: ARG001
    return 0.0


def _arrays(data: Data, *names: str) -> list[Array]:
    return [np.asarray(data[name], dtype=np.float64) for name in names]


def _design(*columns: Array) -> Array:
    return np.column_stack([np.ones(len(columns[0])), *columns])


MODELS: dict[str, Callable[[Data], tuple[Density, int]]] = {
    "arK": ark,
    "blr": blr,
    "diamonds": diamonds,
    "eight_schools_centered": lambda data: schools(data, centred=True),
    "eight_schools_noncentered": lambda data: schools(data, centred=False),
    "garch11": garch,
    "gp_pois_regr": gp_counts,
    "gp_regr": gp_normal,
    "kidscore_interaction": kidscore,
    "logearn_interaction": logearn,
    "low_dim_gauss_mix": mixture,
    "mesquite": mesquite,
}

"""The JAX peers, as jitted chunks of steps, and the densities they run on, which are those of our targets.

NumPyro's SVI, BlackJAX's full-rank VI and its pathfinders.

Every method is a triple
    begin(key) -> state            jitted
    advance(state) -> state        jitted; `chunk` steps in one lax.scan, or the whole of a one-shot method
    export(state) -> mean, factor  of the Gaussian, as numpy arrays
and all start from N(0, I), a pathfinder from a draw of it. Adam follows the same cosine schedule as ours.
The libraries are imported where they are used, in the peers' own process (jax_worker.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PEERS", "Chunked", "Density", "gaussian_of_path", "log_density"]

Array = npt.NDArray[np.float64]
Density = Callable[[Any], Any]
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Chunked:
    """A method of another library, ready to run."""

    begin: Callable[[Any], Any]
    advance: Callable[[Any], Any]
    export: Callable[[Any], tuple[Array, Array]]
    steps: int  # per chunk
    calls: int = 0  # gradients per step
    one_shot: bool = False  # one chunk is all; its gradients must be counted


def log_density(spec: Mapping[str, Any]) -> tuple[Density, int]:
    """log Phi: (D,) to (), and D, from `Problem.density()`."""
    jnp = import_module("jax.numpy")
    if spec["kind"] == "gaussian":
        mean, factor = jnp.asarray(spec["mean"]), jnp.asarray(spec["precision_factor"])
        constant = jnp.log(jnp.diagonal(factor)).sum() - 0.5 * len(mean) * LOG_2PI

        def gaussian(x: Any) -> Any:
            u = (x - mean) @ factor
            return constant - 0.5 * u @ u

        return gaussian, len(mean)

    width, bend = spec["width"], spec["bend"]

    def banana(x: Any) -> Any:
        second = x[1] - bend * (x[0] ** 2 - width**2)
        return -0.5 * ((x[0] / width) ** 2 + second**2) - LOG_2PI - math.log(width)

    return banana, 2


def numpyro_svi(density: Density, dim: int, setting: Mapping[str, Any], horizon: int, chunk: int) -> Chunked:
    """SVI with an AutoMultivariateNormal guide and Trace_ELBO."""
    jax, numpyro, infer = (import_module(name) for name in ("jax", "numpyro", "numpyro.infer"))
    distributions = import_module("numpyro.distributions")

    def model() -> None:
        flat = distributions.ImproperUniform(distributions.constraints.real_vector, (), (dim,))
        numpyro.factor("log_density", density(numpyro.sample("x", flat)))

    start = infer.init_to_value(values={"x": jax.numpy.zeros(dim)})
    guide = infer.autoguide.AutoMultivariateNormal(model, init_loc_fn=start, init_scale=1.0)
    loss = infer.Trace_ELBO(num_particles=setting["draws"])
    svi = infer.SVI(model, guide, _adam(setting["learning_rate"], horizon), loss)
    svi.init(jax.random.key(0))  # sets the guide up, outside the jitted functions

    def advance(state: Any) -> Any:
        return jax.lax.scan(lambda s, _: svi.update(s), state, None, length=chunk)[0]

    def export(state: Any) -> tuple[Array, Array]:
        found = svi.get_params(state)
        return np.asarray(found["auto_loc"]), np.asarray(found["auto_scale_tril"])

    return Chunked(jax.jit(svi.init), jax.jit(advance), export, chunk, setting["draws"])


def blackjax_fullrank(
    density: Density, dim: int, setting: Mapping[str, Any], horizon: int, chunk: int
) -> Chunked:
    """Full-rank VI with its default estimator (sticking the landing)."""
    jax, blackjax = import_module("jax"), import_module("blackjax")
    optimizer = _adam(setting["learning_rate"], horizon)
    method = blackjax.fullrank_vi(density, optimizer, num_samples=setting["draws"])

    def begin(key: Any) -> Any:
        return key, method.init(jax.numpy.zeros(dim))

    def step(carry: Any, _: Any) -> Any:
        key, now = jax.random.split(carry[0])
        return (key, method.step(now, carry[1])[0]), None

    def advance(state: Any) -> Any:
        return jax.lax.scan(step, state, None, length=chunk)[0]

    def export(state: Any) -> tuple[Array, Array]:
        flat = np.asarray(state[1].chol_params)  # log of the diagonal, then the rows below it
        factor = np.diag(np.exp(flat[:dim]))
        factor[np.tril_indices(dim, -1)] = flat[dim:]
        return np.asarray(state[1].mu), factor

    return Chunked(jax.jit(begin), jax.jit(advance), export, chunk, setting["draws"])


def blackjax_pathfinder(density: Density, dim: int, setting: Mapping[str, Any], *_: int) -> Chunked:
    """One L-BFGS path; its Gaussian with the highest ELBO."""
    jax, pathfinder = import_module("jax"), import_module("blackjax.vi.pathfinder")

    def advance(key: Any) -> Any:
        start, run = jax.random.split(key)
        position = jax.random.normal(start, (dim,))
        return pathfinder.approximate(run, density, position, setting["draws"], **_search(setting))[0]

    return Chunked(lambda key: key, jax.jit(advance), gaussian_of_path, 1, one_shot=True)


def blackjax_multipath(density: Density, dim: int, setting: Mapping[str, Any], *_: int) -> Chunked:
    """Several paths at once; the Gaussian with the highest ELBO of them all."""
    jax, multipathfinder = import_module("jax"), import_module("blackjax.vi.multipathfinder")

    def advance(key: Any) -> Any:
        start, run = jax.random.split(key)
        positions = jax.random.normal(start, (setting["paths"], dim))
        found = multipathfinder.multi_approximate(
            run, density, positions, setting["draws"], **_search(setting)
        )
        states = found[0].path_states
        return jax.tree.map(lambda leaf: leaf[states.elbo.argmax()], states)

    return Chunked(lambda key: key, jax.jit(advance), gaussian_of_path, 1, one_shot=True)


def gaussian_of_path(state: Any) -> tuple[Array, Array]:
    """Mean and factor of the Gaussian that BlackJAX draws from for a state of its pathfinder.

    The inverse Hessian is H = diag(alpha) + beta gamma beta^T and the mean position + H grad_position. A
    matrix that is not positive definite gives a factor of NaNs.
    """
    position, grad = np.asarray(state.position), np.asarray(state.grad_position)
    alpha, beta, gamma = np.asarray(state.alpha), np.asarray(state.beta), np.asarray(state.gamma)
    covariance = np.diag(alpha) + beta @ gamma @ beta.T
    try:
        factor = np.linalg.cholesky(0.5 * (covariance + covariance.T))
    except np.linalg.LinAlgError:
        factor = np.full_like(covariance, np.nan)
    return position + covariance @ grad, factor


def _search(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The options of L-BFGS."""
    return {"maxiter": setting["iterations"], "maxcor": setting["history"], "ftol": setting["tolerance"]}


def _adam(learning_rate: float, horizon: int) -> Any:
    optax = import_module("optax")
    return optax.adam(optax.cosine_decay_schedule(learning_rate, horizon))


PEERS: dict[str, Callable[..., Chunked]] = {
    "numpyro svi": numpyro_svi,
    "blackjax fullrank": blackjax_fullrank,
    "blackjax pathfinder": blackjax_pathfinder,
    "blackjax multipath": blackjax_multipath,
}

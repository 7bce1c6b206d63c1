"""Mini-batch ADVI of NumPyro or PyMC on the rows of minibatch-logistic, in a process of its own.

    python -m bayescore_lab.experiments.posteriordb.minibatch_peers '{"library": "numpyro", ...}'

prints one line of JSON: means, standard deviations and seconds of a run per learning rate, or the reason why
there are none. Both begin at their own default start. NumPyro gets batches drawn with replacement, scaled by
`handlers.scale` (its own subsampling permutes all rows at every step), and Adam with a cosine schedule; PyMC
gets `pm.Minibatch` and Adam at a constant rate, as it has no schedule. Compiling is not timed in NumPyro;
in PyMC it is part of the fit.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from bayescore_lab.bench.choices import INSTALL
from bayescore_lab.bench.jax_worker import ONE_THREAD

__all__ = ["answer"]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The trials, one per learning rate, as JSON types, or the error."""
    shape = (request["rows"], request["dim"] + 1)
    table = np.memmap(request["path"], dtype=np.float32, mode="r", shape=shape)
    run = {"numpyro": _numpyro, "pymc": _pymc}[request["library"]]
    try:
        return {"trials": [run(request, table, rate) for rate in request["rates"]]}
    except ImportError as missing:
        return {"error": f"{missing}; {INSTALL}"}


def _numpyro(request: Mapping[str, Any], table: Any, rate: float) -> dict[str, Any]:
    jax, numpyro = import_module("jax"), import_module("numpyro")
    jax.config.update("jax_enable_x64", True)
    guides, dist = import_module("numpyro.infer.autoguide"), numpyro.distributions
    optax = import_module("optax")
    rows, dim, steps = request["rows"], request["dim"], request["steps"]
    data = jax.numpy.asarray(table)

    def model(batch: Any) -> None:
        b = numpyro.sample("b", dist.Normal(0.0, request["prior_sd"]).expand([dim]).to_event(1))
        with numpyro.plate("rows", len(batch)), numpyro.handlers.scale(scale=rows / len(batch)):
            numpyro.sample("y", dist.Bernoulli(logits=batch[:, :-1] @ b), obs=batch[:, -1])

    if request["family"] == "full":
        guide = guides.AutoMultivariateNormal(model)
    else:
        guide = guides.AutoLowRankMultivariateNormal(model, rank=request["rank"])
    optimizer = optax.adam(optax.cosine_decay_schedule(rate, steps))
    svi = numpyro.infer.SVI(model, guide, optimizer, numpyro.infer.Trace_ELBO())
    start = jax.random.PRNGKey(request["seed"])
    first = svi.init(start, data[: request["batch"]].astype("float64"))

    def loop(state: Any, data: Any, count: Any) -> Any:
        def step(i: Any, state: Any) -> Any:
            chosen = jax.random.randint(jax.random.fold_in(start, i), (request["batch"],), 0, rows)
            return svi.update(state, data[chosen].astype("float64"))[0]

        return jax.lax.fori_loop(0, count, step, state)

    several = jax.jit(loop)
    jax.block_until_ready(several(first, data, 0))
    began = time.perf_counter()
    state = jax.block_until_ready(several(first, data, steps))
    seconds = time.perf_counter() - began
    q = guide.get_posterior(svi.get_params(state))
    sd = np.sqrt(np.asarray(q.variance))
    return {"rate": rate, "mean": np.asarray(q.mean).tolist(), "sd": sd.tolist(), "seconds": seconds}


def _pymc(request: Mapping[str, Any], table: Any, rate: float) -> dict[str, Any]:
    pm = import_module("pymc")
    with pm.Model():
        table = np.asarray(table, dtype=np.float64)
        x, y = pm.Minibatch(table[:, :-1], table[:, -1], batch_size=request["batch"])
        b = pm.Normal("b", 0.0, request["prior_sd"], shape=request["dim"])
        logits = x @ b
        likelihood = (y * logits - pm.math.log1pexp(logits)).sum()
        pm.Potential("y", request["rows"] / request["batch"] * likelihood)
        began = time.perf_counter()
        found = pm.fit(
            request["steps"],
            method="fullrank_advi",
            obj_optimizer=pm.adam(learning_rate=rate),
            random_seed=request["seed"],
            progressbar=False,
        )
    seconds = time.perf_counter() - began
    mean, covariance = found.mean.eval(), found.cov.eval()
    sd = np.sqrt(np.diag(covariance))
    return {"rate": rate, "mean": mean.tolist(), "sd": sd.tolist(), "seconds": seconds}


if __name__ == "__main__":
    os.environ.update(ONE_THREAD, JAX_PLATFORMS="cpu")
    warnings.simplefilter("ignore")
    print(json.dumps(answer(json.loads(sys.argv[1]))))

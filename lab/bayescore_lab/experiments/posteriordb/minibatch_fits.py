"""How a run of minibatch-logistic is executed: data in a file, the exact posterior, and our fits.

Rows x = (1, (I - (1 - sqrt 0.05) U U^T) z), z ~ N(0, I), with five random orthonormal columns U along which
features hardly vary, so that coefficients are correlated; y ~ Bernoulli(sigmoid(x . b)), prior b ~ N(0,
2.5^2 I). Exact posterior: the mode b* over all rows by Newton's method, the covariance V = -H(b*)^{-1}, and
the mean to the next order, with p_i = sigmoid(x_i . b*):
    m = b* + V g / 2,   g = -sum_i x_i p_i (1 - p_i)(1 - 2 p_i) x_i^T V x_i                              (1)
What is left out is of the order D/N.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayescore.caches import cache_place, private_folder
from bayescore.families import FullGaussian, LowRankGaussian
from bayescore.inference.fitting import fit
from bayescore.io import replacing
from bayescore.targets import AnchoredPosterior, MiniBatchPosterior
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.engine.workers import ask_once
from bayescore_lab.experiments.posteriordb.minibatch import OURS, PEERS, RATES

__all__ = ["data_file", "errors", "exact", "execute"]

SEED = 20_261_118  # of the data
THIN, DIRECTIONS = 0.05, 5
PRIOR_SD = 2.5
SLICE = 100_000
RANK = 10


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    for run in todo:
        rows, dim = run.config["rows"], run.config["dim"]
        path = data_file(rows, dim)
        exact(rows, dim)  # off the clock
        yield _ours(run, path) if run.method in OURS else _theirs(run, path)


def _ours(run: Run, path: Path) -> RunOutcome:
    rows, dim = run.config["rows"], run.config["dim"]
    counted = 0

    def log_likelihood(theta: Tensor, table: Tensor) -> Tensor:
        nonlocal counted
        counted += len(theta) * len(table)
        logits = theta @ table[:, :-1].double().mT  # (n, b)
        return table[:, -1].double() * logits - softplus(logits)

    def log_prior(theta: Tensor) -> Tensor:
        return -0.5 * (theta / PRIOR_SD).square().sum(-1)

    began = time.perf_counter()
    data = _table(path, rows, dim)
    posterior = MiniBatchPosterior(log_likelihood, data, log_prior, dim, batch_size=run.config["batch_size"])
    target = AnchoredPosterior(posterior, seed=run.seed)
    anchored = counted
    q0 = FullGaussian.init(dim) if OURS[run.method] == "full" else LowRankGaussian.init(dim, min(RANK, dim))
    found = fit(target, q0, seed=run.seed, steps=run.config["steps"], metrics={}, progress=False)
    seconds = time.perf_counter() - began
    q = found.family
    assert isinstance(q, FullGaussian | LowRankGaussian)
    if isinstance(q, FullGaussian):
        sd = q.covariance.diagonal().sqrt()
    else:
        sd = (q.log_diagonal.exp() + q.columns.square().sum(-1)).sqrt()
    metrics = {
        **errors(q.mean, sd, rows, dim),
        "passes": counted / rows,
        "anchor_passes": anchored / rows,
        "search_passes": 0.0,
        "setting": found.status,
    }
    return RunOutcome(run, metrics, found.score_calls, seconds=seconds)


def _theirs(run: Run, path: Path) -> RunOutcome:
    rows, dim = run.config["rows"], run.config["dim"]
    library, family = PEERS[run.method]
    request = {
        "library": library,
        "family": family,
        "path": str(path),
        "rows": rows,
        "dim": dim,
        "rank": RANK,
        "prior_sd": PRIOR_SD,
        "batch": run.config["peer_batch"],
        "steps": int(run.config["passes"] * rows // run.config["peer_batch"]),
        "rates": list(RATES),
        "seed": run.seed,
    }
    done = ask_once("bayescore_lab.experiments.posteriordb.minibatch_peers", request)
    if done.answer is None:
        raise RuntimeError(f"the process of the peer ended with: {done.errors[-300:]}")
    if "error" in done.answer:
        raise ImportError(str(done.answer["error"]))
    passes = request["steps"] * request["batch"] / rows
    tried: dict[str, Any] = {}
    for trial in done.answer["trials"]:
        mean, sd = (torch.tensor(trial[key], dtype=torch.float64) for key in ("mean", "sd"))
        tried[f"{trial['rate']:g}"] = errors(mean, sd, rows, dim) | {"seconds": trial["seconds"]}
    best = min(tried, key=lambda rate: max(tried[rate]["mean_error"], tried[rate]["sd_error"]))
    found = dict(tried[best])
    seconds = found.pop("seconds")
    metrics = {
        **found,
        "passes": passes,
        "search_passes": passes * (len(tried) - 1),
        "setting": f"Adam {best}",
        "tried": tried,
    }
    return RunOutcome(run, metrics, request["steps"], seconds=seconds)


def errors(mean: Tensor, sd: Tensor, rows: int, dim: int) -> dict[str, float]:
    """The largest error of a mean, in exact sds, and of a log sd."""
    true_mean, true_sd = exact(rows, dim)
    away = ((mean - true_mean).abs() / true_sd).nan_to_num(torch.inf, torch.inf)
    return {
        "mean_error": float(away.max()),
        "sd_error": float((sd / true_sd).log().abs().nan_to_num(torch.inf, torch.inf).max()),
    }


def data_file(rows: int, dim: int) -> Path:
    """The rows (x, y) in single precision, generated once into the cache."""
    folder = private_folder(cache_place("minibatch"), "set BAYESCORE_CACHE to a folder of your own")
    path = folder / f"logistic-{rows}x{dim}-{SEED}.f32"
    if path.is_file():
        return path
    rng = np.random.default_rng(SEED)
    U = np.linalg.qr(rng.normal(size=(dim - 1, DIRECTIONS)))[0]
    b = rng.normal(0, 1.5 / np.sqrt(dim), dim)
    with replacing(path) as part, open(part, "wb") as file:
        for start in range(0, rows, SLICE):
            z = rng.normal(size=(min(SLICE, rows - start), dim - 1))
            x = np.column_stack([np.ones(len(z)), z - (1 - np.sqrt(THIN)) * (z @ U) @ U.T])
            y = rng.uniform(size=len(x)) < 1 / (1 + np.exp(-x @ b))
            file.write(np.column_stack([x, y]).astype(np.float32).tobytes())
    return path


def _table(path: Path, rows: int, dim: int) -> Tensor:
    """The file, memory-mapped, (rows, dim + 1)."""
    return torch.from_file(str(path), size=rows * (dim + 1), dtype=torch.float32).reshape(rows, dim + 1)


@functools.lru_cache(maxsize=2)
def exact(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    """Means and standard deviations (D,) of the posterior of all rows, (1)."""
    table = _table(data_file(rows, dim), rows, dim)
    b = torch.zeros(dim, dtype=torch.float64)
    eye = torch.eye(dim, dtype=torch.float64) / PRIOR_SD**2
    step = torch.ones_like(b)
    while True:
        score, P = -b / PRIOR_SD**2, eye.clone()
        for part in table.split(SLICE):
            x, y = part[:, :-1].double(), part[:, -1].double()
            p = torch.sigmoid(x @ b)
            score = score + x.mT @ (y - p)
            P = P + (x.mT * (p * (1 - p))) @ x
        V = torch.linalg.inv(P)
        if float(step.abs().max()) < 1e-9:
            break
        step = V @ score
        b = b + step
    g = torch.zeros_like(b)
    for part in table.split(SLICE):
        x = part[:, :-1].double()
        p = torch.sigmoid(x @ b)
        g -= x.mT @ (p * (1 - p) * (1 - 2 * p) * ((x @ V) * x).sum(-1))
    return b + 0.5 * V @ g, V.diagonal().sqrt()  # (1)

"""A linear model with Gaussian noise, whose best diagonal Gaussian is known, and network methods learning it.

20 weights, 1,000 data, a standard normal prior. With A = X^T X/tau + I the best diagonal Gaussian (in the
ELBO) has the mean A^-1 X^T y/tau and the variances 1/A_ii                                               (1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.optim.base import BayesianOptimizer
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks.linear_gaussian import DATA, DIM
from bayescore_lab.methods import network_optimizer

__all__ = ["Errors", "execute", "learn_linear", "optimum", "problem"]


class Errors(NamedTuple):
    """Relative errors of the sds, errors of the means in sds, and the optimizer that made them."""

    sd: Tensor
    mean: Tensor
    optimizer: BayesianOptimizer


def problem(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets, in float64."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(DATA, DIM, generator=rng, dtype=torch.float64)
    weights = torch.randn(DIM, generator=rng, dtype=torch.float64)
    return x, x @ weights + torch.randn(DATA, generator=rng, dtype=torch.float64)


def optimum(temperature: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of (1)."""
    x, y = problem(seed)
    precision = x.T @ x / temperature + torch.eye(DIM, dtype=torch.float64)
    return torch.linalg.solve(precision, x.T @ y / temperature), precision.diagonal().rsqrt()


def learn_linear(
    make: Callable[..., BayesianOptimizer],
    steps: int,
    batch: int,
    temperature: float = 1.0,
    draws: int = 2,
    *,
    seed: int = 0,
    at_optimum: bool = False,
    **options: Any,
) -> Errors:
    """Learn in shuffled epochs with an exponentially falling rate, from means at zero or at the optimum.

    `make(params, num_data, **options)` gives the optimizer.
    """
    x, y = (v.float() for v in problem(seed))
    mean, sd = optimum(temperature, seed)
    p = torch.nn.Parameter(mean.float() if at_optimum else torch.zeros(DIM))
    opt = make([p], DATA, temperature=temperature, seed=seed, **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 1e-4 ** (1 / steps))
    rng, order = torch.Generator().manual_seed(seed + 1), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(DATA, generator=rng)
        rows, order = order[:batch], order[batch:]
        for _ in range(draws):
            with opt.sample():
                p.grad = x[rows].T @ (x[rows] @ p.detach() - y[rows]) / batch
        opt.step()
        schedule.step()
    state = opt.state[p]
    wide, off = state["sd"].double() / sd - 1, (state["mean"].double() - mean) / sd
    return Errors(wide, off, opt)


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """Learn with every run's settings, and compare with the optimum."""
    for run in todo:
        c = run.config
        options = dict(c.get("options", {})) | ({"batch_size": c["batch"]} if c.get("sized") else {})
        size = (c["steps"], c["batch"], c["temperature"], c["draws"])
        try:
            found = learn_linear(partial(network_optimizer, c["shell"]), *size, seed=run.seed, **options)
        except FloatingPointError:
            yield RunOutcome(run, {"learned": False}, c["steps"] * c["draws"], ended="diverged")
            continue
        status = found.optimizer.status
        metrics: dict[str, Any] = {"learned": "precision learned" in status, "status": status}
        for name, values in (("sd", found.sd), ("mean", found.mean)):
            metrics[f"{name}_rms"] = float(values.square().mean().sqrt())
            metrics[f"{name}_worst"] = float(values.abs().max())
        yield RunOutcome(run, metrics, c["steps"] * c["draws"])

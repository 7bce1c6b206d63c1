"""On a linear model with Gaussian noise the mean-field posterior is known: the optimizers find it.

20 weights, 1,000 data. With A = X^T X/tau + I the best diagonal Gaussian (in the ELBO) has the mean
A^-1 X^T y/tau and the variances 1/A_ii. A batch of B stands for kappa = N/(B tau) data sets.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_networks import SHELLS
from torch import Tensor

from bayescore.optim.base import Shell

DATA, DIM = 1000, 20


def problem() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(DATA, DIM, generator=rng, dtype=torch.float64)
    return x, x @ torch.randn(DIM, generator=rng, dtype=torch.float64) + torch.randn(
        DATA, generator=rng, dtype=torch.float64
    )


def optimum(temperature: float) -> tuple[Tensor, Tensor]:
    x, y = problem()
    precision = x.T @ x / temperature + torch.eye(DIM, dtype=torch.float64)
    return torch.linalg.solve(precision, x.T @ y / temperature), precision.diagonal().rsqrt()


def run(
    shell: str,
    steps: int,
    batch: int,
    temperature: float = 1.0,
    draws: int = 2,
    *,
    at_optimum: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor, Shell]:
    """Relative error of the sds, error of the means in sds, and the optimizer, after shuffled epochs."""
    x, y = (v.float() for v in problem())
    p = torch.nn.Parameter(optimum(temperature)[0].float() if at_optimum else torch.zeros(DIM))
    opt = SHELLS[shell]([p], DATA, temperature=temperature, **options)
    schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 1e-3, total_iters=steps)
    rng, order = torch.Generator().manual_seed(1), torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < batch:
            order = torch.randperm(DATA, generator=rng)
        rows, order = order[:batch], order[batch:]
        for _ in range(draws):
            with opt.sample():
                p.grad = x[rows].T @ (x[rows] @ p.detach() - y[rows]) / batch
        opt.step()
        schedule.step()
    mean, sd = optimum(temperature)
    state = opt.state[p]
    return state["sd"].double() / sd - 1, (state["mean"].double() - mean) / sd, opt


@pytest.mark.parametrize(("shell", "lr"), [("exact", 0.1), ("advi", 0.01)])
def test_pairs_of_draws_find_the_optimum_in_few_steps(shell: str, lr: float) -> None:
    sd, mean, opt = run(shell, 1500, 32, lr=lr)
    assert sd.abs().max() < 0.15
    assert mean.abs().max() < 0.3
    assert "precision learned" in opt.status


@pytest.mark.parametrize("temperature", [1e-2, 1e-6])
def test_pairs_learn_the_precision_at_every_temperature(temperature: float) -> None:
    sd, _, opt = run("exact", 1000, 10, temperature)
    assert sd.abs().max() < 0.15
    assert "precision learned" in opt.status


def test_without_pairs_or_batch_size_a_hot_precision_is_left_alone_and_the_status_says_so() -> None:
    _, _, opt = run("exact", 300, 10, 1e-6, draws=1, init_sd=1e-5)
    (state,) = opt.state.values()
    assert ((state["sd"] / 1e-5).log().abs() < 0.1).all()
    assert "precision not learned" in opt.status
    assert "batch_size=" in opt.status


def test_squared_gradients_stand_in_where_the_score_is_too_noisy() -> None:
    sd, _, opt = run("exact", 1500, 10, 1e-6, draws=1, batch_size=10, at_optimum=True)
    assert sd.abs().max() < 0.25
    assert "squared gradients" in opt.status


def test_bam_meets_its_own_fixed_point_and_batches_make_it_narrower() -> None:
    """(1) of optim/bam.py without gbar: s_i sum_j E[A_ij^2] s_j = 1, A as one batch shows it."""
    sd, _, _ = run("bam", 600, DATA)
    assert sd.abs().max() < 0.08
    narrow, _, _ = run("bam", 800, 32)
    spread = 1 + (2 + DIM - 1) / 32  # second moment of a row of X_B^T X_B/B for standard normal X
    assert abs(float(narrow.mean()) + 1 - spread**-0.25) < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["exact", "gradient", "advi"])
def test_twenty_thousand_steps_give_five_per_cent_in_sd_and_a_twentieth_of_an_sd_in_mean(shell: str) -> None:
    sd, mean, opt = run(shell, 20_000, 32)
    assert sd.abs().max() < 0.05
    assert mean.abs().max() < 0.05
    assert "precision learned" in opt.status


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "temperature"), [(DATA, 1.0), (10, 1.0), (10, 1e-2), (10, 1e-6)])
@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", ["exact", "gradient", "advi"])
def test_the_sd_is_right_at_every_kappa_or_the_status_says_that_it_was_not_learned(
    shell: str, draws: int, batch: int, temperature: float
) -> None:
    sd, _, opt = run(shell, 20_000, batch, temperature, draws, batch_size=batch)
    assert sd.abs().max() < 0.1 or "precision not learned" in opt.status

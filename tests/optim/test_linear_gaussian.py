"""On a linear model with Gaussian noise the mean-field posterior is known: the optimizers find it.

The problem is that of the experiment linear-gaussian: 20 weights, 1,000 data, kappa = N/(B tau).
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_networks import OPTIMIZERS

from bayescore.optim.status import lagging
from bayescore_lab.experiments.networks.linear_fits import Errors, learn_linear
from bayescore_lab.experiments.networks.linear_gaussian import ADAM, DATA, DIM


def run(shell: str, steps: int, batch: int, *size: Any, **options: Any) -> Errors:
    if shell in ("descent", "advi"):
        options = ADAM | options
    return learn_linear(OPTIMIZERS[shell], steps, batch, *size, **options)


@pytest.mark.parametrize(
    ("shell", "options"), [("calibrated", {"damping": 100.0}), ("advi", {"at_optimum": True, "sd_rate": 4.0})]
)
def test_pairs_of_draws_find_the_optimum_in_few_steps(shell: str, options: dict[str, Any]) -> None:
    """Adam's means would take longer, and start where they belong."""
    sd, mean, opt = run(shell, 1500, 32, init_sd=0.04, **options)
    assert sd.abs().max() < 0.15
    assert mean.abs().max() < 0.3
    assert "precision learned" in opt.status


@pytest.mark.parametrize("temperature", [1e-2, 1e-6])
def test_pairs_learn_the_precision_at_every_temperature(temperature: float) -> None:
    sd, _, opt = run("calibrated", 1200, 10, temperature, damping=50.0)
    assert sd.abs().max() < 0.15
    assert "precision learned" in opt.status


def test_a_run_that_ends_before_the_precision_has_moved_says_so() -> None:
    sd, _, opt = run("calibrated", 300, 32, init_sd=0.06)
    assert sd.min() > 0.3
    assert "precision not learned yet" in opt.status
    assert "of its initial value is left" in opt.status


@pytest.mark.parametrize(
    ("shell", "enough"), [("calibrated", 1500), pytest.param("bam", 2000, marks=pytest.mark.slow)]
)
def test_a_few_weights_that_are_far_behind_are_seen(shell: str, enough: int) -> None:
    """Two of twenty inputs are weak: their sds have a long way to go, which a mean over weights hides."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(400, 20, generator=rng)
    x[:, :2] *= 0.3
    wanted = (x.square().sum(0) + 1).rsqrt()
    for steps, word in ((300, "10% of the sds are still"), (enough, "precision learned")):
        p = torch.nn.Parameter(torch.zeros(20))
        opt = OPTIMIZERS[shell]([p], 400, damping=20.0, init_sd=0.05)
        for _ in range(steps):
            for _ in range(2):
                with opt.sample():
                    p.grad = x.T @ (x @ p.detach()) / 400
            opt.step()
        error = (opt.state[p]["sd"] / wanted - 1).abs()
        assert word in opt.status
        assert (error.max() < 0.1) == (word == "precision learned")


def test_weights_whose_sd_is_the_priors_do_not_lag_behind() -> None:
    sd = torch.tensor([0.05, 0.2, 1.0])
    assert lagging(sd, 0.05, 1.0, forgotten=3.0, power=1) == pytest.approx(1 / 3)
    assert lagging(sd, 0.05, math.inf, forgotten=3.0, power=1) == pytest.approx(2 / 3)
    assert lagging(sd, 0.05, 1.0, forgotten=9.0, power=1) == 0
    assert lagging(sd, 0.05, 1.0, forgotten=6.0, power=2) == pytest.approx(1 / 3)


def test_without_pairs_or_batch_size_a_hot_precision_is_left_alone_and_the_status_says_so() -> None:
    _, _, opt = run("calibrated", 300, 10, 1e-6, draws=1, init_sd=1e-5)
    (state,) = opt.state.values()
    assert ((state["sd"] / 1e-5).log().abs() < 0.1).all()
    assert "precision not learned" in opt.status
    assert "batch_size=" in opt.status


def test_squared_gradients_stand_in_where_the_score_is_too_noisy() -> None:
    sd, _, opt = run("calibrated", 1500, 10, 1e-6, draws=1, batch_size=10, at_optimum=True)
    assert sd.abs().max() < 0.25
    assert "squared gradients" in opt.status


@pytest.mark.slow
def test_bam_as_published_is_narrowed_by_batches_and_pairs_of_batches_are_not() -> None:
    """On one batch, (1) of rules/bam.py without gbar fixes s_i sum_j E[A_ij^2] s_j = 1, A the batch's."""
    spread = 1 + (2 + DIM - 1) / 32  # second moment of a row of X_B^T X_B/B for standard normal X
    narrow, _, published = run("published-bam", 1000, 32, lr=0.02, init_sd=0.04)
    assert float(narrow.mean()) + 1 < spread**-0.25 + 0.03
    assert "precision not learned" in published.status
    right, _, _ = run("bam", 1000, 32, damping=50.0, init_sd=0.04)
    assert abs(float(right.mean())) < 0.03
    assert right.abs().max() < 0.15


@pytest.mark.slow
def test_a_weight_that_is_slow_to_return_keeps_the_precision_from_counting_as_learned() -> None:
    """The inner loop narrows q while the mean travels, 77 sds for one weight; it is 11 % off at the end."""
    sd, _, opt = run("descent", 3000, 10)
    assert sd.abs().max() > 0.1
    assert "precision not learned yet" in opt.status


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["calibrated", "descent", "advi", "bam"])
def test_twenty_thousand_steps_give_five_per_cent_in_sd_and_a_twentieth_of_an_sd_in_mean(shell: str) -> None:
    sd, mean, opt = run(shell, 20_000, 32)
    assert sd.abs().max() < 0.05
    assert mean.abs().max() < 0.05
    assert "precision learned" in opt.status


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["calibrated", "descent", "advi"])
def test_one_draw_per_step_comes_close_to_what_its_noise_allows(shell: str) -> None:
    """The sd can be known to sqrt(kappa/steps)/2 = 2 %, the worst of 20 weights to twice or thrice that."""
    sd, mean, opt = run(shell, 20_000, 32, draws=1, batch_size=32)
    limit = (DATA / 32 / 20_000) ** 0.5 / 2
    assert sd.square().mean().sqrt() < 2 * limit
    assert sd.abs().max() < 4 * limit
    assert mean.abs().max() < 0.08
    assert "precision learned" in opt.status


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "temperature"), [(DATA, 1.0), (10, 1.0), (10, 1e-2), (10, 1e-6)])
@pytest.mark.parametrize(
    ("shell", "draws"),
    [
        ("calibrated", 1),
        ("calibrated", 2),
        ("descent", 1),
        ("descent", 2),
        ("advi", 1),
        ("advi", 2),
        ("bam", 2),
    ],
)
def test_the_sd_is_right_at_every_kappa_or_the_status_says_that_it_was_not_learned(
    shell: str, draws: int, batch: int, temperature: float
) -> None:
    sd, _, opt = run(shell, 6000, batch, temperature, draws, batch_size=batch)
    assert sd.abs().max() < 0.1 or "precision not learned" in opt.status

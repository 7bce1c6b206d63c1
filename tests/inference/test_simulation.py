"""Simulation-based calibration: right fits pass, wrong ones are told in the right direction."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import bayescore as bs
from bayescore.inference.simulation import Calibration
from cases import normal

N = 10
PARAMETERS = {"mu": bs.targets.Real(), "sigma": bs.targets.Positive()}


def simulate(rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    mu, log_sigma, *noise = torch.randn(2 + N, generator=rng, dtype=torch.float64)
    sigma = (0.3 * log_sigma).exp()
    return {"mu": mu, "sigma": sigma}, mu + sigma * torch.stack(noise)


def model(y: Tensor, shift: float = 0.0, prior: float = 1.0) -> bs.targets.TorchModel:
    def log_density(mu: Tensor, sigma: Tensor) -> Tensor:
        scales = Normal(0, 0.3).log_prob(sigma.log()) - sigma.log()
        return Normal(0, prior).log_prob(mu) + scales + Normal(mu + shift, sigma).log_prob(y).sum()

    return bs.targets.TorchModel(PARAMETERS, log_density)


def of(u: Tensor) -> Calibration:
    return Calibration(("a",), u.unsqueeze(-1), ("GOOD",) * len(u), 0)


def test_the_right_model_is_calibrated() -> None:
    found = bs.check_calibration(simulate, model, runs=20, steps=20, effort="quick")
    assert found.names == ("mu", "sigma")
    assert found.probabilities.shape == (20, 2)
    assert not found.wrong
    assert found.verdict == "calibrated as far as 20 fits of simulated data can tell"
    assert "mu" in found.summary()
    assert "grades of the fits" in found.summary()


def test_a_shifted_model_is_told_with_its_direction() -> None:
    found = bs.check_calibration(simulate, lambda y: model(y, shift=1.0), runs=20, steps=20, effort="quick")
    assert "mu is too low" in found.verdict


@pytest.mark.parametrize(
    ("u", "words"),
    [
        (normal(300).erf() / 2 + 0.5, ""),
        ((0.5 * normal(300)).sigmoid(), "too wide"),
        ((4 * normal(300)).sigmoid(), "too narrow"),
        ((normal(300) + 1).sigmoid(), "too low"),
        ((normal(300) - 1).sigmoid(), "too high"),
    ],
)
def test_u_tells_what_is_wrong(u: Tensor, words: str) -> None:
    if not words:
        u = Normal(0, 1).cdf(normal(300))
    found = of(u)
    assert words in found.verdict
    assert bool(found.wrong) == bool(words)


def test_a_width_alone_leaves_the_centre_right() -> None:
    (row,) = of((4 * normal(300)).sigmoid()).rows
    assert row.uniform < 1e-4
    assert row.centred > 0.01
    assert sum(row.counts) == 300


@pytest.mark.parametrize("which", ["uniform", "centred"])
def test_p_values_are_uniform_where_nothing_is_wrong(which: str) -> None:
    rng = torch.Generator().manual_seed(0)
    values = torch.tensor(
        [getattr(of(torch.rand(80, generator=rng, dtype=torch.float64)).rows[0], which) for _ in range(400)]
    )
    for level in (0.05, 0.25, 0.5):
        share = float((values < level).double().mean())
        assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / 400) + 0.03


def test_failed_runs_are_counted_and_left_out() -> None:
    calls = 0

    def sometimes(y: Tensor) -> Any:
        nonlocal calls
        calls += 1
        if calls % 2:
            raise ValueError("no")
        return model(y)

    found = bs.check_calibration(simulate, sometimes, runs=4, steps=20)
    assert (found.failed, len(found.probabilities)) == (2, 2)
    assert "2 runs failed" in found.summary()
    with pytest.raises(RuntimeError, match="all 2 runs failed"):
        bs.check_calibration(simulate, lambda y: model(y[:0].reshape(3)), runs=2)


def test_unknown_parameters_are_named() -> None:
    def wrong(rng: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        truth, y = simulate(rng)
        return {"nu": truth["mu"]}, y

    with pytest.raises(ValueError, match="simulate returned nu, which the target does not name; it names mu"):
        bs.check_calibration(wrong, model, runs=1, steps=20)
    with pytest.raises(TypeError, match="named parameters"):
        bs.check_calibration(simulate, lambda y: bs.targets.Gaussian.random(2), runs=1, steps=20)

"""BaM for a low-rank Gaussian: the full step, projected, without ever being formed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.families import FullGaussian, LowRankGaussian
from bayescore.methods import BaM
from bayescore.methods.bam import bam_full
from bayescore.methods.bam_low_rank import bam_low_rank_step
from bayescore.targets import ScoreFunction
from cases import F64, family, kl, normal, one_step


def draws(q, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B draws from q and arbitrary scores."""
    return q.sample(size, seed=seed), 2 * normal(size, q.dim, seed=seed + 1)


def step_full(q: FullGaussian, z, g, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.full((1, 1), lam, dtype=F64)
    mean, factor = bam_full(q.mean[None], q.factor[None], z[None], g[None], weight)
    return mean[0], (factor @ factor.mT)[0]


# -- low rank ---------------------------------------------------------------------------------------------


def step_low_rank(q: LowRankGaussian, z, g, lam: float) -> LowRankGaussian:
    lam_ = torch.full((1, 1), lam, dtype=F64)
    mean, log_diagonal, columns = bam_low_rank_step(
        q.mean[None], q.log_diagonal[None], q.columns[None], z[None], g[None], lam_
    )
    return LowRankGaussian(mean[0], log_diagonal[0], columns[0])


@given(dim=st.integers(2, 8), rank=st.integers(1, 4), seed=st.integers(0, 10_000), size=st.integers(2, 8))
@settings(max_examples=40)
def test_the_projection_never_moves_away_from_the_full_step(
    dim: int, rank: int, seed: int, size: int
) -> None:
    """KL(N(0, S) | q) after the projection is at most what it was at its start."""
    q = family("low-rank", dim, seed, rank=rank)
    z, g = draws(q, size, seed)
    full = FullGaussian.from_moments(q.mean, q.covariance)
    mean, S = step_full(full, z, g, 2.0)
    new = step_low_rank(q, z, g, 2.0)
    torch.testing.assert_close(new.mean, mean, rtol=1e-7, atol=1e-7)
    zero = torch.zeros(dim, dtype=F64)
    before, after = kl(zero, S, zero, q.covariance), kl(zero, S, zero, new.covariance)
    assert after <= before + 1e-9


@pytest.mark.parametrize("steps", [1, 2, 5, 20])
def test_every_em_step_decreases_the_divergence(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q = family("low-rank", 6, 3)
    z, g = draws(q, 4, 3)
    _, S = step_full(FullGaussian.from_moments(q.mean, q.covariance), z, g, 2.0)
    zero, values = torch.zeros(6, dtype=F64), []
    for count in (steps, steps + 1):
        monkeypatch.setattr("bayescore.methods.bam_low_rank.EM_STEPS", count)
        values.append(kl(zero, S, zero, step_low_rank(q, z, g, 2.0).covariance))
    assert values[1] <= values[0] + 1e-12


@pytest.mark.parametrize("seed", range(2))
def test_a_low_rank_family_of_full_rank_takes_the_full_step(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank D - 1 plus a diagonal holds every covariance, so the projection has nothing to lose."""
    monkeypatch.setattr("bayescore.methods.bam_low_rank.EM_STEPS", 2000)
    q = family("low-rank", 4, seed, rank=3)
    z, g = draws(q, 5, seed)
    mean, S = step_full(FullGaussian.from_moments(q.mean, q.covariance), z, g, 1.0)
    new = step_low_rank(q, z, g, 1.0)
    torch.testing.assert_close(new.mean, mean, rtol=1e-8, atol=1e-8)
    assert kl(mean, S, new.mean, new.covariance) < 1e-3


def test_the_low_rank_step_never_forms_a_square_matrix() -> None:
    """At 50,000 dimensions a square matrix would take 20 GB."""
    dim = 50_000
    q = LowRankGaussian.init(dim, 3, seed=0)
    after = one_step(BaM(draws=3), q, ScoreFunction(lambda x: -x, dim))
    assert after.flat().isfinite().all()

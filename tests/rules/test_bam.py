"""BaM's diagonal rules: the quadratic equation they solve, as published and with pairs of batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore.rules.bam import PairedOptions, bam_root, bam_step, paired_lam, paired_slope, paired_step
from bayescore.rules.curvature import follow
from cases import F64, normal

DIM = 5
lams = st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e4])


@given(seed=st.integers(0, 10_000), lam=lams, size=st.sampled_from([1e-6, 1.0, 1e6]))
@settings(max_examples=40)
def test_the_root_solves_its_quadratic_and_is_positive(seed: int, lam: float, size: float) -> None:
    a, b = size * normal(2, DIM, seed=seed).square()
    x = bam_root(a, b, lam)
    assert (x > 0).all()
    torch.testing.assert_close(a * x.square() + x / lam, b, rtol=1e-11, atol=0.0)


def test_where_the_roots_are_complex_it_is_the_double_root_at_discriminant_zero() -> None:
    """At 4 a b = -1/lam^2 the two roots are 2 b lam."""
    b, lam = torch.ones(3, dtype=F64), 0.5
    edge = -1 / (4 * lam**2)
    x = bam_root(torch.tensor([edge, 2 * edge, 1e6 * edge], dtype=F64), b, lam)
    torch.testing.assert_close(x, 2 * b * lam, rtol=1e-12, atol=0.0)


@given(seed=st.integers(0, 10_000), S=st.integers(2, 6), lam=lams)
@settings(max_examples=60)
def test_the_published_step_solves_its_quadratic_equation(seed: int, S: int, lam: float) -> None:
    """(1) and (2), in the units of the weights."""
    mean, sd = normal(DIM, seed=seed), (0.5 * normal(DIM, seed=seed + 1)).exp()
    eps, g = normal(2, S, DIM, seed=seed + 2)
    z, w = mean + sd * eps, sd * g
    new, new_sd = bam_step(
        mean, sd, eps.mean(0), eps.var(0, correction=0), w.mean(0), w.var(0, correction=0), lam
    )
    s, zbar, gbar = new_sd.square(), z.mean(0), g.mean(0)
    a = g.var(0, correction=0) + gbar.square() / (1 + lam)
    b = z.var(0, correction=0) + sd.square() / lam + (mean - zbar).square() / (1 + lam)
    torch.testing.assert_close(a * s.square() + s / lam, b, rtol=1e-9, atol=1e-12)
    expected = mean / (1 + lam) + lam / (1 + lam) * (s * gbar + zbar)
    torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 10_000), S=st.integers(2, 6), lam=lams)
@settings(max_examples=30)
def test_the_exact_posterior_is_a_fixed_point_of_the_published_step(seed: int, S: int, lam: float) -> None:
    mean, sd = normal(DIM, seed=seed), (0.5 * normal(DIM, seed=seed + 1)).exp()
    eps = normal(S, DIM, seed=seed + 2)
    z2 = eps.var(0, correction=0)
    after = bam_step(mean, sd, eps.mean(0), z2, -eps.mean(0), z2, lam)
    torch.testing.assert_close(after, (mean, sd), rtol=1e-10, atol=1e-10)


def paired(lam: float, pairs: int = 3, **given: float) -> PairedOptions:
    fields = {"c": 1.0, "prior_precision": 0.0, "prior_sd": torch.inf, "lr": 0.2}
    return PairedOptions(**{**fields, **given}, pairs=pairs, lam=torch.full((DIM,), lam, dtype=F64))


def pairs_of(g, mean, sd, noise):
    """d, e and the mean of g over antithetic pairs of draws: (3)."""
    plus, minus = g(mean + sd * noise), g(mean - sd * noise)
    return 0.5 * (plus - minus).sum(0), noise.sum(0), 0.5 * (plus + minus).mean(0)


@given(seed=st.integers(0, 10_000), lam=lams, c=st.sampled_from([1.0, 0.01]))
@settings(max_examples=40)
def test_the_paired_step_solves_its_quadratic_equation(seed: int, lam: float, c: float) -> None:
    """(1) with (4): a is the product of two batches, per pair, and the prior is part of both."""
    mean, m0, zeros = *normal(2, DIM, seed=seed), torch.zeros(DIM, dtype=F64)
    sd, s0, noise = (0.3 * normal(DIM, seed=seed + 1)).exp(), 5.0, normal(3, DIM, seed=seed + 2)
    h, h_other = (0.2 * normal(2, DIM, seed=seed + 3)).exp()
    o = paired(lam, c=c, prior_precision=s0**-2.0, lr=0.7)
    d, e, _ = pairs_of(lambda x: c * h * x, mean, sd, noise)
    d_other, _, G = pairs_of(lambda x: c * h_other * x, mean, sd, noise)
    first = o._replace(lam=zeros)
    (_, _, half), _ = paired_step(mean, sd, zeros, m0, G, zeros, d, e, first)
    (new, new_sd, _), _ = paired_step(mean, sd, half, m0, G, zeros, d_other, e, o)
    tight, s = s0**-2.0, new_sd.square()
    a = (h + tight) * (h_other + tight) * sd.square() * e.square() / 3
    b = sd.square() * (e.square() / 3 + 1 / lam)
    kept = new_sd < s0
    torch.testing.assert_close((a * s.square() + s / lam)[kept], b[kept], rtol=1e-9, atol=1e-12)
    gbar, x = -(G / c + tight * (mean - m0)), bam_root(a * sd.square(), b / sd.square(), lam)
    expected = mean + 0.7 / 1.7 * sd.square() * x * gbar
    torch.testing.assert_close(new, expected, rtol=1e-9, atol=1e-9)


def test_the_first_of_two_steps_moves_the_mean_and_keeps_the_variance() -> None:
    mean, sd, zeros = normal(DIM), normal(DIM, seed=1).exp(), torch.zeros(DIM, dtype=F64)
    d, e, G = pairs_of(lambda x: 2 * (x - 1), mean, sd, normal(3, DIM, seed=2))
    (new, new_sd, half), _ = paired_step(mean, sd, zeros, 0.0, G, zeros, d, e, paired(0.0))
    assert torch.equal(new_sd, sd)
    torch.testing.assert_close(half, sd * d, rtol=1e-14, atol=0.0)
    torch.testing.assert_close(new, mean - 0.2 / 1.2 * sd.square() * G, rtol=1e-12, atol=1e-12)


def test_the_sd_stays_at_or_below_that_of_the_prior() -> None:
    mean, sd, zeros = normal(DIM), torch.full((DIM,), 0.99, dtype=F64), torch.zeros(DIM, dtype=F64)
    d, e, G = pairs_of(lambda x: 0 * x, mean, sd, normal(3, DIM, seed=2))
    o = paired(10.0, prior_sd=1.0)
    (_, new_sd, _), _ = paired_step(mean, sd, zeros, 0.0, G, zeros, d, e, o)
    assert torch.equal(new_sd, torch.ones(DIM, dtype=F64))


@given(seed=st.integers(0, 10_000), lam=lams)
@settings(max_examples=30)
def test_the_exact_posterior_is_a_fixed_point_of_the_paired_step(seed: int, lam: float) -> None:
    mean, sd, zeros = normal(DIM, seed=seed), normal(DIM, seed=seed + 1).exp(), torch.zeros(DIM, dtype=F64)
    d, e, G = pairs_of(lambda x: (x - mean) / sd.square(), mean, sd, normal(3, DIM, seed=seed + 2))
    (_, _, half), _ = paired_step(mean, sd, zeros, 0.0, G, zeros, d, e, paired(0.0))
    slope, square = paired_slope(sd, half, d, e, paired(lam))
    torch.testing.assert_close(slope, zeros, rtol=0.0, atol=1e-10)
    torch.testing.assert_close(square, zeros, rtol=0.0, atol=1e-10)
    (new, new_sd, _), _ = paired_step(mean, sd, half, 0.0, G, zeros, d, e, paired(lam))
    torch.testing.assert_close((new, new_sd), (mean, sd), rtol=1e-9, atol=1e-9)


def test_what_a_batch_adds_to_both_scores_of_a_pair_leaves_the_variance_alone() -> None:
    mean, sd, zeros = normal(DIM), normal(DIM, seed=1).exp(), torch.zeros(DIM, dtype=F64)
    noise, half = normal(3, DIM, seed=2), normal(DIM, seed=3)
    after = []
    for push in (0.0, 1e3):
        d, e, G = pairs_of(lambda x, push=push: x + push, mean, sd, noise)
        after.append(paired_step(mean, sd, half, 0.0, G, zeros, d, e, paired(1.0))[0])
    torch.testing.assert_close(after[0][1:], after[1][1:], rtol=1e-9, atol=1e-9)
    assert (after[0][0] - after[1][0]).abs().max() > 1


@pytest.mark.parametrize("damping", [1.0, 500.0])
def test_lam_falls_with_the_pairs_of_steps_and_with_the_noise_of_the_slope(damping: float) -> None:
    """1/lam = damping + t + 10 sqrt(V), V the mean square that `follow` has kept."""
    statistics, sizes = torch.zeros(2, 4, dtype=F64), torch.tensor([10.0, 20.0], dtype=F64)
    squares, forgotten = torch.tensor([4.0, 9.0], dtype=F64), torch.zeros(2, dtype=F64)
    for t in (1, 2, 3):
        follow(statistics, torch.stack([0 * squares, squares * sizes], -1), sizes)
        lam = paired_lam(statistics, damping)
        torch.testing.assert_close(lam, 1 / (damping + t + 10 * squares.sqrt()), rtol=1e-10, atol=0.0)
        forgotten += 2 * lam / (1 + 2 * lam)
        torch.testing.assert_close(statistics[:, 2], forgotten, rtol=1e-10, atol=0.0)

"""The noise of the network optimizers is standard normal, reproducible, and the same however it is made."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayescore.optim import PairedBaM, ProximalScore
from bayescore.optim.engine import run_in_slices
from bayescore.optim.noise import (
    LARGE_TENSOR,
    _minus_log2,
    _quantile,
    counter_key,
    counter_normal,
    numbers,
    stream_name,
)

COUNT = 4_000_000


def normal(
    name: int = 7, count: int = COUNT, sign: float = 1.0, dtype: torch.dtype = torch.float32
) -> Tensor:
    out = torch.empty(count, dtype=dtype)

    def write(flat: Tensor, noise: object) -> None:
        flat.copy_(numbers(noise, flat))  # type: ignore[arg-type]

    run_in_slices(write, out, counter_key(out, stream_name(name), sign))
    return out


@pytest.fixture(scope="module")
def many() -> Tensor:
    return normal().double()


def test_moments_are_those_of_a_standard_normal(many: Tensor) -> None:
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10_170)):
        error = float((many**power).mean()) - expected
        assert abs(error) < 4 * math.sqrt(variance / COUNT), power


def test_the_distribution_is_normal_by_kolmogorov_and_smirnov(many: Tensor) -> None:
    assert stats.kstest(many.numpy(), "norm").pvalue > 1e-3


def test_tails_reach_five_sigma_with_the_right_counts(many: Tensor) -> None:
    for level in (2.0, 3.0, 4.0, 4.5, 5.0):
        for tail in (many, -many):
            expected = COUNT * stats.norm.sf(level)
            found = int((tail > level).sum())
            assert stats.poisson.cdf(found, expected) > 1e-4, level
            assert stats.poisson.sf(found - 1, expected) > 1e-4, level


def test_neighbours_and_their_squares_are_uncorrelated(many: Tensor) -> None:
    for values in (many, many.square() - 1):
        power = float(values.square().mean())
        for lag in (1, 2, 3, 8, 32, 1000, 1 << 16):
            r = float((values[:-lag] * values[lag:]).mean()) / power
            assert abs(r) < 4.5 / math.sqrt(COUNT), lag


def test_every_bit_of_the_hash_is_fair_and_independent_of_its_neighbours() -> None:
    count = 1 << 20
    signs = normal(count=count) > 0
    low = normal(3, count) > 0
    for a, b in ((signs, low), (signs[1:], signs[:-1]), (signs[: count // 2], signs[count // 2 :])):
        assert abs(float((a == b).double().mean()) - 0.5) < 4.5 * 0.5 / math.sqrt(len(a))


def test_streams_with_neighbouring_names_have_nothing_in_common() -> None:
    """Names are hashed, but the keys of a stream may differ in one bit only, too."""
    like = torch.empty(1 << 18)
    key = counter_key(like, 12345, 1.0)
    base = counter_normal(key, like)
    for bit in range(32):
        flip = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
        for other in (key._replace(a=key.a ^ flip), key._replace(b=key.b ^ flip)):
            r = float((base * counter_normal(other, like)).mean())
            assert abs(r) < 4.5 / math.sqrt(like.numel()), bit


def test_the_quantile_function_is_met_to_a_millionth() -> None:
    h = torch.tensor([sign * (k << shift) for shift in range(31) for k in (1, 3, 5, 7) for sign in (1, -1)])
    h = torch.cat([h.clamp(-(2**31), 2**31 - 1), torch.linspace(-(2.0**31), 2.0**31 - 129, 9999).long()])
    edges = torch.cat([(2**31 - 1) - torch.arange(50), -(2**31) + torch.arange(50)])
    h = torch.cat([h, edges])
    x = (h.double() + 0.5) / 2**31
    y = 1 - x.abs()
    exact = x.sign() * -torch.special.ndtri(y / 2)
    w = _minus_log2((y * (2 - y)).float())
    torch.testing.assert_close(w.double(), -(y * (2 - y)).log2(), rtol=2e-7, atol=4e-6)
    found = _quantile(x.float(), w)
    torch.testing.assert_close(found.double(), exact, rtol=5e-7, atol=2e-6)
    assert found.abs().max() > 6.2


def test_noise_of_doubles_is_that_of_floats() -> None:
    single, double = normal(count=1 << 16).double(), normal(count=1 << 16, dtype=torch.float64)
    torch.testing.assert_close(single, double, rtol=1e-6, atol=2e-6)


def test_the_second_draw_of_a_pair_is_minus_the_first() -> None:
    assert torch.equal(normal(5, 1000, sign=-1.0), -normal(5, 1000))


def test_slices_and_threads_change_no_bit() -> None:
    whole = torch.empty(LARGE_TENSOR * 3 + 17)
    key = counter_key(whole, stream_name(1), 1.0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = counter_normal(key, whole)
        torch.set_num_threads(1)
        one = counter_normal(key, whole)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(one, two)
    assert torch.equal(one, normal(1, whole.numel()))


@pytest.mark.parametrize("size", [100, LARGE_TENSOR])
def test_noise_depends_on_every_number_and_on_no_other_parameter(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bayescore.optim.noise.LARGE_NETWORK", 0)

    def noise(seed: int, step: int, draw: int, sizes: tuple[int, ...]) -> list[Tensor]:
        weights = [torch.nn.Parameter(torch.zeros(n)) for n in sizes]
        opt = ProximalScore(weights, 10, seed=seed)
        opt.param_groups[0]["step"] = step
        found: dict[Tensor, Tensor] = {}
        for bucket in opt._gathered(list(opt._members())):
            flat = numbers(opt.noise(bucket, draw), bucket.flat["mean"])
            found |= {m.weight: part for m, part in zip(bucket.members, bucket.split(flat), strict=True)}
        return [found[w] for w in weights]

    (first, second) = noise(0, 0, 0, (size, size))
    assert torch.equal(noise(0, 0, 0, (size, 7, 9))[0], first)
    assert torch.equal(noise(0, 0, 1, (size, size))[0], -first)
    others = [second, *(noise(*n, (size,))[0] for n in ((1, 0, 0), (0, 1, 0), (0, 0, 2)))]
    for other in others:
        assert abs(float((first * other).mean())) < 4.5 / math.sqrt(size)
    assert abs(float(first.std()) - 1) < 4.5 / math.sqrt(2 * size)
    assert len({stream_name(a, b) for a in range(50) for b in range(50)}) == 2500


def test_bam_uses_every_noise_in_two_steps() -> None:
    p = torch.nn.Parameter(torch.zeros(10))
    opt = PairedBaM([p], 10)
    drawn_in = []
    for step in range(3):
        opt.param_groups[0]["step"] = step
        (bucket,) = opt._gathered(list(opt._members()))
        drawn_in.append(numbers(opt.noise(bucket, 0), bucket.flat["mean"]))
    assert torch.equal(drawn_in[0], drawn_in[1])
    assert not torch.equal(drawn_in[1], drawn_in[2])

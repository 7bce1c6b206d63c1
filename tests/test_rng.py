"""Random streams: one per fit, restorable, and never shared between the purposes of one seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import bayescore as bs
from bayescore.rng import Streams, generator
from cases import F64, run_python, z_score


def test_a_row_depends_on_its_own_seed_alone() -> None:
    together, alone = Streams([1, 2, 3]), Streams([2])
    for draw in ("normal", "uniform"):
        assert torch.equal(getattr(together, draw)(4, 2)[1:2], getattr(alone, draw)(4, 2))
    assert torch.equal(together.subsets(10, 4)[1:2], alone.subsets(10, 4))


def test_restored_streams_continue_bitwise() -> None:
    """In a process of its own: torch crashes on a generator state that is a view into another tensor."""
    code = """
import torch
from bayescore.rng import Streams
streams = Streams([1, 2])
streams.normal(3)
state = streams.state()
expected = streams.normal(5), streams.uniform(2), streams.subsets(9, 3)
other = Streams([7, 8])
other.restore(state)
again = other.normal(5), other.uniform(2), other.subsets(9, 3)
print(all(torch.equal(a, b) for a, b in zip(expected, again)))
"""
    assert run_python(code).strip() == "True"


def test_draws_have_the_stated_law_and_dtype() -> None:
    streams = Streams([0])
    normal, uniform = streams.normal(50_000)[0], streams.uniform(50_000)[0]
    assert normal.dtype == F64
    assert z_score(normal).abs() < 4.5
    assert z_score(normal.square(), 1.0).abs() < 4.5
    assert z_score(uniform, 0.5).abs() < 4.5
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert Streams([0], dtype=torch.float32).normal(2).dtype == torch.float32


@pytest.mark.parametrize("seed", [1.5, "3", True, [1]])
def test_what_is_no_seed_is_refused(seed: object) -> None:
    with pytest.raises(TypeError, match=r"a seed is an int, a torch\.Generator or None"):
        generator(seed)  # type: ignore[arg-type]


def test_a_seed_may_be_a_number_of_numpy() -> None:
    one, two = (torch.randn(3, generator=generator(seed, purpose="x")) for seed in (5, np.int64(5)))
    assert torch.equal(one, two)
    fits = [bs.fit(bs.targets.Banana(), steps=3, seed=seed).family.flat() for seed in (1, np.int64(1))]
    assert torch.equal(fits[0], fits[1])


def test_no_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one seed"):
        Streams([])


@pytest.mark.parametrize("seed", range(3))
def test_a_target_and_a_start_made_with_one_seed_are_not_the_same(seed: int) -> None:
    """Else an experiment that uses one seed throughout would start at the truth."""
    gaussian, q = bs.targets.Gaussian.random(3, seed=seed), bs.families.FullGaussian.init(3, seed=seed)
    assert not torch.equal(gaussian.mean, q.mean)
    mixture = bs.targets.GaussianMixture.random(dim=3, components=5, seed=seed)
    start = bs.families.GaussianMixture.init(dim=3, components=5, seed=seed)
    assert not torch.equal(mixture.density.components.mean, start.components.mean)


@pytest.mark.parametrize("seed", range(3))
def test_the_noise_of_a_fit_is_not_that_of_its_target_or_start(seed: int) -> None:
    noise = []
    target = bs.targets.Gaussian.random(3, seed=seed)
    watched = bs.targets.ScoreFunction(lambda x: noise.append(x.clone()) or -x, 3)
    bs.fit(
        watched, bs.families.FullGaussian.init(3), bs.methods.GSM(draws=1), steps=1, seed=seed, check=False
    )
    first = noise[0][0]  # the first draw from N(0, I) is the noise itself
    assert not torch.equal(first, target.mean)
    assert not torch.equal(first, bs.families.FullGaussian.init(3, seed=seed).mean)

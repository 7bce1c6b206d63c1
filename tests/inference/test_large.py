"""Large posteriors, beyond a full covariance: what the automatic fit makes of them, at what cost."""

from __future__ import annotations

import math

import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import SpikedGaussian
from bayescore.inference.result import Trust
from cases import F64, normal


def gaussian_process(size: int) -> bs.targets.LogDensity:
    """Poisson counts of a smooth curve at `size` places, non-centred."""
    t = torch.linspace(-3, 3, size, dtype=F64)
    kernel = (-0.5 * ((t[:, None] - t) / 0.5).square()).exp() + 1e-4 * torch.eye(size, dtype=F64)
    factor = torch.linalg.cholesky(kernel)
    rate = (factor @ normal(size, seed=1)).exp()
    counts = torch.poisson(rate, generator=torch.Generator().manual_seed(1))

    def log_prob(z: Tensor) -> Tensor:
        curve = z @ factor.T
        return (counts * curve - curve.exp()).sum(-1) - 0.5 * z.square().sum(-1)

    return bs.targets.LogDensity(log_prob, size)


def test_a_gaussian_process_with_a_thousand_latents_can_be_used_after_a_few_thousand_scores() -> None:
    fit = bs.fit(gaussian_process(1000), progress=False)
    assert isinstance(fit.family, SpikedGaussian)
    assert fit.trust in (Trust.GOOD, Trust.USABLE), fit.verdict
    assert fit.score_calls < 7000


def test_the_means_of_many_coefficients_are_right_and_the_verdict_is_honest_about_their_sds() -> None:
    """450 coefficients, 900 correlated observations: far more than 20 directions differ from the diagonal."""
    size, count = 450, 900
    X = math.sqrt(0.5) * (normal(count, size, seed=2) + normal(count, 1, seed=3))
    y = X @ (0.3 * normal(size, seed=4)) + normal(count, seed=5)
    precision = torch.eye(size, dtype=F64) + X.T @ X
    mean = torch.linalg.solve(precision, X.T @ y)
    sd = torch.linalg.inv(precision).diagonal().sqrt()
    target = bs.targets.LogDensity(
        lambda b: -0.5 * ((y - b @ X.T).square().sum(-1) + b.square().sum(-1)), size
    )
    fit = bs.fit(target, progress=False)
    assert ((fit.family.mean - mean).abs() / sd).max() < 0.25
    ratio = fit.family.covariance.diagonal().sqrt() / sd
    assert 0.5 < ratio.min() < ratio.max() < 1.05
    assert fit.trust is Trust.POOR


def test_a_method_that_the_user_names_gets_a_family_that_it_serves() -> None:
    target = bs.targets.LogDensity(lambda x: -0.5 * x.square().sum(-1), 420)
    for method, kind in ((bs.methods.BaM(4), "LowRankGaussian"), (bs.methods.ADVI(), "SpikedGaussian")):
        fit = bs.fit(target, method=method, steps=2, progress=False)
        assert type(fit.family).__name__ == kind

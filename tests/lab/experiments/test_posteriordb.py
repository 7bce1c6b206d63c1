"""posteriordb and posteriordb-noisy: noise levels of one batch, and the grid."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.families import FullGaussian
from bayescore.methods import ADVI, BaM, Method, WhitenedDescent
from bayescore.targets import Gaussian, NoisyScore
from bayescore_lab.experiments.posteriordb.exact import EXPERIMENT as EXACT
from bayescore_lab.experiments.posteriordb.fits import NoiseLevels
from bayescore_lab.experiments.posteriordb.noisy import EXPERIMENT as NOISY


@pytest.mark.parametrize("method", [WhitenedDescent(), ADVI(), BaM()], ids=lambda method: method.name)
def test_a_fit_among_other_noise_levels_is_the_fit_alone(method: Method) -> None:
    target, q0 = Gaussian.random(3, seed=0), FullGaussian.init(3)
    jobs = [(0, 0.1), (1, 0.1), (0, 1.0), (1, 1.0)]
    options = {"steps": 20, "metrics": {}, "check": False, "progress": False}
    levels = NoiseLevels(target, [beta for _, beta in jobs])
    together = bs.fit_many(levels, q0, method, seeds=[seed for seed, _ in jobs], **options)
    for (seed, beta), fit in zip(jobs, together, strict=True):
        alone = bs.fit(NoisyScore(target, beta), q0, method, seed=seed, **options)
        torch.testing.assert_close(fit.family.flat(), alone.family.flat(), rtol=1e-10, atol=1e-12)


def test_all_seeds_and_noise_levels_of_an_arm_are_one_group() -> None:
    grid = NOISY.runs({}, range(6), NOISY.methods)
    assert len(grid) == len(NOISY.methods) * 4 * 7 * 6
    assert len({run.group for run in grid}) == len(NOISY.methods) * 4


def test_mixtures_are_fitted_where_the_paper_fits_them() -> None:
    grid = EXACT.runs({}, range(2), EXACT.methods)
    mixed = {run.config["posterior"] for run in grid if "components" in run.config}
    assert mixed == {"gp_pois_regr", "low_dim_gauss_mix"}

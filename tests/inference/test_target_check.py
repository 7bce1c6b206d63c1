"""The check of a target before a run: finite where q0 lives, and its score the gradient it should be."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.families import FullGaussian
from bayescore.methods import ADVI, GSM, WhitenedDescent
from bayescore.targets import Banana, Gaussian, LogDensity, NoisyScore, ScoreFunction, Target
from cases import F64

TARGET, Q = Gaussian.random(3), FullGaussian.init(3)


def refused(error, sentence: str, *arguments: object, **options: object) -> None:
    with pytest.raises(error, match=sentence):
        bs.fit(*arguments, **options)  # type: ignore[arg-type]


# -- the check of the target ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_a_density_that_is_nowhere_finite_is_refused_with_the_remedy(value: float) -> None:
    nowhere = LogDensity(lambda x: x.sum(-1) * 0 + value, 3)
    refused(
        ValueError,
        r"not finite at any of 101 points around the start q0; move q0 .*\(mean=, scale=\)",
        nowhere,
        Q,
    )


def test_scores_that_are_nowhere_finite_are_refused() -> None:
    refused(
        ValueError, "score is not finite at any of 20 draws", ScoreFunction(lambda x: x * float("nan"), 3), Q
    )


def test_a_density_that_is_finite_somewhere_is_accepted() -> None:
    half = LogDensity(lambda x: torch.where(x[:, 0] > 0, -0.5 * x.square().sum(-1), -torch.inf), 3)
    fit = bs.fit(half, FullGaussian.init(3), WhitenedDescent(), steps=5)
    assert fit.state.step == 5


def test_one_bad_start_of_many_is_refused() -> None:
    far = FullGaussian.init(3, mean=torch.full((3,), 1e200, dtype=F64))
    quartic = LogDensity(lambda x: -x.pow(4).sum(-1), 3)
    with pytest.raises(ValueError, match="not finite at any of 20 draws"):
        bs.fit_many(quartic, [Q, far], GSM(), steps=2, seeds=[0, 1])


@pytest.mark.parametrize("factor", [-1.0, 2.0, 0.5])
def test_a_score_that_is_not_the_gradient_of_its_density_is_refused(factor: float) -> None:
    wrong = ScoreFunction(lambda x: -factor * x, 3, log_density=lambda x: -0.5 * x.square().sum(-1))
    numbers = "along a random direction it gives .* and the density changes by .*check=False"
    what = "; its sign is flipped: " if factor == -1.0 else ": "
    sentence = f"the score is not the gradient of the log density{what}{numbers}"
    refused(ValueError, sentence, wrong, Q, steps=2)
    assert bs.fit(wrong, Q, GSM(), steps=2, check=False).state.step == 2


def test_a_density_that_hides_a_part_from_autograd_is_refused() -> None:
    hidden = LogDensity(lambda x: -0.5 * x.square().sum(-1) - x.detach().square().sum(-1), 3)
    refused(ValueError, "the score is not the gradient of the log density", hidden, Q, steps=2)


@pytest.mark.parametrize(
    "target",
    [
        TARGET,
        Banana(3),
        bs.targets.Funnel(3),
        bs.targets.SinhArcsinh(3),
        bs.targets.GaussianMixture.separated(3),
    ],
    ids=lambda t: type(t).__name__,
)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 10.0])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_a_right_score_is_never_suspected(target: Target, scale: float, shift: float) -> None:
    q = FullGaussian.init(3, scale=scale, mean=torch.full((3,), shift, dtype=F64))
    bs.fit(target, q, GSM(), steps=1)


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_a_large_constant_in_the_density_is_not_taken_for_an_error(offset: float) -> None:
    target = LogDensity(lambda x: offset - 0.5 * x.square().sum(-1), 3)
    bs.fit(target, Q, GSM(), steps=1)


def test_single_precision_scores_are_not_suspected() -> None:
    target = LogDensity(lambda x: -0.5 * (x - 3).square().sum(-1), 3, dtype=torch.float32)
    bs.fit(target, FullGaussian.init(3, dtype=torch.float32), GSM(), steps=1)


def test_scores_alone_of_the_wrong_sign_are_refused() -> None:
    refused(
        ValueError, "score points outwards .* its sign is probably flipped", ScoreFunction(lambda x: x, 3), Q
    )
    bs.fit(ScoreFunction(lambda x: -x, 3), Q, GSM(), steps=1)


def test_a_score_of_the_wrong_shape_is_refused() -> None:
    refused(
        ValueError, r"the score must map points .* it returned", ScoreFunction(lambda x: -x.sum(-1), 3), Q
    )

    class Odd(Target):
        dim = 3

        def log_prob(self, x):
            return -x.square().sum(-1)

        def score(self, x, streams=None):
            return -x[..., :1]

    refused(
        ValueError, r"the score must have the shape of its points \(1, 20, 3\); got \(1, 20, 1\)", Odd(), Q
    )


@pytest.mark.parametrize(
    "target", [NoisyScore(Banana(3), 0.1), NoisyScore(LogDensity(lambda x: -x.square().sum(-1), 3), 0.1)]
)
def test_noise_can_be_put_on_any_target(target: Target) -> None:
    assert bs.fit(target, Q, GSM(), steps=2).state.step == 2


def test_a_density_with_learned_weights_raises_no_warning() -> None:
    layer = torch.nn.Linear(3, 1).double()
    target = LogDensity(lambda x: -layer(x).squeeze(-1).square() - x.square().sum(-1), 3)
    fit = bs.fit(target, Q, ADVI(), steps=3)
    assert fit.elbo is not None
    assert all(p.grad is None for p in layer.parameters()), "and its weights get no gradients"


def test_a_solver_that_is_rough_on_a_small_scale_is_not_taken_for_a_wrong_score() -> None:
    def rough(x: torch.Tensor) -> torch.Tensor:  # the error of a solver, in steps of its own
        return -0.5 * x.square().sum(-1) + 1e-3 * (1e5 * x.sum(-1)).floor().remainder(7)

    target = ScoreFunction(lambda x: -x, 3, log_density=rough)
    assert bs.fit(target, Q, GSM(), steps=2).state.step == 2
    wrong = ScoreFunction(lambda x: -3 * x, 3, log_density=lambda x: -0.5 * x.square().sum(-1))
    refused(ValueError, "the score is not the gradient of the log density", wrong, Q, steps=2)

"""Every analytic target is a normalised density with its own exact score, Hessian and draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayescore as bs
from bayescore.targets import Banana, Funnel, Gaussian, GaussianMixture, NoisyScore, SinhArcsinh, Target
from bayescore.targets.gaussians import random_covariance
from cases import F64, covariance, normal, z_score

MAKERS = {
    "gaussian": lambda dim, seed: Gaussian.random(dim, seed=seed),
    "ill-conditioned": lambda dim, seed: Gaussian.ill_conditioned(dim, 100.0, seed=seed),
    "mixture": lambda dim, seed: GaussianMixture.random(dim, 4, seed=seed),
    "separated": lambda dim, seed: GaussianMixture.separated(dim, 3, seed=seed),
    "banana": lambda dim, seed: Banana(dim),
    "bent": lambda dim, seed: Banana(dim, width=1.3, bend=-0.4),
    "funnel": lambda dim, seed: Funnel(dim, scale=1.0),
    "skewed": lambda dim, seed: SinhArcsinh(dim),
    "heavy": lambda dim, seed: SinhArcsinh(dim, skew=-0.3, tail=0.8),
}
each = pytest.mark.parametrize("name", MAKERS)


def score_by_autograd(target: Target, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(target.log_prob(x).sum(), x)[0]


@given(name=st.sampled_from(list(MAKERS)), dim=st.integers(2, 5), seed=st.integers(0, 1000))
@settings(max_examples=60)
def test_score_is_the_gradient_of_the_log_density(name: str, dim: int, seed: int) -> None:
    target, x = MAKERS[name](dim, seed), normal(5, dim, seed=seed)
    value, score = target.log_prob_and_score(x)
    expected = score_by_autograd(target, x)
    torch.testing.assert_close(target.score(x), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(score, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(value, target.log_prob(x), rtol=1e-12, atol=1e-12)
    assert not score.requires_grad
    assert not value.requires_grad


@given(name=st.sampled_from(list(MAKERS)), dim=st.integers(2, 4), seed=st.integers(0, 1000))
@settings(max_examples=40)
def test_hessian_product_is_that_of_the_autograd_hessian(name: str, dim: int, seed: int) -> None:
    target = MAKERS[name](dim, seed)
    x, v = normal(2, 3, dim, seed=seed)
    hessians = torch.stack(
        [torch.autograd.functional.hessian(lambda p: target.log_prob(p), row) for row in x]
    )
    expected = (hessians @ v.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(target.hessian_product(x, v), expected, rtol=1e-8, atol=1e-8)


@each
def test_points_may_have_any_leading_shape(name: str) -> None:
    target, x = MAKERS[name](3, 0), normal(2, 4, 3)
    assert target.log_prob(x).shape == (2, 4)
    assert target.score(x).shape == (2, 4, 3)
    torch.testing.assert_close(target.log_prob(x)[1, 2], target.log_prob(x[1, 2]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "mixture", "separated", "skewed", "heavy"])
def test_density_integrates_to_one_on_the_line(name: str) -> None:
    target = MAKERS[name](1, 3)
    u = torch.linspace(-12, 12, 200_001, dtype=F64)  # x = sinh(u) reaches far into the tails
    x = u.sinh().unsqueeze(-1)
    total = torch.trapezoid(target.log_prob(x).exp() * u.cosh(), u)
    assert float(total) == pytest.approx(1.0, abs=1e-6)


@each
def test_density_integrates_to_one_in_the_plane(name: str) -> None:
    target = MAKERS[name](2, 1)
    u = torch.linspace(-6, 6, 1201, dtype=F64)
    x, y = torch.meshgrid(u.sinh(), u.sinh(), indexing="ij")
    density = target.log_prob(torch.stack([x, y], -1)).exp() * u.cosh()[:, None] * u.cosh()
    assert float(torch.trapezoid(torch.trapezoid(density, u), u)) == pytest.approx(1.0, abs=2e-4)


@each
def test_the_mean_score_of_exact_draws_is_zero(name: str) -> None:
    target = MAKERS[name](3, 2)
    assert target.has_samples
    assert target.normalised
    x = target.sample(20_000, seed=1)
    assert x.shape == (20_000, 3)
    assert z_score(target.score(x)).abs().max() < 4.5


@each
def test_exact_draws_satisfy_the_identity_of_stein(name: str) -> None:
    """E[phi(x) s(x) + grad phi(x)] = 0 with the bounded phi = tanh: no heavy tails enter."""
    target = MAKERS[name](2, 2)
    x = target.sample(40_000, seed=3)
    phi, slope = x.tanh(), 1 - x.tanh().square()
    terms = phi.unsqueeze(-1) * target.score(x).unsqueeze(-2) + torch.diag_embed(slope)
    assert z_score(terms.flatten(1)).abs().max() < 4.5


@pytest.mark.parametrize("name", ["gaussian", "ill-conditioned", "mixture", "separated"])
def test_exact_draws_have_the_moments_that_the_target_states(name: str) -> None:
    target = MAKERS[name](3, 4)
    x = target.sample(40_000, seed=5)
    d = x - target.mean
    assert z_score(d).abs().max() < 4.5
    assert (
        z_score((d.unsqueeze(-1) * d.unsqueeze(-2)).flatten(1), target.covariance.flatten()).abs().max() < 4.5
    )


def test_moments_of_the_shapes_are_those_of_their_formulas() -> None:
    banana, funnel = Banana(2, width=2.0, bend=0.3).sample(40_000, 0), Funnel(2, scale=1.0).sample(40_000, 0)
    assert z_score(banana).abs().max() < 4.5
    assert z_score(banana[:, 0].square(), 4.0).abs() < 4.5
    assert z_score(banana[:, 1].square(), 1 + 2 * 0.3**2 * 16).abs() < 4.5
    assert z_score(funnel[:, 1].square(), math.exp(0.5)).abs() < 4.5
    skewed = SinhArcsinh(1, skew=0.5).sample(40_000, 0)
    assert (skewed > 0).double().mean() > 0.6, "a positive skew moves the mass to the right"


@each
def test_draws_depend_on_the_seed_alone(name: str) -> None:
    target = MAKERS[name](3, 0)
    before = torch.random.get_rng_state()
    assert torch.equal(target.sample(4, seed=1), target.sample(4, seed=1))
    assert not torch.equal(target.sample(4, seed=1), target.sample(4, seed=2))
    assert torch.equal(torch.random.get_rng_state(), before)


# -- the paper's generator --------------------------------------------------------------------------------


@given(dim=st.integers(1, 10), seed=st.integers(0, 10_000))
@settings(max_examples=50)
def test_generated_covariances_are_symmetric_and_positive_definite(dim: int, seed: int) -> None:
    V = random_covariance(dim, torch.Generator().manual_seed(seed))
    torch.testing.assert_close(V, V.T, rtol=1e-12, atol=1e-12)
    assert torch.linalg.eigvalsh(V).min() > 0


@given(dim=st.integers(1, 5), components=st.integers(1, 6), seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_generated_mixtures_have_weights_that_sum_to_one(dim: int, components: int, seed: int) -> None:
    target = GaussianMixture.random(dim, components, seed=seed)
    assert target.weights.shape == (components,)
    assert float(target.weights.sum()) == pytest.approx(1.0, abs=1e-12)
    assert (target.weights > 0).all()
    # softmax(1 + b), b ~ N(0, 0.3^2): six standard deviations of a difference bound the ratio of two weights
    assert float(target.weights.max() / target.weights.min()) < math.exp(6 * 0.3 * math.sqrt(2))


def test_generators_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    for make in (Gaussian.random, GaussianMixture.random, GaussianMixture.separated):
        a, b, c = make(3, seed=1), make(3, seed=1), make(3, seed=2)
        assert torch.equal(a.density.flat(), b.density.flat())
        assert not torch.equal(a.density.flat(), c.density.flat())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_means_of_the_generator_are_standard_normal_and_three_times_wider_when_separated() -> None:
    means = torch.cat(
        [GaussianMixture.random(3, 20, seed=s).density.components.mean for s in range(100)]
    ).flatten()
    wide = torch.cat(
        [GaussianMixture.separated(3, 20, seed=s).density.components.mean for s in range(100)]
    ).flatten()
    for values, sd in ((means, 1.0), (wide, 3.0)):
        assert z_score(values).abs() < 4.5
        assert z_score(values.square(), sd**2).abs() < 4.5


def test_scale_of_the_generator_has_the_standard_deviation_of_the_paper() -> None:
    """In one dimension V = 1 + a x^2, a ~ N(0, 0.3^2), redrawn until V > 0: its law by simulation."""
    drawn = torch.stack(
        [random_covariance(1, torch.Generator().manual_seed(s)).squeeze() for s in range(4000)]
    )
    a, x = 0.3 * normal(200_000, seed=1), normal(200_000, seed=2)
    V = 1 + a * x.square()
    V = V[V > 0]
    assert z_score(drawn, float(V.mean())).abs() < 4.5
    assert z_score(drawn.clamp(0, 3), float(V.clamp(0, 3).mean())).abs() < 4.5


@pytest.mark.parametrize("condition", [1.0, 1e4])
def test_ill_conditioned_gaussian_has_the_condition_number_asked_for(condition: float) -> None:
    spectrum = torch.linalg.eigvalsh(Gaussian.ill_conditioned(20, condition, seed=0).covariance)
    assert float(spectrum.max() / spectrum.min()) == pytest.approx(condition, rel=1e-6)


# -- batches and names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian", "mixture"])
def test_stacked_targets_are_their_members(name: str) -> None:
    members = [MAKERS[name](3, s) for s in range(3)]
    target, x = type(members[0]).stack(members), normal(3, 5, 3)
    assert target.batch_shape == (3,)
    assert "batch=3" in repr(target)
    assert target.sample(7, seed=0).shape == (3, 7, 3)
    for i, member in enumerate(members):
        torch.testing.assert_close(target.log_prob(x)[i], member.log_prob(x[i]), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(target.score(x)[i], member.score(x[i]), rtol=1e-12, atol=1e-12)
        assert torch.equal(target[i].density.flat(), member.density.flat())


@pytest.mark.parametrize(
    "others",
    [
        [Gaussian.random(3), GaussianMixture.random(3)],
        [Gaussian.random(3), Banana(3)],
        [GaussianMixture.random(3, 2), GaussianMixture.random(3, 3)],
        [Gaussian.random(3), Gaussian.random(2)],
        [Gaussian.random(3), NoisyScore(Gaussian.random(3), 0.1)],
        [NoisyScore(Gaussian.random(3), 0.1), Gaussian.random(3)],
    ],
    ids=["kinds", "no density", "orders", "dimensions", "noisy last", "noisy first"],
)
def test_targets_of_different_shapes_make_no_batch(others: list[Target]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"\w"):
        type(others[0]).stack(others)


@pytest.mark.parametrize("target", [Banana(), Funnel(), SinhArcsinh()])
def test_targets_that_cannot_be_batched_say_so(target: Target) -> None:
    with pytest.raises(TypeError, match="cannot be batched"):
        type(target).stack([target, target])


def test_named_targets_are_made_and_the_nearest_name_is_suggested() -> None:
    for name, (line, _) in bs.targets.NAMED.items():
        target = bs.targets.by_name(name, seed=1)
        assert target.score(target.sample(2, seed=0)).shape == (2, target.dim)
        assert line
        assert bs.targets.by_name(name, dim=4).dim == 4
    with pytest.raises(ValueError, match=r"no target called 'bananna'; did you mean 'banana'\?"):
        bs.targets.by_name("bananna")


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: Gaussian(normal(2), -torch.eye(2, dtype=F64)), ValueError, "positive definite"),
        (
            lambda: Gaussian(normal(3), torch.eye(2, dtype=F64)),
            ValueError,
            r"covariance must have the shape .*got \(2, 2\)",
        ),
        (
            lambda: Gaussian(normal(2), torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=F64)),
            ValueError,
            "symmetric",
        ),
        (lambda: Gaussian.random(0), ValueError, "dim must be at least 1; got 0"),
        (lambda: Gaussian.ill_conditioned(3, -1.0), ValueError, "condition.*-1"),
        (
            lambda: GaussianMixture(
                torch.tensor([1.0, -1.0], dtype=F64), normal(2, 3), covariance(3).expand(2, 3, 3)
            ),
            ValueError,
            "weights must be positive; the smallest is -1",
        ),
        (
            lambda: GaussianMixture(torch.ones(3, dtype=F64), normal(2, 3), covariance(3).expand(2, 3, 3)),
            ValueError,
            "disagree",
        ),
        (lambda: GaussianMixture.random(3, 0), ValueError, "components must be at least 1; got 0"),
        (lambda: Banana(1), ValueError, "dim must be at least 2; got 1"),
        (lambda: Banana(2, width=0.0), ValueError, "width must be positive; got 0.0"),
        (lambda: Funnel(2, scale=-1.0), ValueError, "scale must be positive; got -1.0"),
        (lambda: SinhArcsinh(2, tail=0.0), ValueError, "tail must be positive; got 0.0"),
        (lambda: Banana().sample(0), ValueError, "n must be at least 1; got 0"),
    ],
)
def test_impossible_targets_are_refused_with_a_sentence(make, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        make()


@pytest.mark.parametrize("name", sorted(bs.targets.NAMED))
def test_a_ready_made_target_has_at_least_one_dimension(name: str) -> None:
    with pytest.raises(ValueError, match="dim must be at least 1; got 0"):
        bs.targets.by_name(name, 0)


def test_a_covariance_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayescore.checks.available_memory", lambda: 10**6)
    for make in (Gaussian.random, GaussianMixture.random, lambda dim: Gaussian.ill_conditioned(dim, 10.0)):
        with pytest.raises(MemoryError, match=r"in 400 dimensions needs about .* GB.*take fewer dimensions"):
            make(400)

"""BaM: the closed form solves the problem it stands for, in every family and with any number of draws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayescore import fit_many
from bayescore.families import FullGaussian, LowRankGaussian
from bayescore.methods import BaM
from bayescore.methods.bam import bam_diagonal, bam_full
from bayescore.targets import Gaussian, NoisyScore, ScoreFunction
from cases import F64, family, gaussian, kl, normal, one_step, walk

cases = given(
    dim=st.integers(1, 7),
    size=st.integers(1, 10),
    seed=st.integers(0, 10_000),
    lam=st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e4]),
)


def draws(q, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """B draws from q and arbitrary scores."""
    return q.sample(size, seed=seed), 2 * normal(size, q.dim, seed=seed + 1)


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(0)
    return mean, (x - mean).T @ (x - mean) / len(x)


def matrices(mu, sigma, z, g, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    """U and V of the quadratic matrix equation."""
    (zbar, C), (gbar, gamma) = statistics(z), statistics(g)
    U = lam * gamma + lam / (1 + lam) * torch.outer(gbar, gbar)
    V = sigma + lam * C + lam / (1 + lam) * torch.outer(mu - zbar, mu - zbar)
    return U, V


def step_full(q: FullGaussian, z, g, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    mean, factor = bam_full(
        q.mean[None], q.factor[None], z[None], g[None], torch.full((1, 1), lam, dtype=F64)
    )
    assert torch.equal(factor, factor.tril())
    assert (factor.diagonal(dim1=-2, dim2=-1) > 0).all()
    return mean[0], (factor @ factor.mT)[0]


@cases
@settings(max_examples=60)
def test_the_new_covariance_solves_the_quadratic_matrix_equation(
    dim: int, size: int, seed: int, lam: float
) -> None:
    q = gaussian(dim, seed)
    z, g = draws(q, size, seed)
    mean, sigma = step_full(q, z, g, lam)
    U, V = matrices(q.mean, q.covariance, z, g, lam)
    torch.testing.assert_close(sigma @ U @ sigma + sigma, V, rtol=1e-8, atol=1e-8 * float(V.abs().max()))
    expected = q.mean / (1 + lam) + lam / (1 + lam) * (sigma @ g.mean(0) + z.mean(0))
    torch.testing.assert_close(mean, expected, rtol=1e-9, atol=1e-9)


@cases
@settings(max_examples=40)
def test_low_rank_and_dense_solutions_are_the_published_ones(
    dim: int, size: int, seed: int, lam: float
) -> None:
    """Sigma = 2 V (I + (I + 4 U V)^{1/2})^{-1}, by an eigendecomposition of V^{1/2} U V^{1/2}."""
    q = gaussian(dim, seed)
    z, g = draws(q, size, seed)
    _, sigma = step_full(q, z, g, lam)
    U, V = matrices(q.mean, q.covariance, z, g, lam)
    R = torch.linalg.cholesky(V)
    l, W = torch.linalg.eigh(R.T @ U @ R)
    expected = R @ (W * (2 / (1 + (1 + 4 * l.clamp_min(0)).sqrt()))) @ W.T @ R.T
    torch.testing.assert_close(sigma, expected, rtol=1e-7, atol=1e-7 * float(V.abs().max()))


def objective(mean, cov, q, z, g, lam: float) -> torch.Tensor:
    """What BaM minimises: the score divergence in the norm of Cov(q), plus (2/lam) KL(q_t | q)."""
    residual = torch.linalg.solve(cov, (mean - z).T).T - g
    fit = ((residual @ cov) * residual).sum(-1).mean()
    return fit + 2 / lam * kl(q.mean, q.covariance, mean, cov)


@cases
@settings(max_examples=40)
def test_the_full_step_is_a_stationary_point_of_its_objective(
    dim: int, size: int, seed: int, lam: float
) -> None:
    q = gaussian(dim, seed)
    z, g = draws(q, size, seed)
    mean, sigma = step_full(q, z, g, lam)
    mean, L = mean.requires_grad_(), torch.linalg.cholesky(sigma).requires_grad_()
    value = objective(mean, L.tril() @ L.tril().T, q, z, g, lam)
    by_mean, by_factor = torch.autograd.grad(value, (mean, L))
    scale = 1e-7 * (1 + float(value.detach().abs()) + 1 / lam)
    assert (L.T @ by_mean).abs().max() < scale * (1 + L.abs().max())
    assert (L.T @ by_factor).abs().max() < scale * (1 + L.abs().max())


@cases
@settings(max_examples=40)
def test_the_diagonal_step_is_a_stationary_point_and_the_positive_root(
    dim: int, size: int, seed: int, lam: float
) -> None:
    q = family("diagonal", dim, seed)
    z, g = draws(q, size, seed)
    mean, sd = (
        v[0]
        for v in bam_diagonal(q.mean[None], q.sd[None], z[None], g[None], torch.full((1, 1), lam, dtype=F64))
    )
    s, log_sd = sd.square(), sd.log()
    a = g.var(0, correction=0) + g.mean(0).square() / (1 + lam)
    c = z.var(0, correction=0) + (2 * q.log_sd).exp() / lam + (q.mean - z.mean(0)).square() / (1 + lam)
    torch.testing.assert_close(a * s.square() + s / lam, c, rtol=1e-9, atol=1e-12)
    mean, log_sd = mean.requires_grad_(), log_sd.requires_grad_()
    value = objective(mean, torch.diag((2 * log_sd).exp()), q, z, g, lam)
    grads = torch.autograd.grad(value, (mean, log_sd))
    scale = 1e-7 * (1 + float(value.detach().abs()) + 1 / lam)
    assert (log_sd.exp() * grads[0]).abs().max() < scale
    assert grads[1].abs().max() < scale


@given(
    kind=st.sampled_from(["full", "diagonal", "low-rank"]),
    dim=st.integers(2, 6),
    size=st.integers(2, 8),
    seed=st.integers(0, 10_000),
    magnitude=st.sampled_from([0.0, 1e-8, 1.0, 1e4, 1e8]),
)
@settings(max_examples=80)
def test_no_score_makes_the_covariance_indefinite(
    kind: str, dim: int, size: int, seed: int, magnitude: float
) -> None:
    scores = magnitude * normal(size, dim, seed=seed)
    q = one_step(BaM(draws=size), family(kind, dim, seed), ScoreFunction(lambda x: scores, dim))
    assert q.flat().isfinite().all()
    assert q.entropy().isfinite()


@pytest.mark.parametrize("magnitude", [1e-6, 1e-3, 1e3])
@pytest.mark.parametrize("kind", ["full", "diagonal", "low-rank"])
def test_steps_do_not_depend_on_the_units_of_the_coordinates(kind: str, magnitude: float) -> None:
    """Affine invariance: a rescaled problem takes the rescaled step."""
    q = family(kind, 4)
    target = Gaussian(normal(4), torch.eye(4, dtype=F64))
    scaled_target = Gaussian(magnitude * target.mean, magnitude**2 * target.covariance)
    if kind == "full":
        scaled = FullGaussian(magnitude * q.mean, magnitude * q.factor)
    elif kind == "diagonal":
        scaled = type(q)(magnitude * q.mean, q.log_sd + torch.tensor(magnitude, dtype=F64).log())
    else:
        shift = 2 * torch.tensor(magnitude, dtype=F64).log()
        scaled = LowRankGaussian(magnitude * q.mean, q.log_diagonal + shift, magnitude * q.columns)
    a, b = one_step(BaM(draws=3), q, target), one_step(BaM(draws=3), scaled, scaled_target)
    torch.testing.assert_close(b.mean / magnitude, a.mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(b.covariance / magnitude**2, a.covariance, rtol=1e-7, atol=1e-7)


# -- schedules --------------------------------------------------------------------------------------------


def test_named_schedules_are_their_formulas() -> None:
    q, target = gaussian(3), Gaussian(normal(3), torch.eye(3, dtype=F64))

    def after(rule: object) -> torch.Tensor:
        return walk(BaM(draws=4, regularisation=rule), q, target, steps=4).flat()

    assert torch.equal(after("constant"), after(lambda t, B, D: B * D))
    assert torch.equal(after("constant"), after(12.0))
    assert torch.equal(after("decay"), after(lambda t, B, D: B * D / (t + 1)))
    assert torch.equal(after("plateau"), after("constant")), "the default holds B D while the mismatch falls"


def test_a_callable_schedule_is_asked_once_per_step_with_step_draws_and_dimension() -> None:
    asked = []
    rule = lambda t, B, D: asked.append((t, B, D)) or 1.0  # noqa: E731
    walk(BaM(draws=4, regularisation=rule), gaussian(3), Gaussian.random(3), steps=3)
    assert asked == [(0, 4, 3), (1, 4, 3), (2, 4, 3)]


def divergences(target: Gaussian, fits: list) -> torch.Tensor:
    return torch.stack(
        [kl(target.mean, target.covariance, fit.family.mean, fit.family.covariance) for fit in fits]
    )


def test_the_default_schedule_decays_after_a_plateau_and_then_beats_the_constant_one_under_noise() -> None:
    target = Gaussian.random(3, seed=1)
    final = {}
    for rule in ("plateau", "constant"):
        fits = fit_many(
            NoisyScore(target, 0.3),
            FullGaussian.init(3),
            BaM(draws=4, regularisation=rule),
            steps=600,
            seeds=range(8),
            record_every=600,
            metrics={},
        )
        final[rule] = float(divergences(target, fits).median())
    assert final["plateau"] < 0.2 * final["constant"]


def test_the_default_schedule_does_not_decay_before_it_has_arrived() -> None:
    """From fifteen standard deviations away the mismatch rises before it falls: that is not a plateau."""
    target = Gaussian.random(3, seed=9)
    start = FullGaussian.init(3, mean=torch.full((3,), 15.0, dtype=F64))
    options = {"steps": 500, "seeds": range(8), "record_every": 500, "metrics": {}}
    final = {}
    for rule in ("plateau", "constant"):
        fits = fit_many(target, start, BaM(regularisation=rule), **options)
        final[rule] = divergences(target, fits)
    assert (final["constant"] < 1e-2).all()
    assert (final["plateau"] < 1e-2).all()


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"draws": 1}, ValueError, "draws must be at least 2; got 1"),
        ({"regularisation": "slow"}, ValueError, "'plateau', 'constant', 'decay'.*got 'slow'"),
        ({"regularisation": 0.0}, ValueError, "regularisation must be positive; got 0"),
        ({"regularisation": -1.0}, ValueError, "regularisation must be positive; got -1"),
        ({"regularisation": float("nan")}, ValueError, "regularisation must be positive; got nan"),
        ({"regularisation": float("inf")}, ValueError, "regularisation.*inf"),
        ({"regularisation": None}, (TypeError, ValueError), "regularisation.*None"),
    ],
)
def test_impossible_settings_are_refused_with_a_sentence(options, error, sentence) -> None:
    with pytest.raises(error, match=sentence):
        BaM(**options)


@pytest.mark.parametrize("value", [-1.0, float("nan"), 0.0])
def test_a_schedule_that_gives_an_impossible_value_is_refused_with_a_sentence(value: float) -> None:
    with pytest.raises(ValueError, match=f"regularisation.*{value}"):
        walk(BaM(regularisation=lambda t, B, D: value), gaussian(3), Gaussian.random(3))

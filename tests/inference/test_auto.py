"""The automatic fit: it finds a start, keeps the best, counts every call, and says what it did and found."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import HalfCauchy, Normal

import bayescore as bs
from bayescore.inference.result import Outcome, Trust
from bayescore.initial.ascent import lbfgs, newton
from bayescore.initial.finding import noisy_start
from bayescore.targets import (
    Banana,
    Funnel,
    Gaussian,
    LogDensity,
    MiniBatchPosterior,
    NoisyScore,
    Positive,
    Real,
    ScoreFunction,
    TorchModel,
)
from bayescore.targets.counting import CountedDensity

Y = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], dtype=torch.float64)
SE = torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], dtype=torch.float64)

SEARCH = (
    "make_start",
    "default_family",
    "can_search",
    "finite_points",
    "check_target",
    "propriety_objection",
    "newton",
    "best_gaussian",
)


def schools(centred: bool) -> TorchModel:
    """Rubin's eight schools: centred it has no mode, for its density grows without bound as tau falls."""

    def log_density(mu: Tensor, tau: Tensor, theta: Tensor) -> Tensor:
        prior = Normal(0, 5).log_prob(mu) + HalfCauchy(5).log_prob(tau)
        if centred:
            effects, values = Normal(mu, tau).log_prob(theta).sum(), theta
        else:
            effects, values = Normal(0, 1).log_prob(theta).sum(), mu + tau * theta
        return prior + effects + Normal(values, SE).log_prob(Y).sum()

    return TorchModel({"mu": Real(), "tau": Positive(), "theta": Real(8)}, log_density)


def auto(target: bs.targets.Target, *arguments: object, **options: object) -> bs.Fit:
    return bs.fit(target, *arguments, progress=False, **options)  # type: ignore[arg-type]


# -- what it finds -------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [1, 3, 30])
def test_a_gaussian_is_found_exactly(dim: int) -> None:
    target = Gaussian.random(dim, seed=dim)
    fit = auto(target)
    torch.testing.assert_close(fit.family.mean, target.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(fit.family.covariance, target.covariance, rtol=1e-6, atol=1e-8)
    assert fit.verdict.startswith("good")
    assert "found a mode" in " ".join(fit.notes)


def test_an_ill_conditioned_density_of_a_distant_mode_takes_no_longer() -> None:
    centre = torch.tensor([300.0, -2.0, 0.05], dtype=torch.float64)
    sd = torch.tensor([50.0, 0.1, 1e-4], dtype=torch.float64)
    fit = auto(LogDensity(lambda x: -0.5 * ((x - centre) / sd).square().sum(-1), 3))
    assert ((fit.family.mean - centre).abs() < 1e-6 * sd).all()
    torch.testing.assert_close(fit.family.covariance.diagonal().sqrt(), sd)
    assert fit.score_calls < 5000


def test_the_three_ways_to_ask_for_it_are_one() -> None:
    target = Banana()
    fits = [auto(target), auto(target, method="auto"), auto(target, None, None)]
    assert len({tuple(fit.family.flat().tolist()) for fit in fits}) == 1


def test_a_given_start_chooses_the_family() -> None:
    target = Gaussian.random(12, seed=1)
    for q0 in (bs.families.DiagonalGaussian.init(12), bs.families.LowRankGaussian.init(12, 2)):
        fit = auto(target, q0)
        assert type(fit.family) is type(q0)
        assert fit.elbo is not None
        assert fit.elbo.value > float(bs.metrics.ELBO()(q0, target))


@pytest.mark.parametrize("dim", [400, 401, 20_001])
def test_the_dimension_chooses_the_family_without_a_given_start(dim: int) -> None:
    from bayescore.initial.finding import default_family

    kind = {400: "FullGaussian", 401: "SpikedGaussian", 20_001: "DiagonalGaussian"}[dim]
    assert type(default_family(LogDensity(lambda x: -x.square().sum(-1), dim))).__name__ == kind


def test_beyond_a_full_gaussian_it_climbs_by_quasi_newton_steps() -> None:
    centre, sd = (
        torch.linspace(-3, 3, 500, dtype=torch.float64),
        torch.linspace(0.2, 2, 500, dtype=torch.float64),
    )
    target = LogDensity(lambda x: -0.5 * ((x - centre) / sd).square().sum(-1), 500)
    fit = auto(target, bs.families.DiagonalGaussian.init(500))
    torch.testing.assert_close(fit.family.sd, sd, rtol=1e-4, atol=0)
    assert "L-BFGS" in fit.notes[0]


def test_a_skewed_posterior_ends_at_a_better_elbo_than_its_laplace_approximation() -> None:
    target = schools(centred=False)
    fit = auto(target)
    mode = newton(CountedDensity(target), torch.zeros(1, 10, dtype=torch.float64))[-1]
    laplace = bs.families.FullGaussian.from_moments(mode.x[0], mode.factor[0] @ mode.factor[0].mT)
    assert fit.elbo is not None
    assert fit.elbo.value > float(bs.metrics.ELBO(2000)(laplace, target)) + 5
    assert fit.khat is not None
    assert fit.khat.value < 0.9


# -- what it says --------------------------------------------------------------------------------


def test_a_density_without_a_mode_is_found_out_and_still_fitted() -> None:
    fit = auto(schools(centred=True))
    (note,) = [note for note in fit.notes if "no mode" in note]
    assert "still rises, towards tau = -" in note
    assert fit.elbo is not None
    assert fit.elbo.value > -40  # the best local Gaussian on the way has -38
    assert note in fit.summary()
    assert "tau is the population sd of theta" in note
    assert "write the non-centred form, theta = location + tau * eta" in note


def grouped(J: int = 30) -> TorchModel:
    """Means of groups, centred: the search climbs into the neck, and the broad start does not."""
    rng = torch.Generator().manual_seed(2)
    se = 1 + 3 * torch.rand(J, generator=rng, dtype=torch.float64)
    y = 3 + 2 * torch.randn(J, generator=rng, dtype=torch.float64)
    y = y + se * torch.randn(J, generator=rng, dtype=torch.float64)

    def log_density(mu: Tensor, tau: Tensor, theta: Tensor) -> Tensor:
        prior = Normal(0, 5).log_prob(mu) + HalfCauchy(5).log_prob(tau)
        return prior + Normal(mu, tau).log_prob(theta).sum() + Normal(theta, se).log_prob(y).sum()

    return TorchModel({"mu": Real(), "tau": Positive(), "theta": Real(J)}, log_density)


def test_a_centred_hierarchy_ends_at_the_elbo_of_the_best_gaussian_for_every_seed() -> None:
    target = grouped()
    judge = bs.metrics.ELBO(1000, seed=9)
    found = [float(judge(auto(target, seed=seed, effort="quick").family, target)) for seed in range(4)]
    broad = bs.fit(
        target, bs.families.FullGaussian.init(32), bs.methods.BaM(64, "decay"), steps=300, progress=False
    )
    assert min(found) > float(judge(broad.family, target)) - 0.5
    assert max(found) - min(found) < 0.5


def test_the_other_routes_are_for_targets_that_need_them() -> None:
    notes = " ".join(auto(Gaussian.random(10, seed=1)).notes)
    assert "broad" not in notes
    assert "BaM from the broad q0" in " ".join(auto(schools(centred=True)).notes)
    thorough = auto(Banana(), effort="thorough")
    assert "dispersed q0 3" in " ".join(thorough.notes)
    assert thorough.score_calls > auto(Banana(), effort="quick").score_calls


def test_an_effort_is_a_word_for_the_automatic_fit() -> None:
    with pytest.raises(ValueError, match="effort"):
        auto(Banana(), effort="much")
    with pytest.raises(TypeError, match='effort= is for method="auto"'):
        auto(Banana(), method="bam", effort="quick")


def test_a_coordinate_that_nothing_holds_makes_the_verdict() -> None:
    fit = auto(LogDensity(lambda x: -x[:, 0].square() + 0 * x[:, 1], 2))
    assert "linear in theta[2], so it cannot be normalised" in fit.verdict
    assert fit.verdict.startswith("do not trust this approximation")
    model = TorchModel({"a": Real(), "s": Positive()}, lambda a, s: Normal(0.0, 1.0).log_prob(a) + 0 * s)
    assert "linear in s" in auto(model).verdict


def test_a_density_that_grows_for_ever_is_not_trusted() -> None:
    fit = auto(LogDensity(lambda x: x.square().sum(-1), 2))
    assert "ran off" in fit.verdict
    assert "no mode" in " ".join(fit.notes)


def test_a_density_that_is_finite_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite at any of 101 points around the start q0; move q0"):
        auto(LogDensity(lambda x: x.sum(-1) * torch.nan, 2))


def test_a_start_outside_the_support_is_left() -> None:
    def log_density(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 1, -0.5 * (x - 9).square().sum(-1), -torch.inf)

    fit = auto(LogDensity(log_density, 2))
    assert (fit.family.mean - 9).abs().max() < 0.1


def test_draws_outside_the_support_make_the_verdict() -> None:
    def log_density(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 1, -0.5 * x.square().sum(-1), -torch.inf)

    fit = auto(LogDensity(log_density, 2))
    assert "the density is not finite at" in fit.verdict


def test_a_discontinuity_does_not_stop_it() -> None:
    def log_density(x: Tensor) -> Tensor:
        return -0.5 * x.square().sum(-1) - 3 * (x[:, 0] < 0).double()

    fit = auto(LogDensity(log_density, 2))
    assert fit.elbo is not None
    assert math.isfinite(fit.elbo.value)


def test_a_wrong_score_is_refused_as_by_every_method() -> None:
    wrong = ScoreFunction(lambda x: x, 3, log_density=lambda x: -0.5 * x.square().sum(-1))
    with pytest.raises(ValueError, match="not the gradient of the log density; its sign is flipped"):
        auto(wrong)


# -- scores without a density, and noisy ones ----------------------------------------------------


def test_scores_alone_are_enough() -> None:
    target = Gaussian.random(5, seed=2)
    fit = auto(ScoreFunction(target.score, 5))
    torch.testing.assert_close(fit.family.mean, target.mean, rtol=1e-6, atol=1e-6)
    assert fit.elbo is None
    assert fit.verdict.startswith("unknown")


def test_noisy_scores_are_fitted_by_proximal_score_matching() -> None:
    target = Gaussian.random(3, seed=1)
    fit = auto(NoisyScore(target, 0.3), steps=1500)
    assert type(fit.method).__name__ == "WhitenedDescent"
    assert fit.counts.search_calls > 0
    assert fit.score_calls == fit.counts.search_calls + 1500 + 500
    assert fit.elbo is not None
    assert fit.elbo.value > -0.3


def test_noisy_scores_of_a_skewed_target_are_fitted_without_the_bias_of_bounds() -> None:
    """Logarithms of gamma variables: the best Gaussian is known, mean -log b + psi and variance 1/a about."""
    shape = torch.tensor([0.7, 1.0, 1.5, 2.5], dtype=torch.float64)
    target = LogDensity(lambda x: (shape * x - x.exp()).sum(-1), 4)
    v = 1 / shape  # of the best Gaussian, whose mean is log a - v/2
    best = bs.families.DiagonalGaussian(shape.log() - v / 2, v.sqrt().log())
    judge = bs.metrics.ELBO(4000, seed=5)
    for seed in (0, 1):
        fit = auto(NoisyScore(target, 0.3), seed=seed)
        assert any("was kept" in note for note in fit.notes)
        assert float(judge(fit.family, target)) > float(judge(best, target)) - 0.04


def test_under_noise_a_centred_hierarchy_does_not_hold_the_fit_in_its_neck() -> None:
    """theta_j ~ N(mu, tau): the density grows without bound as tau and the spread of theta shrink."""
    y = torch.tensor([16.0, 3, 12, -6, 20, 7, -1, 9], dtype=torch.float64)

    def density(x: Tensor) -> Tensor:
        mu, log_tau, theta = x[:, :1], x[:, 1], x[:, 2:]
        prior = -0.5 * ((theta - mu) / log_tau.exp().unsqueeze(-1)).square().sum(-1) - 8 * log_tau
        tau = log_tau - torch.log1p((2 * log_tau).exp() / 25)  # half-Cauchy
        return prior + tau - 0.5 * (mu[:, 0] / 5).square() - 0.5 * ((y - theta) / 10).square().sum(-1)

    fit = auto(NoisyScore(LogDensity(density, 10), 0.3), seed=0)
    assert fit.family.mean[1] > 0
    assert fit.score_calls <= 10_000
    assert any("from where the search began is better" in note for note in fit.notes)


def test_a_search_under_noise_may_meet_the_mode_exactly() -> None:
    """There the score, and noise that is relative to it, is zero."""
    target = LogDensity(lambda x: -2.5 * torch.log1p(x.square() / 4).sum(-1), 3)
    start = noisy_start(NoisyScore(target, 0.3), None, seed=0, check=True, budget=400)
    assert start.family.flat().isfinite().all()


def stretched(smallest: float, dim: int = 6) -> LogDensity:
    """A Gaussian far from the origin with standard deviations from 10^smallest to 10."""
    rng = torch.Generator().manual_seed(3)
    W = torch.linalg.qr(torch.randn(dim, dim, generator=rng, dtype=torch.float64)).Q
    sd = torch.logspace(smallest, 1, dim, dtype=torch.float64)
    centre = 5 * torch.randn(dim, generator=rng, dtype=torch.float64)
    return LogDensity(lambda x: -0.5 * (((x - centre) @ W) / sd).square().sum(-1), dim)


@pytest.mark.parametrize(("beta", "seed"), [(0.3, 0), (0.3, 1), (1.0, 0)])
def test_a_search_under_noise_finds_an_ill_conditioned_gaussian(beta: float, seed: int) -> None:
    target = stretched(-3.0 if beta < 1 else -1.0)
    exact = auto(target)
    start = noisy_start(NoisyScore(target, beta), None, seed=seed, check=True, budget=4000)
    judge = bs.metrics.ELBO(500, seed=5)
    assert start.counts.search_calls == start.counts.score_calls <= 4000
    assert float(judge(start.family, target)) > float(judge(exact.family, target)) - 2


def test_a_search_under_noise_needs_no_density_and_serves_every_gaussian_family() -> None:
    target = Gaussian.random(5, seed=2)

    class NoisyScores(NoisyScore):
        def __init__(self) -> None:
            super().__init__(target, 0.3)
            self.has_density = False

    for q0 in (
        bs.families.FullGaussian.init(5, scale=0.1),
        bs.families.DiagonalGaussian.init(5, scale=0.1),
        bs.families.LowRankGaussian.init(5, 2, scale=0.1),
    ):
        start = noisy_start(NoisyScores(), q0, seed=0, check=True, budget=1000)
        assert type(start.family) is type(q0)
        assert start.counts.density_evaluations == 0
        assert (start.family.mean - target.mean).norm() < 0.5 * target.mean.norm() + 0.5


def test_mini_batches_are_fitted() -> None:
    rng = torch.Generator().manual_seed(0)
    y = 1.5 + torch.randn(200, generator=rng, dtype=torch.float64)
    target = MiniBatchPosterior(
        lambda theta, y: -0.5 * (y - theta).square(), y, lambda t: -0.5 * t.square().sum(-1), 1, batch_size=20
    )
    fit = auto(target, steps=1000)
    exact = float(y.sum() / 201)
    assert abs(float(fit.family.mean) - exact) < 0.5 / 201**0.5
    assert fit.khat is not None


def test_a_mixture_goes_to_the_method_that_serves_it() -> None:
    fit = auto(Banana(), bs.families.GaussianMixture.init(2, 2, seed=0), steps=50)
    assert type(fit.method).__name__ == "ProximalDescent"
    assert fit.score_calls == 50


# -- counts, records, files ----------------------------------------------------------------------


def test_every_score_call_is_counted() -> None:
    calls = 0

    def score(x: Tensor) -> Tensor:
        nonlocal calls
        calls += len(x)
        return -x + 0.3 * x.cos()

    target = ScoreFunction(score, 4, log_density=lambda x: (-0.5 * x.square() + 0.3 * x.sin()).sum(-1))
    fit = auto(target)
    assert fit.score_calls + fit.counts.check_calls == calls
    assert 0 < fit.counts.search_calls < fit.score_calls
    assert fit.history["score_calls"][0] == fit.counts.search_calls
    assert fit.history["score_calls"][-1] == fit.score_calls
    assert (fit.history["score_calls"].diff() >= 0).all()
    assert (fit.history["seconds"].diff() >= 0).all()


def test_a_fit_is_the_same_every_time_and_changes_with_the_seed() -> None:
    first, second, other = (auto(Banana(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.family.flat(), second.family.flat())
    assert not torch.equal(first.family.flat(), other.family.flat())


def test_what_is_asked_for_is_recorded() -> None:
    metrics = {"first": lambda q, _: q.mean[:, 0]}
    fit = auto(Gaussian.random(3), steps=20, metrics=metrics, record_every=5)
    assert set(fit.history.columns) == {"step", "score_calls", "seconds", "loss", "first"}
    assert fit.history["step"].tolist() == [0, 5, 10, 15, 20]


def test_a_callback_ends_it() -> None:
    fit = auto(Funnel(), callbacks=[lambda fit: True])
    assert fit.outcome is Outcome.STOPPED
    assert fit.status.startswith("auto: BaM stopped by a callback")


def test_ctrl_c_gives_what_there_is_and_resume_goes_on() -> None:
    def interrupt(fit: bs.Fit) -> None:
        if fit.state.step >= 10:
            raise KeyboardInterrupt

    fit = auto(Banana(), steps=60, callbacks=[interrupt])
    assert fit.outcome is Outcome.INTERRUPTED
    done = bs.resume(fit, progress=False)
    assert done.state.step == 60
    assert done.notes == fit.notes
    assert done.score_calls == fit.counts.search_calls + 60 * 64


def test_ctrl_c_during_the_search_gives_the_start() -> None:
    calls = 0

    def log_density(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return -0.25 * x.pow(4).sum(-1)

    q0 = bs.families.FullGaussian.init(2, scale=0.5)
    fit = auto(LogDensity(log_density, 2), q0, check=False)
    assert fit.outcome is Outcome.INTERRUPTED
    assert torch.equal(fit.family.flat(), q0.flat())


def test_one_ctrl_c_is_for_all() -> None:
    def interrupt(fit: bs.Fit) -> None:
        raise KeyboardInterrupt

    fits = bs.fit_many([Banana(), Banana()], seeds=[0, 1], progress=False, callbacks=[interrupt])
    assert [fit.outcome for fit in fits] == [Outcome.INTERRUPTED, Outcome.INTERRUPTED]
    assert fits[1].state.step == 0
    assert torch.equal(fits[1].family.flat(), bs.families.FullGaussian.init(2).flat())
    assert (fits[1].score_calls, fits[1].counts.check_calls) == (0, 0)
    assert fits[1].history["step"].tolist() == [0]
    assert bs.resume(fits[1], progress=False).state.step == fits[1].state.horizon


def test_notes_and_verdict_are_saved(tmp_path) -> None:
    target = LogDensity(lambda x: -x[:, 0].square() + 0 * x[:, 1], 2)
    fit = auto(target)
    fit.save(tmp_path / "fit.safetensors")
    again = bs.Fit.load(tmp_path / "fit.safetensors", target)
    assert (again.notes, again.verdict, again.trust) == (fit.notes, fit.verdict, fit.trust)
    assert again.trust is Trust.IMPROPER
    assert again.counts == fit.counts
    assert bs.Fit.load(tmp_path / "fit.safetensors").verdict == fit.verdict, "it needs no target for that"


def test_many_are_the_same_as_one_by_one() -> None:
    targets = [Gaussian.random(2, seed=0), Banana()]
    together = bs.fit_many(targets, seeds=[3, 4], progress=False)
    alone = [auto(target, seed=seed) for target, seed in zip(targets, (3, 4), strict=True)]
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.family.flat(), other.family.flat())


def test_a_method_without_a_family_begins_where_a_search_ended() -> None:
    target = Gaussian.random(3)
    fit = bs.fit(target, method=bs.methods.BaM(), steps=5, progress=False)
    assert type(fit.family) is bs.families.FullGaussian
    assert fit.score_calls == fit.counts.search_calls + 10
    assert "found a mode" in fit.notes[0]
    noisy = bs.fit(NoisyScore(target, 0.1), method=bs.methods.BaM(), steps=5, progress=False)
    assert (noisy.counts.search_calls, noisy.notes) == (0, ())


def test_a_start_that_was_found_serves_any_method_and_is_counted() -> None:
    target = schools(centred=False)
    start = bs.find_start(target, bs.families.DiagonalGaussian.init(10))
    fits = [
        bs.fit(target, start, method, steps=20, progress=False)
        for method in (bs.methods.WhitenedDescent(), bs.methods.ADVI())
    ]
    for fit in fits:
        assert fit.counts.search_calls == start.counts.score_calls
        assert fit.score_calls == start.counts.score_calls + 20
        assert fit.history["score_calls"][0] == start.counts.score_calls
        assert fit.history["elbo"][0] == pytest.approx(float(bs.metrics.ELBO()(start.family, target)))
    with pytest.raises(TypeError, match="a search climbs an exact density towards a Gaussian start"):
        bs.find_start(NoisyScore(target, 1.0))
    with pytest.raises(TypeError, match="finds a start by itself"):
        bs.fit(target, start)


@pytest.mark.parametrize("options", [{}, {"method": "bam"}], ids=["auto", "named"])
def test_a_fit_enters_every_function_of_the_search_once(options: dict) -> None:
    """So that the way of a fit through the files can be read from top to bottom."""
    entered: Counter[str] = Counter()

    def count(frame, event: str, argument: object) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        if event == "call" and path.parent.name == "initial" and name in SEARCH:
            entered[name] += 1

    target = Banana()
    sys.setprofile(count)
    try:
        auto(target, steps=5, **options)
    finally:
        sys.setprofile(None)
    assert entered == dict.fromkeys(SEARCH, 1)


# -- the climbs ----------------------------------------------------------------------------------


def test_newton_finds_the_curvature_of_a_quadratic_in_one_step() -> None:
    target = Gaussian.random(6, seed=3)
    iterates = newton(CountedDensity(target), torch.zeros(2, 6, dtype=torch.float64))
    assert iterates[-1].at_mode.any()
    assert len(iterates) == 2
    i = int(iterates[-1].at_mode.nonzero()[0])
    torch.testing.assert_close(iterates[-1].x[i], target.mean)
    covariance = iterates[-1].factor[i] @ iterates[-1].factor[i].mT
    torch.testing.assert_close(covariance, target.covariance, rtol=1e-5, atol=1e-6)


def test_newton_leaves_a_saddle() -> None:
    double = LogDensity(lambda x: x[:, 0].square() - 0.5 * x[:, 0].pow(4) - x[:, 1].square(), 2)
    last = newton(CountedDensity(double), torch.tensor([[1e-3, 0.5]], dtype=torch.float64))[-1]
    assert last.at_mode.all()
    torch.testing.assert_close(last.x, torch.tensor([[1.0, 0.0]], dtype=torch.float64), atol=0.05, rtol=0)


def test_quasi_newton_climbs_a_curved_valley() -> None:
    def rosenbrock(x: Tensor) -> Tensor:
        return -(100 * (x[:, 1:] - x[:, :-1].square()).square() + (1 - x[:, :-1]).square()).sum(-1)

    density = CountedDensity(LogDensity(rosenbrock, 4))
    x = torch.tensor([[-1.2, 1.0, -1.2, 1.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    first, last = lbfgs(density, x, torch.Generator().manual_seed(0), iterations=300)
    assert torch.equal(first.x, x)
    assert float(last.value.max()) > -0.01
    assert density.score_calls < 1000

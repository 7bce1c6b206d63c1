"""Many fits as one batch: each is bitwise the fit it would be alone, whatever happens to its neighbours."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.inference.result import Outcome
from bayescore.targets import Banana, Gaussian, GaussianMixture, LogDensity, NoisyScore
from cases import BATCHABLE, RUNS, family, normal, same_run

OPTIONS = {"steps": 10, "record_every": 5}
TARGETS = [Gaussian.random(3, seed=s) for s in range(4)]


@pytest.mark.parametrize("name", RUNS)
def test_a_fit_does_not_depend_on_which_others_share_its_batch(name: str) -> None:
    method, kind = RUNS[name]
    starts = [family(kind, seed=s) for s in range(4)]

    def run(members: list[int]) -> list[bs.Fit]:
        picked = [[things[i] for i in members] for things in (TARGETS, starts)]
        return bs.fit_many(*picked, method, seeds=[10 + i for i in members], **OPTIONS)

    together, other, alone = run([0, 1, 2, 3]), run([3, 1]), run([1])
    tolerance = 1e-9 if kind in ("planar", "coupling") else 0.0
    for fit in (other[1], alone[0]):
        same_run(fit, together[1], tolerance)
    same_run(other[0], together[3], tolerance)


@pytest.mark.parametrize(
    "name", ["whitened full", "descent full", "descent mixture", "bam full", "gsm", "advi full"]
)
@pytest.mark.parametrize(
    "target",
    [
        Gaussian.random(3),
        GaussianMixture.random(3),
        Banana(3),
        LogDensity(lambda x: -0.25 * x.pow(4).sum(-1), 3),
        NoisyScore(Gaussian.random(3), 0.5),
    ],
    ids=lambda t: type(t).__name__,
)
def test_one_target_serves_many_seeds_as_it_serves_one(name: str, target) -> None:
    method, kind = RUNS[name]
    together = bs.fit_many(target, family(kind), method, seeds=[5, 6, 7], **OPTIONS)
    same_run(together[2], bs.fit(target, family(kind), method, seed=7, **OPTIONS))


@pytest.mark.parametrize("kind", [Gaussian, GaussianMixture])
@pytest.mark.parametrize("dim", [1, 2, 3, 10])
def test_a_target_alone_answers_as_in_a_stack(kind, dim: int) -> None:
    """Processors that round a matrix product otherwise in a batch than alone must not show in a fit."""
    one, other = kind.random(dim, seed=0), kind.random(dim, seed=1)
    stacked, x = kind.stack([one, other]), normal(2, 4, dim)
    assert torch.equal(stacked.score(x)[:1], one.score(x[:1]))
    assert torch.equal(stacked.log_prob(x)[:1], one.log_prob(x[:1]))
    assert torch.equal(kind.stack([one, one]).score(x), one.score(x))


@pytest.mark.parametrize("size", [5, 8, 17, 40])
def test_large_batches_change_no_bit_either(size: int) -> None:
    """Vectorised arithmetic works in blocks of numbers; a fit's place among them must not matter."""
    method = bs.methods.WhitenedDescent(inner_steps=5)
    fits = bs.fit_many(TARGETS[0], family("full"), method, seeds=list(range(size)), **OPTIONS)
    for i in (0, size // 2, size - 1):
        same_run(fits[i], bs.fit(TARGETS[0], family("full"), method, seed=i, **OPTIONS))


@pytest.mark.parametrize("dim", [1, 2, 5, 10, 30])
@pytest.mark.parametrize("name", ["whitened full", "descent full", "bam full", "gsm"])
def test_no_dimension_changes_the_run(dim: int, name: str) -> None:
    method = RUNS[name][0]
    target, q = Gaussian.random(dim, seed=3), family("full", dim)
    fits = bs.fit_many(target, q, method, seeds=[0, 1, 2], **OPTIONS)
    same_run(fits[1], bs.fit(target, q, method, seed=1, **OPTIONS), 1e-9 if dim >= 30 else 0.0)


@pytest.mark.parametrize("kind", BATCHABLE)
def test_recorded_metrics_do_not_depend_on_the_batch(kind: str) -> None:
    q = family(kind)
    stacked = Gaussian.stack(TARGETS)
    metrics = {"kl": bs.metrics.ForwardKL(stacked, draws=200), "elbo": bs.metrics.ELBO(16)}
    together = bs.fit_many(
        TARGETS, q, bs.methods.ProximalDescent(inner_steps=1), seeds=[0, 1, 2, 3], metrics=metrics, **OPTIONS
    )
    metrics = {"kl": bs.metrics.ForwardKL(TARGETS[2], draws=200), "elbo": bs.metrics.ELBO(16)}
    alone = bs.fit(
        TARGETS[2], q, bs.methods.ProximalDescent(inner_steps=1), seed=2, metrics=metrics, **OPTIONS
    )
    same_run(together[2], alone, 1e-9 if "planar" in kind or kind == "coupling" else 0.0)


@pytest.mark.parametrize(
    "targets",
    [
        [Gaussian.random(3), GaussianMixture.random(3)],
        [Gaussian.random(3), Banana(3)],
        [Banana(3), Gaussian.random(3)],
        [GaussianMixture.random(3, 2), GaussianMixture.random(3, 3)],
        [NoisyScore(Gaussian.random(3), 0.1), NoisyScore(Gaussian.random(3), 0.2)],
        [Gaussian.random(3), NoisyScore(Gaussian.random(3), 0.2)],
        [NoisyScore(Gaussian.random(3), 0.2), Gaussian.random(3)],
    ],
    ids=["kinds", "first known", "last known", "orders", "betas", "noisy last", "noisy first"],
)
def test_targets_that_make_no_batch_are_fitted_one_after_the_other(targets: list) -> None:
    fits = bs.fit_many(targets, family("full"), bs.methods.GSM(), seeds=[0, 1], **OPTIONS)
    for seed, (fit, target) in enumerate(zip(fits, targets, strict=True)):
        same_run(fit, bs.fit(target, family("full"), bs.methods.GSM(), seed=seed, **OPTIONS))


@pytest.mark.parametrize(
    "families",
    [
        [family("full"), family("diagonal")],
        [family("full"), family("precision")],
        [family("mixture", components=2), family("mixture", components=3)],
        [family("low-rank", rank=1), family("low-rank", rank=2)],
        [family("realnvp", seed=1), family("realnvp", seed=2)],
    ],
    ids=["kinds", "forms", "orders", "ranks", "flows"],
)
def test_families_that_make_no_batch_are_fitted_one_after_the_other(families: list) -> None:
    method = bs.methods.ProximalDescent(inner_steps=1)
    fits = bs.fit_many(TARGETS[0], families, method, seeds=[0, 1], **OPTIONS)
    for seed, (fit, q) in enumerate(zip(fits, families, strict=True)):
        same_run(fit, bs.fit(TARGETS[0], q, method, seed=seed, **OPTIONS))


def test_every_fit_knows_its_own_target_and_seed() -> None:
    fits = bs.fit_many(TARGETS, family("full"), bs.methods.GSM(), seeds=[4, 5, 6, 7], **OPTIONS)
    assert [fit.seed for fit in fits] == [4, 5, 6, 7]
    assert all(fit.target is target for fit, target in zip(fits, TARGETS, strict=True))
    assert all(fit.family.batch_shape == () for fit in fits)


def test_the_start_is_not_changed_by_a_fit() -> None:
    q = family("full")
    before = q.flat().clone()
    bs.fit(TARGETS[0], q, **OPTIONS)
    assert torch.equal(q.flat(), before)


def test_runs_do_not_touch_the_global_generator() -> None:
    before = torch.random.get_rng_state()
    bs.fit(NoisyScore(TARGETS[0], 0.1), family("mixture"), bs.methods.ADVI(), **OPTIONS)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_member_that_ends_early_leaves_the_others_alone() -> None:
    method = bs.methods.BaM()
    whole = bs.fit_many(TARGETS, family("full"), method, seeds=[0, 1, 2, 3], **OPTIONS)
    early = bs.fit_many(
        TARGETS,
        family("full"),
        method,
        seeds=[0, 1, 2, 3],
        callbacks=[lambda fit: fit.seed == 1 and fit.state.step >= 5],
        **OPTIONS,
    )
    assert early[1].outcome is Outcome.STOPPED
    assert early[1].state.step == 5
    assert early[1].score_calls == whole[1].score_calls // 2
    assert len(early[1].history) == 2
    for i in (0, 2, 3):
        same_run(early[i], whole[i])

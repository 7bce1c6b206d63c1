"""Many fits as one batch: each is bitwise the fit it would be alone, whatever happens to its neighbours."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.result import Outcome
from bayescore.targets import Banana, Gaussian, GaussianMixture, LogDensity, NoisyScore, ScoreFunction
from cases import BATCHABLE, F64, RUNS, family, same_run

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
    for fit in (other[1], alone[0]):
        same_run(fit, together[1])
    same_run(other[0], together[3])


@pytest.mark.parametrize("name", ["proximal full", "proximal mixture", "bam full", "gsm", "advi full"])
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


@pytest.mark.parametrize("size", [5, 8, 17, 40])
def test_large_batches_change_no_bit_either(size: int) -> None:
    """Vectorised arithmetic works in blocks of four or eight numbers; a fit's place among them must not matter."""
    method = bs.methods.ProximalScore(inner_steps=5)
    fits = bs.fit_many(TARGETS[0], family("full"), method, seeds=list(range(size)), **OPTIONS)
    for i in (0, size // 2, size - 1):
        same_run(fits[i], bs.fit(TARGETS[0], family("full"), method, seed=i, **OPTIONS))


@pytest.mark.parametrize("dim", [1, 2, 5, 10, 30])
@pytest.mark.parametrize("name", ["proximal full", "bam full", "gsm"])
def test_no_dimension_changes_a_bit_either(dim: int, name: str) -> None:
    method = RUNS[name][0]
    target, q = Gaussian.random(dim, seed=3), family("full", dim)
    fits = bs.fit_many(target, q, method, seeds=[0, 1, 2], **OPTIONS)
    same_run(fits[1], bs.fit(target, q, method, seed=1, **OPTIONS))


@pytest.mark.parametrize("kind", BATCHABLE)
def test_recorded_metrics_do_not_depend_on_the_batch(kind: str) -> None:
    q = family(kind)
    stacked = Gaussian.stack(TARGETS)
    metrics = {"kl": bs.metrics.ForwardKL(stacked, draws=200), "elbo": bs.metrics.ELBO(16)}
    together = bs.fit_many(
        TARGETS, q, bs.methods.ProximalScore(inner_steps=1), seeds=[0, 1, 2, 3], metrics=metrics, **OPTIONS
    )
    metrics = {"kl": bs.metrics.ForwardKL(TARGETS[2], draws=200), "elbo": bs.metrics.ELBO(16)}
    alone = bs.fit(TARGETS[2], q, bs.methods.ProximalScore(inner_steps=1), seed=2, metrics=metrics, **OPTIONS)
    same_run(together[2], alone)


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
    method = bs.methods.ProximalScore(inner_steps=1)
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


# -- non-finite scores ------------------------------------------------------------------------------------


def failing(size: int, member: int | None, when, value: float = float("nan"), dim: int = 3) -> ScoreFunction:
    """Standard normal scores for a batch of fits; those of one member fail at the calls that `when` says."""
    calls = []

    def score(x):
        calls.append(len(x))
        rows = -x.reshape(size, -1, dim)
        if member is not None and when(len(calls)):
            rows = rows.index_fill(0, torch.tensor([member]), value)
        return rows.reshape(-1, dim)

    return ScoreFunction(score, dim)


BAD = [
    "proximal full",
    "proximal exact",
    "proximal clip",
    "advi full",
    "gsm",
    "bam full",
    "bam diagonal",
    "bam low-rank",
]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_skips_the_step_of_its_fit_alone(name: str, value: float) -> None:
    method, kind = RUNS[name]
    options = {**OPTIONS, "check": False}
    clean = bs.fit_many(failing(3, None, None), family(kind), method, seeds=[0, 1, 2], **options)
    mixed = bs.fit_many(
        failing(3, 1, lambda k: k in (4, 5), value), family(kind), method, seeds=[0, 1, 2], **options
    )
    assert [fit.counts.skipped_steps for fit in mixed] == [0, 2, 0]
    assert mixed[1].family.flat().isfinite().all()
    assert not torch.equal(mixed[1].family.flat(), clean[1].family.flat())
    assert mixed[1].state.step == 10
    for i in (0, 2):
        same_run(mixed[i], clean[i])


@pytest.mark.parametrize("name", BAD)
def test_a_skipped_step_keeps_the_family_and_counts_the_call(name: str) -> None:
    method, kind = RUNS[name]
    fit = bs.fit(failing(1, 0, lambda k: True), family(kind), method, steps=4, record_every=1, check=False)
    start = type(family(kind)).stack([family(kind)]).in_form(method.form)[0]
    assert torch.equal(fit.family.flat(), start.flat())
    assert fit.counts.skipped_steps == 4
    assert fit.score_calls == 4 * (fit.score_calls // 4)


def test_a_fit_stops_after_fifty_skipped_steps_in_a_row_and_says_when_it_began() -> None:
    seen = failing(2, 0, lambda k: k > 20)
    fits = bs.fit_many(seen, family("full"), bs.methods.GSM(), steps=200, seeds=[0, 1], check=False)
    assert fits[0].outcome is Outcome.DIVERGED
    assert fits[0].status == "diverged at step 20: no finite score in the 50 steps since"
    assert fits[0].state.step == 70
    assert fits[0].score_calls == 140
    assert fits[0].counts.skipped_steps == 50
    assert fits[1].state.step == 200
    assert fits[1].counts.skipped_steps == 0


def test_one_finite_score_starts_the_count_again() -> None:
    fit = bs.fit(
        failing(1, 0, lambda k: k % 40 != 0), family("full"), bs.methods.GSM(), steps=200, check=False
    )
    assert fit.outcome is not Outcome.DIVERGED
    assert fit.counts.skipped_steps == 195


def test_the_count_of_skipped_steps_survives_a_resume(tmp_path) -> None:
    """Stopped in the middle of the fifty, a run ends where the uninterrupted one does."""
    options = {"record_every": 10, "check": False}
    whole = bs.fit(
        failing(1, 0, lambda k: k > 20),
        family("full"),
        bs.methods.GSM(),
        steps=200,
        record_every=10,
        check=False,
    )
    target = failing(1, 0, lambda k: k > 20)
    part = bs.fit(
        target,
        family("full"),
        bs.methods.GSM(),
        steps=200,
        callbacks=[lambda fit: fit.state.step >= 50],
        **options,
    )
    part.save(tmp_path / "fit")
    rest = bs.resume(bs.Fit.load(tmp_path / "fit", target), record_every=10)
    assert rest.status == whole.status
    assert rest.state.step == whole.state.step == 70


def test_a_record_of_skipped_steps_alone_has_no_loss() -> None:
    """A loss of zero would look like a perfect fit."""
    fit = bs.fit(
        failing(1, 0, lambda k: 5 < k <= 10),
        family("full"),
        bs.methods.GSM(),
        steps=15,
        record_every=5,
        check=False,
    )
    loss = fit.history["loss"]
    assert loss[1] > 0
    assert loss[2].isnan()
    assert loss[3] > 0


def test_skipped_steps_do_not_enter_the_recorded_loss() -> None:
    kept = bs.fit(
        failing(1, 0, lambda k: k == 2),
        family("full"),
        bs.methods.GSM(),
        steps=1,
        record_every=1,
        check=False,
    )
    both = bs.fit(
        failing(1, 0, lambda k: k == 2),
        family("full"),
        bs.methods.GSM(),
        steps=2,
        record_every=2,
        check=False,
    )
    assert both.history["loss"][-1] == kept.history["loss"][-1]


@pytest.mark.parametrize(
    "name",
    [
        "bam full",
        "bam low-rank",
        "bam diagonal",
        "gsm",
        "proximal full",
        "proximal low-rank",
        "advi low-rank",
    ],
)
@pytest.mark.parametrize("size", [1e120, 1e200])
def test_one_member_that_blows_up_does_not_disturb_the_others(name: str, size: float) -> None:
    """Finite but enormous scores overflow inside a step; the fit may diverge, its neighbours may not notice."""
    method, kind = RUNS[name]
    options = {**OPTIONS, "check": False}
    clean = bs.fit_many(failing(3, None, None), family(kind), method, seeds=[0, 1, 2], **options)
    mixed = bs.fit_many(
        failing(3, 1, lambda k: k >= 2, size), family(kind), method, seeds=[0, 1, 2], **options
    )
    for i in (0, 2):
        same_run(mixed[i], clean[i])


@pytest.mark.parametrize("kind", ["full", "low-rank", "diagonal", "mixture", "planar"])
@pytest.mark.parametrize("metric", ["elbo", "forward"])
def test_a_fit_that_diverges_ends_with_a_status_and_not_an_error(kind: str, metric: str) -> None:
    wild = bs.methods.ProximalScore(optimizer="sgd", learning_rate=1e3, decay="constant")
    metrics = (
        {"elbo": bs.metrics.ELBO()} if metric == "elbo" else {"kl": bs.metrics.ForwardKL(TARGETS[0], 100)}
    )
    fit = bs.fit(TARGETS[0], family(kind), wild, steps=100, metrics=metrics)
    assert fit.outcome is Outcome.DIVERGED
    assert "diverged at step" in fit.status
    assert isinstance(fit.summary(), str)


def test_the_elbo_and_khat_of_a_diverged_fit_are_not_numbers_to_trust() -> None:
    wild = bs.methods.ProximalScore(optimizer="sgd", learning_rate=1e3, decay="constant")
    fit = bs.fit(TARGETS[0], family("full"), wild, steps=100)
    assert fit.khat is None or not fit.khat.value < 0.7
    assert fit.elbo is None or not torch.tensor(fit.elbo.value, dtype=F64).isfinite() or fit.elbo.value < -100

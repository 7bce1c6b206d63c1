"""Scores that are not finite, and fits that blow up: skipped, counted, and of no effect on the others."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs
from bayescore.inference.result import Outcome
from bayescore.targets import Gaussian, ScoreFunction
from cases import F64, RUNS, family, same_run

OPTIONS = {"steps": 10, "record_every": 5}
TARGETS = [Gaussian.random(3)]


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
    "whitened full",
    "descent full",
    "ridge",
    "descent clip",
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
        "whitened full",
        "descent full",
        "descent low-rank",
        "advi low-rank",
    ],
)
@pytest.mark.parametrize("size", [1e120, 1e200])
def test_one_member_that_blows_up_does_not_disturb_the_others(name: str, size: float) -> None:
    """Finite but enormous scores overflow inside a step: the fit may diverge, its neighbours not notice."""
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
    wild = bs.methods.ProximalDescent(optimizer="sgd", lr=1e3, schedule="constant")
    metrics = (
        {"elbo": bs.metrics.ELBO()} if metric == "elbo" else {"kl": bs.metrics.ForwardKL(TARGETS[0], 100)}
    )
    fit = bs.fit(TARGETS[0], family(kind), wild, steps=100, metrics=metrics)
    assert fit.outcome is Outcome.DIVERGED
    assert "diverged at step" in fit.status
    assert isinstance(fit.summary(), str)


def test_the_elbo_and_khat_of_a_diverged_fit_are_not_numbers_to_trust() -> None:
    wild = bs.methods.ProximalDescent(optimizer="sgd", lr=1e3, schedule="constant")
    fit = bs.fit(TARGETS[0], family("full"), wild, steps=100)
    assert fit.khat is None or not fit.khat.value < 0.7
    assert fit.elbo is None or not torch.tensor(fit.elbo.value, dtype=F64).isfinite() or fit.elbo.value < -100

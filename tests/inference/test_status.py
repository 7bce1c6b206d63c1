"""How a run ends, in words; what it recorded; and what may end it early."""

from __future__ import annotations

import math

import pytest
import torch

import bayescore as bs
from bayescore.inference.history import History
from bayescore.inference.result import Outcome
from bayescore.inference.stopping import final_status
from bayescore.targets import Gaussian
from cases import family

TARGET = Gaussian.random(3, seed=8)


def test_a_run_to_its_end_on_an_easy_target_has_converged() -> None:
    fit = bs.fit(TARGET, family("full"), bs.methods.BaM(), steps=200)
    assert fit.outcome is Outcome.CONVERGED
    assert fit.status.startswith("converged: the ELBO moved by")
    assert "200 steps" in fit.status


def test_a_run_that_was_too_short_says_that_its_budget_is_used() -> None:
    fit = bs.fit(
        TARGET, bs.families.FullGaussian.init(3, mean=torch.full((3,), 30.0)), bs.methods.ADVI(), steps=100
    )
    assert fit.outcome is Outcome.BUDGET
    assert "step budget of 100 used; the ELBO still moved" in fit.status


def test_a_run_of_few_records_is_not_judged() -> None:
    fit = bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=3)
    assert fit.outcome is Outcome.BUDGET
    assert "too few records to judge" in fit.status


def test_a_run_that_ends_below_its_start_got_worse() -> None:
    values = [float(-i) for i in range(40)]
    outcome, text = final_status(History({"elbo": values}), 100)
    assert outcome is Outcome.WORSE
    assert "the ELBO fell from 0 to -39" in text
    assert "smaller step" in text


@pytest.mark.parametrize(
    ("losses", "converged"),
    [
        ([math.exp(-0.3 * i) for i in range(40)], False),
        ([1.0 + 0.01 * (i % 3) for i in range(40)], True),
        ([math.exp(-0.5 * i) + 1.0 for i in range(40)], True),
    ],
    ids=["falling", "level", "levelled off"],
)
def test_without_a_density_the_loss_is_judged(losses: list[float], converged: bool) -> None:
    outcome, text = final_status(History({"loss": losses}), 100)
    assert (outcome is Outcome.CONVERGED) == converged
    assert "loss" in text


@pytest.mark.parametrize("rise", [lambda i: float(i**4), lambda i: math.exp(0.5 * i)])
def test_a_loss_that_rises_is_not_called_converged(rise) -> None:
    outcome, text = final_status(History({"loss": [rise(i) for i in range(40)]}), 100)
    assert outcome is not Outcome.CONVERGED, text


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_an_elbo_that_is_no_longer_finite_is_not_called_converged_or_unrecorded(bad: float) -> None:
    """Forty records are not too few: the reader must learn that they are not finite."""
    outcome, text = final_status(History({"elbo": [0.0] * 5 + [bad] * 35}), 100)
    assert outcome is not Outcome.CONVERGED
    assert "too few records" not in text
    outcome, _ = final_status(History({"elbo": [0.0] * 20 + [bad] * 20}), 100)
    assert outcome is not Outcome.CONVERGED


def test_a_fit_on_its_way_says_so() -> None:
    seen = []
    bs.fit(
        TARGET,
        family("full"),
        bs.methods.GSM(),
        steps=6,
        record_every=2,
        callbacks=[lambda f: seen.append((f.outcome, f.status))],
    )
    running = Outcome.RUNNING
    assert seen[:2] == [(running, "running, at step 2 of 6"), (running, "running, at step 4 of 6")]
    assert seen[2][0] is Outcome.BUDGET


# -- callbacks --------------------------------------------------------------------------------------------


def test_callbacks_see_every_record_of_every_fit_after_the_start() -> None:
    seen = []
    bs.fit_many(
        TARGET,
        family("full"),
        bs.methods.GSM(),
        steps=7,
        record_every=3,
        seeds=[4, 5],
        callbacks=[lambda fit: seen.append((fit.seed, fit.state.step, len(fit.history), fit.score_calls))],
    )
    assert seen == [(4, 3, 2, 6), (5, 3, 2, 6), (4, 6, 3, 12), (5, 6, 3, 12), (4, 7, 4, 14), (5, 7, 4, 14)]


def test_a_true_answer_ends_the_run_and_a_false_one_does_not() -> None:
    fit = bs.fit(
        TARGET,
        family("full"),
        bs.methods.GSM(),
        steps=9,
        record_every=3,
        callbacks=[lambda fit: fit.state.step == 6],
    )
    assert fit.outcome is Outcome.STOPPED
    assert fit.status == "stopped by a callback at step 6"
    assert fit.state.step == 6
    assert fit.score_calls == 12
    assert fit.history["step"].tolist() == [0, 3, 6]


def test_every_callback_is_called_even_if_an_earlier_one_ends_the_run() -> None:
    calls = []
    bs.fit(
        TARGET,
        family("full"),
        bs.methods.GSM(),
        steps=3,
        record_every=3,
        callbacks=[lambda _: True, lambda _: calls.append(1)],
    )
    assert calls == [1]


def test_a_callback_may_ask_for_the_diagnosis() -> None:
    values = []
    bs.fit(
        TARGET,
        family("full"),
        bs.methods.BaM(),
        steps=30,
        record_every=10,
        callbacks=[lambda fit: values.append(fit.elbo.value)],
    )
    assert values[-1] > values[0] - 0.5


# -- early stopping ---------------------------------------------------------------------------------------


def test_a_plateau_ends_the_run_and_is_named() -> None:
    stop = bs.Plateau("elbo", tolerance=0.01, patience=5)
    fit = bs.fit(TARGET, family("full"), bs.methods.BaM(), steps=1000, record_every=5, stop=stop)
    assert fit.outcome is Outcome.CONVERGED
    assert fit.state.step < 500
    assert fit.status == f"converged at step {fit.state.step}: elbo has not improved by 0.01 over 5 records"


@pytest.mark.parametrize(
    ("metric", "values", "reached"),
    [
        ("elbo", [-5.0, -4.0, -3.0, -2.0, -1.0], False),
        ("elbo", [-5.0, -1.0, -1.0, -1.0, -1.0], True),
        ("elbo", [-1.0, -2.0, -3.0, -4.0, -5.0], True),
        ("kl", [5.0, 4.0, 3.0, 2.0, 1.0], False),
        ("kl", [1.0, 2.0, 3.0, 4.0, 5.0], True),
        ("kl", [1.0, 1.0, 1.0], False),
        ("kl", [1.0, float("nan"), 1.0, 1.0, 1.0], True),
    ],
)
def test_a_plateau_is_no_improvement_over_its_patience(
    metric: str, values: list[float], reached: bool
) -> None:
    found = bs.Plateau(metric, tolerance=0.1, patience=3).reached(History({metric: values}))
    assert (found is not None) == reached


def test_a_plateau_ends_each_fit_of_a_batch_in_its_own_time() -> None:
    starts = [bs.families.FullGaussian.init(3), bs.families.FullGaussian.init(3, mean=torch.full((3,), 5.0))]
    method, stop = bs.methods.BaM(regularisation="constant"), bs.Plateau(patience=4)
    fits = bs.fit_many(TARGET, starts, method, steps=500, record_every=5, seeds=[0, 1], stop=stop)
    assert fits[0].state.step < fits[1].state.step < 500
    assert all(fit.outcome is Outcome.CONVERGED for fit in fits)


def test_a_plateau_of_what_is_not_recorded_is_refused_with_what_is() -> None:
    with pytest.raises(ValueError, match=r"Plateau watches 'kl', which is not recorded; there is .*loss"):
        bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=5, stop=bs.Plateau("kl"))


def test_impossible_plateaus_are_refused() -> None:
    with pytest.raises(ValueError, match="patience must be at least 1; got 0"):
        bs.Plateau(patience=0)
    with pytest.raises(ValueError, match="tolerance must not be negative; got -1"):
        bs.Plateau(tolerance=-1.0)


# -- history ----------------------------------------------------------------------------------------------


def test_a_history_holds_about_fifty_records_by_default_with_the_first_and_last_step() -> None:
    fit = bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=503)
    steps = fit.history["step"]
    assert 50 <= len(fit.history) <= 55
    assert steps[0] == 0
    assert steps[-1] == 503
    assert (fit.history["seconds"].diff() >= 0).all()
    assert fit.seconds >= fit.history["seconds"][-1]


def test_the_recorded_loss_is_the_mean_since_the_last_record() -> None:
    every = bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=6, record_every=1).history["loss"]
    third = bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=6, record_every=3).history["loss"]
    assert third[0].isnan()
    torch.testing.assert_close(
        third[1:], torch.stack([every[1:4].mean(), every[4:7].mean()]), rtol=1e-12, atol=0
    )


def test_metrics_are_recorded_by_their_names_instead_of_the_elbo() -> None:
    fit = bs.fit(
        TARGET,
        family("full"),
        bs.methods.GSM(),
        steps=4,
        record_every=2,
        metrics={"first": lambda q, t: q.mean[:, 0]},
    )
    assert "elbo" not in fit.history
    assert fit.history["first"][-1] == fit.family.mean[0]
    assert bs.fit(TARGET, family("full"), bs.methods.GSM(), steps=2, metrics={}).history.columns.keys() >= {
        "loss",
        "step",
    }


def test_a_history_is_columns_and_rows() -> None:
    history = History()
    history.add(step=1, loss=2.0)
    history.add(step=2, loss=1.0)
    assert len(history) == 2
    assert list(history) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]
    assert history["loss"].tolist() == [2.0, 1.0]
    assert "loss" in history
    assert history.to_dict() == {"step": [1, 2], "loss": [2.0, 1.0]}
    assert "2 rows; last: step=2, loss=1" in repr(history)
    assert repr(History()) == "History(empty)"
    copy = history.copy()
    copy.add(step=3, loss=0.0)
    assert len(history) == 2
    assert history != copy


def test_a_history_with_a_missing_number_equals_itself_read_again() -> None:
    a = History({"loss": [float("nan"), 1.0]})
    b = History({"loss": [float("nan"), 1.0]})
    assert a == b


def test_a_history_names_what_it_has() -> None:
    history = History({"step": [1.0]})
    with pytest.raises(KeyError, match="nothing called 'elbo' was recorded; there is step"):
        history["elbo"]
    with pytest.raises(ValueError, match="this history has the columns step; got loss"):
        history.add(loss=1.0)

"""The time to a given ELBO: who stops when, what the clock sees, and who is chosen."""

from __future__ import annotations

import dataclasses
import math

import pytest

from bayescore_lab.bench import peers, same_elbo
from bayescore_lab.bench.entries import OURS, PEERS, Entry, RunResult, setting_text
from bayescore_lab.bench.problems import Problem, banana, gaussian
from bayescore_lab.bench.same_elbo import SEEDS, choose_setting, run_ours, same_elbo_part

BAM = next(entry for entry in OURS if entry.name == "BaM")


def quiet(text: str) -> None:
    pass


def test_a_run_of_ours_ends_at_the_goal():
    problem = gaussian(dim=3, condition=5.0, budget=200)
    result = run_ours(BAM, problem, {"batch": 10}, seed=0, limit=math.inf)
    assert result.seconds is not None
    assert result.gap <= problem.tolerance
    assert result.steps < 200
    assert result.score_calls == 10 * result.steps


def test_a_goal_out_of_reach_is_missed_at_the_end_of_the_budget():
    problem = dataclasses.replace(banana(budget=7), tolerance=-1.0)
    result = run_ours(BAM, problem, {"batch": 2}, seed=0, limit=math.inf)
    assert (result.seconds, result.steps) == (None, 7)
    assert result.gap > 0


def test_a_run_over_its_limit_is_given_up():
    problem = dataclasses.replace(banana(budget=50), tolerance=-1.0)
    assert run_ours(BAM, problem, {"batch": 2}, seed=0, limit=0.0).steps == 1


def test_the_clock_does_not_see_the_evaluation(monkeypatch):
    now = 0.0

    class Slow(Problem):
        def elbo(self, family):
            nonlocal now
            now += 100.0
            return super().elbo(family)

    monkeypatch.setattr(same_elbo.time, "perf_counter", lambda: now)
    problem = Slow(**{f.name: getattr(banana(), f.name) for f in dataclasses.fields(Problem)})
    result = run_ours(BAM, problem, {"batch": 10}, seed=0, limit=math.inf)
    assert result.seconds == 0.0


@pytest.mark.parametrize("entry", OURS, ids=lambda entry: entry.name)
def test_every_entry_of_ours_makes_a_method_from_each_of_its_settings(entry):
    for setting in entry.settings:
        assert entry.make(setting) == entry.make(setting)


def test_gradient_methods_of_all_libraries_choose_from_one_grid():
    grids = {entry.name: entry.settings for entry in (*OURS, *PEERS) if "learning_rate" in entry.settings[0]}
    assert {"WhitenedDescent", "ProximalDescent", "ADVI", "NumPyro SVI", "BlackJAX full-rank VI"} <= set(
        grids
    )
    assert len(set(map(id, grids.values()))) == 1


def result_after(seconds: float | None, gap: float = 0.0) -> RunResult:
    return RunResult(seconds, 1, 1, gap)


def test_the_setting_that_always_reaches_the_goal_beats_a_faster_one_that_does_not():
    answers = {1: [1.0, None], 2: [3.0, 3.0, 3.0], 3: [4.0, 4.0, 4.0]}
    limits = []

    def run(problem, setting, seed, limit):
        if seed not in SEEDS:
            return result_after(None)
        limits.append(limit)
        return result_after(answers[setting["batch"]][SEEDS.index(seed)])

    setting, trials = choose_setting(
        Entry("e", ({"batch": 1}, {"batch": 2}, {"batch": 3})), run, banana(), quiet
    )
    assert setting == {"batch": 2}
    assert [len(trial.results) for trial in trials] == [2, 3, 3]
    assert limits[-1] == 6.0


def test_without_any_at_the_goal_the_nearest_setting_is_chosen():
    def run(problem, setting, seed, limit):
        return result_after(None, gap=abs(setting["batch"] - 2))

    setting, _ = choose_setting(Entry("e", ({"batch": 1}, {"batch": 2}, {"batch": 3})), run, banana(), quiet)
    assert setting == {"batch": 2}


def test_a_missing_peer_has_a_row_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    part = same_elbo_part(1, quiet, [gaussian(dim=2, condition=2.0, budget=3)], settings=1)
    notes = {row.arm: row.note for row in part.rows if row.arm not in {entry.name for entry in OURS}}
    assert set(notes) == {entry.name for entry in PEERS}
    assert set(notes.values()) == {"not installed: pip install './lab[peers]'"}


def test_settings_are_put_in_words():
    assert setting_text({"learning_rate": 0.03, "draws": 1}) == "learning rate 0.03, 1 draw"
    assert setting_text({"iterations": 30, "history": 10, "paths": 4}) == "30 iterations, history 10, 4 paths"

"""A run that is stopped, saved, loaded and continued is bitwise the run that was never interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import bayescore as bs
from bayescore.inference.result import Outcome
from bayescore.targets import (
    Banana,
    Gaussian,
    LogDensity,
    MiniBatchPosterior,
    NoisyScore,
    ScoreFunction,
    Target,
)
from cases import F64, RUNS, family, normal, run_python, same_run

STEPS, EVERY = 12, 3


def stop_at(step: int):
    return lambda fit: fit.state.step >= step


def posterior() -> MiniBatchPosterior:
    x, y = normal(30, 3, seed=1), normal(30, seed=2)
    return MiniBatchPosterior(
        lambda theta, x, y: -0.5 * (y - theta @ x.T).square(),
        (x, y),
        lambda t: -0.5 * t.square().sum(-1),
        3,
        batch_size=4,
    )


def stopped_and_resumed(
    tmp_path: Path, target: Target, q, method, stops: tuple[int, ...], **options
) -> bs.Fit:
    """Run to each stop, through a file every time, and then to the end."""
    options = {"record_every": EVERY, **options}
    first = {"steps": STEPS, "seed": 3}
    fit = bs.fit(target, q, method, callbacks=[stop_at(stops[0])], **first, **options)
    for stop in (*stops[1:], 10**9):
        assert fit.outcome is Outcome.STOPPED
        path = tmp_path / "fit.safetensors"
        fit.save(path)
        fit = bs.resume(bs.Fit.load(path, target), callbacks=[stop_at(stop)], **options)
    return fit


@pytest.mark.parametrize("name", RUNS)
def test_every_method_continues_bitwise_from_its_file(name: str, tmp_path: Path) -> None:
    method, kind = RUNS[name]
    target, q = Gaussian.random(3, seed=8), family(kind)
    whole = bs.fit(target, q, method, steps=STEPS, seed=3, record_every=EVERY)
    same_run(stopped_and_resumed(tmp_path, target, q, method, (3, 9)), whole)


@pytest.mark.parametrize(
    "name", ["whitened full", "descent full", "ridge", "advi full", "gsm", "bam diagonal"]
)
@pytest.mark.parametrize(
    "target",
    [
        NoisyScore(Gaussian.random(3, seed=8), 0.5),
        posterior(),
        LogDensity(lambda x: -0.5 * x.square().sum(-1), 3),
        ScoreFunction(lambda x: -x, 3),
    ],
    ids=["noisy", "minibatch", "density", "scores"],
)
def test_every_kind_of_target_continues_bitwise(name: str, target: Target, tmp_path: Path) -> None:
    method, kind = RUNS[name]
    q = family(kind)
    whole = bs.fit(target, q, method, steps=STEPS, seed=3, record_every=EVERY)
    same_run(stopped_and_resumed(tmp_path, target, q, method, (6,)), whole)


@pytest.mark.parametrize(
    "target", [NoisyScore(Banana(3), 0.2), NoisyScore(posterior(), 0.2)], ids=["banana", "minibatch"]
)
def test_noise_on_a_target_that_cannot_be_batched_continues_bitwise(target: Target, tmp_path: Path) -> None:
    method, q = bs.methods.GSM(), family("full")
    whole = bs.fit(target, q, method, steps=STEPS, seed=3, record_every=EVERY)
    same_run(stopped_and_resumed(tmp_path, target, q, method, (6,)), whole)


def test_the_default_record_is_kept_when_a_run_is_continued(tmp_path: Path) -> None:
    target, q, method = Gaussian.random(3, seed=8), family("full"), bs.methods.BaM()
    whole = bs.fit(target, q, method, steps=120, seed=3)
    part = bs.fit(target, q, method, steps=120, seed=3, callbacks=[stop_at(50)])
    same_run(bs.resume(part), whole)


def test_a_fit_handed_to_a_callback_can_be_saved_and_continued(tmp_path: Path) -> None:
    """A checkpoint from within the run, without stopping it."""
    target, q, method = Gaussian.random(3, seed=8), family("full"), bs.methods.WhitenedDescent(inner_steps=3)
    whole = bs.fit(
        target,
        q,
        method,
        steps=STEPS,
        seed=3,
        record_every=EVERY,
        callbacks=[lambda fit: fit.save(tmp_path / f"{fit.state.step}.fit")],
    )
    for step in (3, 6, 9):
        same_run(bs.resume(bs.Fit.load(tmp_path / f"{step}.fit", target), record_every=EVERY), whole)


def test_resuming_a_finished_fit_changes_nothing() -> None:
    target = Gaussian.random(3, seed=8)
    fit = bs.fit(target, family("full"), bs.methods.GSM(), steps=STEPS)
    same_run(bs.resume(fit), fit)


def test_a_member_of_a_batch_continues_as_if_it_had_run_alone() -> None:
    """In a process of its own: torch crashes on a generator state that is a view into another tensor.

    The last one ended early: its random stream stood still then, although its neighbours went on.
    """
    code = """
import bayescore as bs, torch
target, q = bs.targets.Gaussian.random(3, seed=8), bs.families.FullGaussian.init(3)
options = dict(steps=12, record_every=3, seeds=[0, 1, 2])
whole = bs.fit_many(target, q, bs.methods.GSM(), **options)
stop = lambda fit: fit.state.step >= (3 if fit.seed == 2 else 6)
parts = bs.fit_many(target, q, bs.methods.GSM(), callbacks=[stop], **options)
for part, fit in zip(parts, whole):
    again = bs.resume(part, record_every=3)
    print(part.state.step, torch.equal(again.family.flat(), fit.family.flat()))
"""
    assert run_python(code).split() == ["6", "True", "6", "True", "3", "True"]


def test_a_fit_without_its_target_is_not_resumed(tmp_path: Path) -> None:
    target = Gaussian.random(3)
    fit = bs.fit(target, family("full"), bs.methods.GSM(), steps=4, record_every=2, callbacks=[stop_at(2)])
    fit.save(tmp_path / "fit")
    with pytest.raises(ValueError, match=r"resumed with its target; load it with Fit.load\(path, target\)"):
        bs.resume(bs.Fit.load(tmp_path / "fit"))


# -- Ctrl-C -----------------------------------------------------------------------------------------------


class Interrupting(Target):
    """A Gaussian during whose k-th score somebody presses Ctrl-C."""

    name = "interrupting"

    def __init__(self, inner: Target, at: int) -> None:
        self.inner, self.at, self.calls, self.dim = inner, at, 0, inner.dim

    def log_prob(self, x):
        return self.inner.log_prob(x)

    def log_prob_and_score(self, x):
        return self.log_prob(x), self.score(x)

    def score(self, x, streams=None):
        self.calls += 1
        if self.calls == self.at:
            raise KeyboardInterrupt
        return self.inner.score(x, streams)


METHODS = [
    "whitened full",
    "descent full",
    "ridge",
    "advi full",
    "gsm",
    "bam full",
    "bam low-rank",
    "advi gumbel",
]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at", [1, 5, 9])
def test_ctrl_c_returns_the_fit_so_far_and_resume_continues_it_bitwise(name: str, at: int) -> None:
    method, kind = RUNS[name]
    options = {"record_every": EVERY, "check": False}
    q, inner = family(kind), Gaussian.random(3, seed=8)
    whole = bs.fit(Interrupting(inner, 0), q, method, steps=STEPS, seed=3, **options)
    cut = bs.fit(Interrupting(inner, at), q, method, steps=STEPS, seed=3, **options)
    assert cut.outcome is Outcome.INTERRUPTED
    assert cut.state.step == at - 1
    assert f"interrupted at step {at - 1} of {STEPS}" in cut.status
    assert cut.score_calls == whole.score_calls // STEPS * (at - 1), "what was not answered is not counted"
    same_run(bs.resume(cut, record_every=EVERY), whole)


@pytest.mark.parametrize("where", ["metric", "callback"])
def test_ctrl_c_during_a_record_loses_nothing(where: str) -> None:
    target, q, method = Gaussian.random(3, seed=8), family("full"), bs.methods.GSM()
    pressed = []

    def press(step: int) -> None:
        if step == 6 and not pressed:
            pressed.append(step)
            raise KeyboardInterrupt

    steps = iter(range(0, 100, EVERY))

    def metric(q, target):
        if where == "metric":
            press(next(steps))
        return torch.zeros(1, dtype=F64)

    def callback(fit: bs.Fit) -> None:
        if where == "callback":
            press(fit.state.step)

    options = {"record_every": EVERY, "metrics": {"zero": metric}, "callbacks": [callback]}
    cut = bs.fit(target, q, method, steps=STEPS, seed=3, **options)
    assert cut.outcome is Outcome.INTERRUPTED
    assert cut.state.step in (5, 6)
    whole = bs.fit(
        target,
        q,
        method,
        steps=STEPS,
        seed=3,
        record_every=EVERY,
        metrics={"zero": lambda q, t: torch.zeros(1, dtype=F64)},
    )
    same_run(bs.resume(cut, **options), whole)


def test_ctrl_c_ends_every_fit_of_a_sequence() -> None:
    """Fits that cannot run as one batch run one after the other; one key press is for all of them."""
    calls = []

    def score(x):
        calls.append(len(x))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return -x

    targets = [ScoreFunction(score, 3), ScoreFunction(score, 3)]
    fits = bs.fit_many(targets, family("full"), bs.methods.GSM(), steps=STEPS, seeds=[0, 1], check=False)
    assert all(fit.outcome is Outcome.INTERRUPTED for fit in fits)
    assert len(calls) <= 4


def test_other_errors_are_not_swallowed() -> None:
    def score(x):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        bs.fit(ScoreFunction(score, 3), family("full"), bs.methods.GSM(), steps=3, check=False)

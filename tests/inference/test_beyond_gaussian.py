"""Beyond one Gaussian: a flow where the diagnosis asks for it, kept if it is better, used like any family."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import CouplingFlow, FullGaussian
from bayescore.inference.result import Trust
from bayescore.targets import Banana, LogDensity


def auto(target: bs.targets.Target, *arguments: object, **options: object) -> bs.Fit:
    return bs.fit(target, *arguments, progress=False, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bent() -> bs.Fit:
    return auto(Banana())


def test_a_bent_ridge_gets_a_flow_that_can_be_used(bent: bs.Fit) -> None:
    assert isinstance(bent.family, CouplingFlow)
    assert bent.trust in (Trust.GOOD, Trust.USABLE)
    assert bent.elbo is not None
    assert bent.elbo.value > -0.15  # the banana is normalised: 0 is the best, and the best Gaussian has -0.37


def test_the_notes_have_both_elbos_and_the_calls_are_counted(bent: bs.Fit) -> None:
    (note,) = [note for note in bent.notes if "coupling flow" in note]
    assert "was kept" in note
    assert "ADVI: 19,200 score calls" in " ".join(bent.notes)
    assert bent.score_calls > 19_200
    assert bent.counts.density_evaluations > 4000 + 2 * 2000  # the diagnosis, and the held-out comparison


def test_a_fit_with_a_flow_is_saved_resampled_and_exported_like_any_other(
    bent: bs.Fit, tmp_path: Path
) -> None:
    bent.save(tmp_path / "fit.safetensors")
    again = bs.Fit.load(tmp_path / "fit.safetensors", bent.target)
    assert torch.equal(again.family.flat(), bent.family.flat())
    assert again.verdict == bent.verdict
    assert torch.equal(again.resample(100, seed=3), bent.resample(100, seed=3))
    assert "95% are off by" in bent.summary()
    pytest.importorskip("arviz")
    assert again.to_arviz(draws=50).posterior["theta"].shape == (1, 50, 2)


def test_the_flow_is_for_those_who_need_it_and_may_have_it() -> None:
    assert isinstance(auto(Banana(), effort="quick").family, FullGaussian)
    assert isinstance(auto(Banana(), FullGaussian.init(2)).family, FullGaussian)
    normal = auto(bs.targets.Gaussian.random(4, seed=1))
    assert isinstance(normal.family, FullGaussian)
    assert "flow" not in " ".join(normal.notes)


def test_a_gaussian_that_weights_could_correct_gets_a_flow_too() -> None:
    """The scale of one coordinate depends on the other, a little: its first coordinate is N(0, 1)."""

    def funnel(x: Tensor) -> Tensor:
        return -0.5 * x[:, 0] ** 2 - 0.5 * (x[:, 1] * (-0.4 * x[:, 0]).exp()) ** 2 - 0.4 * x[:, 0]

    assert auto(LogDensity(funnel, 2), effort="quick").trust is Trust.USABLE
    fit = auto(LogDensity(funnel, 2))
    assert isinstance(fit.family, CouplingFlow)
    assert fit.trust is Trust.GOOD
    x = fit.family.sample(20_000, seed=1)[:, 0]
    assert abs(float(x.mean())) < 0.1
    assert abs(math.log(float(x.std()))) < 0.1


def test_a_flow_that_is_no_better_is_dropped_and_the_gaussian_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of one draw gains nothing."""
    monkeypatch.setattr("bayescore.inference.auto.WARP", {"normal": (1, 1)})
    fit = auto(Banana())
    assert isinstance(fit.family, FullGaussian)
    assert "and was dropped" in " ".join(fit.notes)


def test_the_diagnosis_behind_the_decision_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayescore.inference.auto.WARP", {"normal": (1, 1)})
    asked = 0

    def log_prob(x: Tensor) -> Tensor:
        nonlocal asked
        asked += x[..., 0].numel()
        return Banana().log_prob(x)

    fit = auto(LogDensity(log_prob, 2))
    before = asked
    assert fit.khat is not None
    assert asked == before

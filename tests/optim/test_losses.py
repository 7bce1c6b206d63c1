"""The record of losses has a bounded memory, and its sentence says whether the mean has arrived."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayescore.optim import CalibratedScore, ProximalScore
from bayescore.optim.losses import LOSSES, MOST, is_recorded, mean_sentence, record_loss

Curve = Callable[[float], float]
CONSTANT: Curve = lambda u: 1.0  # noqa: E731
COSINE: Curve = lambda u: max(1e-3, 0.5 * (1 + math.cos(math.pi * u)))  # noqa: E731
STEPS: Curve = lambda u: 1.0 if u < 0.5 else 0.1 if u < 0.75 else 0.01  # noqa: E731
LINEAR: Curve = lambda u: min(10 * u, 1 - u) + 1e-6  # noqa: E731

SCHEDULES = {"constant": CONSTANT, "cosine": COSINE, "steps": STEPS, "linear": LINEAR}
CURVES: dict[str, Curve] = {
    "the mean has arrived": lambda u: 0.3 + 2 * math.exp(-40 * u),
    "the loss still f": lambda u: 0.3 + 2 * math.exp(-2 * u),
    "the loss is above its first value": lambda u: 2.3 + 2 * u,
    "the loss rises again": lambda u: 0.3 + 2 * math.exp(-20 * u) + max(0.0, 2 * (u - 0.3)),
    "the loss has hardly moved": lambda u: 2.3,
}


def recorded(loss: Curve, steps: int, spread: float = 0.0, lr: Curve = CONSTANT, seed: int = 0) -> Any:
    rng = random.Random(seed)
    group: dict[str, Any] = dict(LOSSES)
    for t in range(steps):
        group.update(step=t, lr=lr(t / steps))
        if is_recorded(group):
            record_loss([group], loss(t / steps) + spread * rng.gauss(0, 1))
    return group


def sentence(*args: Any, **options: Any) -> str:
    group = recorded(*args, **options)
    return mean_sentence(group["losses"], group["loss_lrs"])


@pytest.mark.parametrize(
    "lr", [CONSTANT, COSINE, STEPS, LINEAR], ids=["constant", "cosine", "steps", "linear"]
)
@pytest.mark.parametrize("spread", [0.0, 0.05])
@pytest.mark.parametrize("steps", [100, 500, 20_000])
@pytest.mark.parametrize("says", CURVES)
def test_the_sentence_says_how_the_loss_moved(says: str, steps: int, spread: float, lr: Curve) -> None:
    assert sentence(CURVES[says], steps, spread, lr).startswith(says)


@pytest.mark.parametrize("says", CURVES)
def test_noise_never_makes_the_sentence_the_opposite(says: str) -> None:
    opposite = {"the mean has arrived": "the loss still f", "the loss still f": "the mean has arrived"}
    found = [sentence(CURVES[says], 400, 0.3, seed=seed) for seed in range(100)]
    assert sum(text.startswith(opposite.get(says, "the mean has arrived")) for text in found) <= 3


def test_a_schedule_that_ends_does_not_make_a_falling_loss_arrive() -> None:
    falls: Curve = lambda u: 2.3 - sum(COSINE(i / 100) for i in range(int(100 * u))) / 100  # noqa: E731
    assert sentence(falls, 1000, 0.01, COSINE).endswith("when the schedule lowered lr: train longer")


def test_every_sentence_but_that_of_arrival_names_one_change() -> None:
    for says, curve in CURVES.items():
        text = sentence(curve, 500)
        assert (": " in text.removeprefix("the mean has arrived: ")) == (says != "the mean has arrived")


def test_memory_is_bounded_and_spans_the_run() -> None:
    group = recorded(lambda u: u, 100_000)
    assert MOST // 2 <= len(group["losses"]) < MOST
    assert group["losses"][0] == 0
    assert group["losses"][-1] > 0.98


def test_losses_that_are_not_finite_are_not_recorded() -> None:
    group = {**LOSSES, "lr": 0.1, "step": 0}
    record_loss([group], math.nan)
    record_loss([group], math.inf)
    assert group["losses"] == ()


def test_few_losses_say_to_train_longer_and_none_say_nothing() -> None:
    text = mean_sentence([1.0] * 15, [0.1] * 15)
    assert text == "too few updates to tell whether the loss falls (1, after 1 at first): train longer"
    assert mean_sentence([], []) == ""


def test_the_advice_for_a_loss_that_has_not_moved_depends_on_the_size_of_a_step() -> None:
    group = recorded(lambda u: 2.3, 200, 0.05)
    record = group["losses"], group["loss_lrs"]
    assert "raise lr" in mean_sentence(*record, 2.0)
    assert mean_sentence(*record, 0.5).endswith(
        "lower lr, a step of which is larger than the weights were at first"
    )


def test_a_large_step_is_named_once_the_loss_no_longer_falls() -> None:
    group = recorded(CURVES["the mean has arrived"], 500)
    record = group["losses"], group["loss_lrs"]
    assert mean_sentence(*record, 2.0).startswith("the mean has arrived")
    assert "lower lr" in mean_sentence(*record, 0.5)
    group = recorded(CURVES["the loss still f"], 500)
    assert mean_sentence(group["losses"], group["loss_lrs"], 0.5).startswith("the loss still falls")


def test_a_rise_by_the_noise_of_the_weights_is_none_of_the_mean() -> None:
    group = recorded(lambda u: 0.3 + 2 * math.exp(-40 * u) + 0.3 * u, 500)
    record = group["losses"], group["loss_lrs"]
    assert mean_sentence(*record).startswith("the loss rises again")
    assert mean_sentence(*record, noise=0.1).startswith("the mean has arrived")


def test_one_high_or_low_first_loss_does_not_decide() -> None:
    for steps, first in ((100, 2.0), (5000, 2.6)):
        group = recorded(lambda u, first=first: first if u == 0 else 2.3, steps, 0.2)  # type: ignore[misc]
        assert "above" not in mean_sentence(group["losses"], group["loss_lrs"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"losses": 3}, "losses must be fewer than 256"),
        ({"losses": ("x",)}, "losses must be fewer than 256"),
        ({"losses": (math.nan,)}, "losses must be fewer than 256"),
        ({"losses": (1.0,) * 600}, "losses must be fewer than 256"),
        ({"losses": (1.0,)}, "one length"),
        ({"loss_stride": 0}, "loss_stride must be at least 1"),
    ],
)
def test_a_damaged_record_is_refused(change: dict[str, Any], sentence: str) -> None:
    opt = ProximalScore(nn.Linear(2, 1).parameters(), 10)
    saved = opt.state_dict()
    saved["param_groups"][0].update(change)
    with pytest.raises(ValueError, match=sentence):
        opt.load_state_dict(saved)


@pytest.mark.parametrize("closure", [True, False])
def test_status_begins_with_the_mean(closure: bool) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    x = torch.randn(64, 3)
    y = (x[:, 0] > 0).long()
    opt = ProximalScore(model.parameters(), 64)

    def run() -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(40):
        if closure:
            opt.step(run)
        else:
            with opt.sample():
                run()
            opt.step()
        opt.zero_grad()
    assert opt.status.startswith("the loss still falls")
    assert "40 updates" in opt.status


def test_a_rate_that_is_far_too_high_is_named() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(256, 3)
    y = (x[:, 0] > 0).long()
    opt = CalibratedScore(model.parameters(), 256, lr=100.0, init_sd=0.01)
    for _ in range(60):
        with opt.sample():
            F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    assert opt.status.startswith("the loss is above its first value")
    assert "lower lr" in opt.mean_status

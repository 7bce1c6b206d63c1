"""`fit` compares num_data with its loader, and its status begins with the mean, or with overfitting."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import bayescore.nn as bnn
from bayescore.nn.checkpoint import RunState
from bayescore.nn.training import _overfitting

X = torch.randn(240, 2, generator=torch.Generator().manual_seed(0))
Y = (X.square().sum(1) > 1.4).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def said(*args: Any, **options: Any) -> list[str]:
    """The warnings of a fit."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        bnn.fit(*args, **{"epochs": 3, **options})
    return [str(w.message) for w in found]


def test_num_data_far_below_an_epoch_is_noticed_after_the_first() -> None:
    (found,) = said(network(), DataLoader(TensorDataset(X, Y), 8), num_data=30, epochs=1)
    assert "num_data is 30, and an epoch has about 240" in found
    assert "len(loader)" in found


def test_a_loss_per_pixel_is_noticed() -> None:
    images = torch.randn(64, 1, 8, 8)
    masks = (images[:, 0] > 0).long()
    loader = DataLoader(TensorDataset(images, masks), 4)

    def per_pixel(outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y)

    model = nn.Conv2d(1, 2, 3, padding=1)
    (found,) = said(model, loader, per_pixel, epochs=1)
    assert "pixels or tokens" in found
    assert not any("num_data" in text for text in said(model, loader, per_pixel, num_data=64 * 64))
    assert said(model, loader, "categorical") == []


@pytest.mark.parametrize("samples", [24, 240, 2400])
def test_a_sampler_may_make_epochs_of_any_length(samples: int) -> None:
    data = TensorDataset(X, Y)
    sampler = RandomSampler(data, replacement=True, num_samples=samples)
    assert said(network(), DataLoader(data, 8, sampler=sampler)) == []


@pytest.mark.parametrize("method", ["proximal", "descent", "advi", "bam", "sgld", "plain"])
def test_an_ordinary_fit_has_no_warning(method: str) -> None:
    data = DataLoader(TensorDataset(X, Y), 16, shuffle=True)
    assert said(network(), data, method=method, validation=data, epochs=6) == []


@pytest.mark.parametrize("like", ["gaussian", "heteroscedastic", bnn.likelihoods.Gaussian("learned")])
def test_an_ordinary_regression_has_no_warning(like: Any) -> None:
    data = DataLoader(TensorDataset(X, X[:, :1].sin()), 16, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2 if like == "heteroscedastic" else 1))
    assert said(model, data, like) == []


def test_status_begins_with_the_mean() -> None:
    fit = bnn.fit(network(), DataLoader(TensorDataset(X, Y), 16, shuffle=True), epochs=6)
    assert fit.status.startswith(fit.optimizer.mean_status + "; 6 epochs; ")
    assert fit.status.startswith("the loss ")
    assert fit.status.count(fit.optimizer.mean_status) == 1


def run_state(nlls: list[float], losses: list[float], best: int) -> RunState:
    rows = [
        {"epoch": float(i + 1), "loss": loss, "validation_nll": nll}
        for i, (loss, nll) in enumerate(zip(losses, nlls, strict=True))
    ]
    return RunState(rows, best_loss=nlls[best - 1], best_epoch=best)


def test_overfitting_is_named_with_its_epoch() -> None:
    state = run_state([2.0, 1.0, 0.9, 1.1, 1.3], [2.0, 1.0, 0.8, 0.6, 0.5], 3)
    assert _overfitting(state, "validation_nll").startswith(
        "overfitting on validation since epoch 3 (0.9, then 1.2 on average)"
    )
    assert "patience=" in _overfitting(state, "validation_nll")


@pytest.mark.parametrize(
    ("nlls", "losses", "best"),
    [
        ([2.0, 1.0, 0.9, 0.8, 0.7], [2.0, 1.0, 0.9, 0.8, 0.7], 5),
        ([2.0, 1.0, 0.9, 0.905, 0.903], [2.0, 1.0, 0.9, 0.8, 0.7], 3),  # within its noise
        ([2.0, 1.0, 0.9, 1.2, 1.5], [2.0, 1.0, 0.9, 1.2, 1.6], 3),  # the training loss rises too
        ([2.0, 1.0, 0.9, 1.2], [2.0, 1.0, 0.9, 0.8], 3),  # one epoch may be chance
    ],
)
def test_what_is_not_overfitting_is_not_called_so(nlls: list[float], losses: list[float], best: int) -> None:
    assert _overfitting(run_state(nlls, losses, best), "validation_nll") == ""


def test_a_network_that_overfits_says_so_first() -> None:
    x = torch.randn(24, 20, generator=torch.Generator().manual_seed(1))
    y = torch.randint(2, (24,), generator=torch.Generator().manual_seed(2))
    held = DataLoader(TensorDataset(-x, y), 12)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    fit = bnn.fit(
        model,
        DataLoader(TensorDataset(x, y), 12),
        epochs=20,
        validation=held,
        temperature=1e-3,
        progress=False,
    )
    assert fit.status.startswith("overfitting on validation since epoch")
    assert "train longer, or raise lr" not in fit.status

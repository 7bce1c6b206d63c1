"""Training in one call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn


def rings(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Two classes: inside and outside a circle."""
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x.square().sum(1) > 1.4).long()


def loader(n: int, seed: int, batch: int = 32, regression: bool = False) -> DataLoader[tuple[Tensor, ...]]:
    x, y = rings(n, seed)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin() if regression else y)
    return DataLoader(data, batch, shuffle=True, generator=torch.Generator().manual_seed(0))


def network(out: int = 2) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, out))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("proximal", {}),
        ("proximal", {"solver": "gradient", "lr": 1e-2}),
        ("advi", {"lr": 1e-2}),
        ("bam", {"lr": 0.05}),
        ("sgld", {"lr": 0.1, "burn_in": 100, "thin": 5}),
    ],
    ids=["exact", "gradient", "advi", "bam", "sgld"],
)
def test_every_method_learns_a_small_problem_in_two_hundred_steps(
    method: str, options: dict[str, float]
) -> None:
    train, held_out = loader(256, 0), loader(256, 1)
    fit = bnn.fit(network(), train, method=method, epochs=25, validation=held_out, **options)
    x, y = rings(500, 2)
    prediction = fit.predict(x, samples=10)
    assert float((prediction.classes == y).float().mean()) > 0.75
    assert -float(prediction.log_prob(y).mean()) < 0.5
    best = min(fit.history, key=lambda row: row.get("validation_nll", float("inf")))
    assert fit.best_epoch == best["epoch"]
    assert "epochs" in fit.status


def test_training_repeats_under_a_seed() -> None:
    runs = [bnn.fit(network(), loader(64, 0), epochs=2, seed=3) for _ in range(2)]
    x, _ = rings(10, 5)
    assert torch.equal(runs[0].predict(x).probs, runs[1].predict(x).probs)


def test_training_stops_early_and_returns_the_best_epoch() -> None:
    fit = bnn.fit(network(), loader(32, 0, batch=8), epochs=60, validation=loader(64, 1), patience=2, lr=0.9)
    assert len(fit.history) < 60
    assert len(fit.history) - fit.best_epoch == 2
    assert "without improvement" in fit.status


def test_last_layer_only_trains_the_rest_as_points() -> None:
    model = network()
    before = model[0].weight.detach().clone()
    fit = bnn.fit(model, loader(64, 0), epochs=2, bayesian="last")
    assert fit.posterior.names == ["3.weight", "3.bias"]
    assert not torch.equal(model[0].weight, before)


def test_learned_noise_is_learned() -> None:
    like = bnn.likelihoods.Gaussian("learned")
    fit = bnn.fit(network(1), loader(256, 0, regression=True), like, epochs=15, point_lr=0.05)
    assert float(like.log_noise.detach()) < -0.5
    low, high = fit.predict(rings(5, 3)[0], samples=20).interval(0.9)
    assert (low < high).all()


def test_a_loss_that_is_a_sum_is_refused() -> None:
    total = nn.CrossEntropyLoss(reduction="sum")
    with pytest.raises(ValueError, match="sum over the batch"):
        bnn.fit(network(), loader(64, 0), total, epochs=1)
    bnn.fit(network(), loader(64, 0), nn.CrossEntropyLoss(), epochs=1)


def test_unknown_methods_and_unsized_data_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'proximal'"):
        bnn.fit(network(), loader(64, 0), method="proximale")
    batches = [rings(8, 0)]
    with pytest.raises(ValueError, match="num_data="):
        bnn.fit(network(), batches)
    bnn.fit(network(), batches, num_data=8, epochs=1)

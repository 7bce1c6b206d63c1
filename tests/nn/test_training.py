"""Training in one call."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.nn.methods import TrainingMethod
from bayescore.nn.plain import PlainAdam
from toy_problem import loader, network, rings


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("proximal", {"lr": 1e-2}),
        ("calibrated", {}),
        ("descent", {"lr": 1e-2}),
        ("advi", {"lr": 1e-2}),
        ("bam", {}),
        ("sgld", {"lr": 0.1, "burn_in": 100, "thin": 5}),
        ("plain", {"lr": 1e-2}),
        ("dropout", {"lr": 1e-2, "p": 0.1}),
        ("weight-dropout", {"lr": 1e-2, "p": 0.1}),
        ("swag", {"lr": 1e-2}),
    ],
    ids=[
        "proximal",
        "calibrated",
        "descent",
        "advi",
        "bam",
        "sgld",
        "plain",
        "dropout",
        "weight-dropout",
        "swag",
    ],
)
def test_every_method_learns_a_small_problem_in_two_hundred_steps(
    method: str, options: dict[str, float]
) -> None:
    train, held_out = loader(256, 0), loader(256, 1)
    fit = bnn.fit(network(), train, method=method, epochs=25, validation=held_out, **options)
    x, y = rings(500, 2)
    prediction = fit.predict(x, draws=10)
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
    fit = bnn.fit(network(1), loader(256, 0, regression=True), like, epochs=15)
    assert float(like.log_noise.detach()) < -0.5
    low, high = fit.predict(rings(5, 3)[0], draws=20).interval(0.9)
    assert (low < high).all()


def test_a_loss_that_is_a_sum_is_refused() -> None:
    total = nn.CrossEntropyLoss(reduction="sum")
    with pytest.raises(ValueError, match="sum over the batch"):
        bnn.fit(network(), loader(64, 0), total, epochs=1)
    bnn.fit(network(), loader(64, 0), nn.CrossEntropyLoss(), epochs=1)

    class Summed(bnn.likelihoods.Categorical):
        def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
            return super().forward(outputs, y) * len(y)

    with pytest.raises(ValueError, match="sum over the batch"):
        bnn.fit(network(), loader(64, 0), Summed(), epochs=1)


def test_a_loss_that_is_a_mean_over_outputs_warns() -> None:
    x = torch.randn(32, 2)
    data = DataLoader(TensorDataset(x, torch.randn(32, 10)), 16)

    def summed(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().sum(1).mean()

    with pytest.warns(RuntimeWarning, match="mean over the 10 outputs"):
        bnn.fit(network(10), data, nn.functional.mse_loss, epochs=1)
    for loss in (summed, bnn.likelihoods.Gaussian(1.0)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            bnn.fit(network(10), data, loss, epochs=1)


def test_unknown_methods_and_unsized_data_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'proximal'"):
        bnn.fit(network(), loader(64, 0), method="proximale")
    batches = [rings(8, 0)]
    with pytest.raises(ValueError, match="num_data="):
        bnn.fit(network(), batches)
    bnn.fit(network(), batches, num_data=8, epochs=1)


def test_plain_training_finds_the_map_estimate_of_the_same_prior() -> None:
    """Linear regression with noise s and the prior N(0, s0^2): (X'X/s^2 + I/s0^2)^-1 X'y/s^2."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=rng)
    y = x @ torch.ones(3, 1) + torch.randn(20, 1, generator=rng)
    model, noise, prior = nn.Linear(3, 1, bias=False), 2.0, 0.5
    like = bnn.likelihoods.Gaussian(noise)
    fit = bnn.fit(model, [(x, y)], like, "plain", num_data=20, epochs=500, lr=0.05, prior_sd=prior)
    exact = torch.linalg.solve(x.T @ x / noise**2 + torch.eye(3) / prior**2, x.T @ y / noise**2)
    torch.testing.assert_close(model.weight.detach().T, exact, rtol=1e-3, atol=1e-3)
    assert isinstance(fit.posterior, bnn.PointPosterior)


def test_without_a_prior_plain_training_is_adam() -> None:
    x, y = rings(32, 0)
    one, two = network(), network()
    ours = PlainAdam(one.parameters(), 32, lr=1e-2, prior_sd=float("inf"))
    theirs = torch.optim.Adam(two.parameters(), lr=1e-2)
    for model, opt in ((one, ours), (two, theirs)):
        for _ in range(5):
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_batch_that_is_not_finite_is_left_out_and_counted() -> None:
    x, y = rings(32, 0)
    bad = torch.full_like(x, float("nan"))
    batches = [(x, y), (bad, y), (x, y)]
    with pytest.warns(RuntimeWarning, match="not finite"):
        fit = bnn.fit(network(), batches, method="plain", num_data=96, epochs=2)
    assert "4 updates" in fit.status
    assert "2 left out" in fit.status
    with (
        pytest.warns(RuntimeWarning, match="not finite"),
        pytest.raises(FloatingPointError, match="in a row"),
    ):
        bnn.fit(network(), [(bad, y)], method="plain", num_data=32, epochs=30)


def test_swag_collects_over_the_second_half() -> None:
    fit = bnn.fit(network(), loader(64, 0), method="swag", epochs=8, rank=3, validation=loader(32, 1))
    assert isinstance(fit.posterior, bnn.SwagPosterior)
    assert ["validation_nll" in row for row in fit.history] == [False] * 5 + [True] * 3
    assert fit.posterior.size <= 3


def test_dropout_is_taken_out_after_training_and_stays_in_the_posterior() -> None:
    model = network()
    fit = bnn.fit(model, loader(64, 0), method="dropout", p=0.2, epochs=2)
    assert not any(module._forward_hooks for module in model.modules())
    x, _ = rings(10, 1)
    assert float(fit.predict(x, 20).mutual_information.max()) > 0


def test_training_repeats_under_a_seed_also_where_torch_draws_globally() -> None:
    """Dropout and a shuffling loader draw from the global stream, which is left as it was."""
    data = TensorDataset(*rings(64, 0))
    x, _ = rings(10, 1)
    before, rows = torch.get_rng_state(), []
    for _ in range(2):
        fit = bnn.fit(
            network(), DataLoader(data, 16, shuffle=True), method="dropout", p=0.2, epochs=3, seed=1
        )
        rows.append(fit.predict(x).probs)
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_callable_likelihood_works_with_every_method() -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().sum(1).mean()

    for method in ("proximal", "plain", "swag"):
        fit = bnn.fit(
            network(1), loader(64, 0, regression=True), loss, method, epochs=6,
            validation=loader(32, 1, regression=True),
        )  # fmt: skip
        assert fit.predict(rings(3, 0)[0], 4).mean.shape == (3, 1)


def test_a_frozen_batch_norm_keeps_its_statistics() -> None:
    norms = [nn.BatchNorm1d(2), nn.BatchNorm1d(2), nn.BatchNorm1d(2, affine=False), nn.BatchNorm1d(2)]
    for p in (*norms[0].parameters(), norms[1].bias):  # all of one, half of another
        p.requires_grad_(False)
    model = nn.Sequential(*norms, nn.Linear(2, 2))
    fit = bnn.fit(model, loader(64, 0), epochs=1)
    moved = [bool(norm.running_mean.any()) for norm in norms]
    assert moved == [False, True, True, True]
    assert [int(norm.num_batches_tracked) for norm in norms] == [0, 2, 2, 2]
    assert torch.equal(fit.posterior.fixed["0.running_var"], torch.ones(2))


def test_a_mixture_of_short_posteriors_is_uncertain_where_there_are_no_data() -> None:
    """At the price of one run: 5 members with a fifth of the epochs each."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, generator=rng) * 2 + 1
    x = torch.where(torch.rand(120, 1, generator=rng) < 0.5, -x, x)  # a gap from -1 to 1
    y = torch.sin(1.5 * x) + 0.1 * torch.randn(120, 1, generator=rng)

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))

    loader, like = DataLoader(TensorDataset(x, y), 32, shuffle=True), bnn.likelihoods.Gaussian("learned")
    fit = bnn.fit_ensemble(make, loader, like, "proximal", members=5, epochs=40, progress=False)
    points = torch.tensor([[-2.0], [2.0], [0.0], [4.0], [5.0]])
    seen, gap, outside = (
        fit.predict(points, 100).epistemic_std.flatten()[part] for part in ([0, 1], [2], [3, 4])
    )
    assert gap > 1.5 * seen.max()
    assert outside.min() > 3 * seen.max()


def test_the_halving_schedule_keeps_two_epochs_and_then_halves_every_one() -> None:
    fit = bnn.fit(network(), loader(64, 0), method="plain", epochs=5, lr=0.01, schedule="halving")
    assert fit.optimizer.param_groups[0]["lr"] == pytest.approx(0.01 / 2**4)  # of the epoch that would follow
    constant = bnn.fit(network(), loader(64, 0), method="plain", epochs=5, lr=0.01, schedule="constant")
    assert constant.optimizer.param_groups[0]["lr"] == 0.01
    with pytest.raises(ValueError, match="choose from constant, cosine, halving"):
        bnn.fit(network(), loader(64, 0), schedule="steps")


@pytest.mark.parametrize(("epoch", "factor"), [(0, 1), (1, 1), (2, 0.5), (3, 0.25), (9, 2**-8)])
def test_the_rate_of_an_epoch_is_that_of_its_first_and_its_last_step(epoch: int, factor: float) -> None:
    method = TrainingMethod(None, None)  # type: ignore[arg-type]
    for batches in (1, 7, 1148):
        steps = 10 * batches
        for step in (epoch * batches, (epoch + 1) * batches - 1):
            assert method.lr_factor("halving", step / steps, 10) == factor


def test_the_best_epoch_can_be_that_of_the_least_squared_error() -> None:
    held_out = loader(64, 1, regression=True)
    fit = bnn.fit(
        network(1),
        loader(64, 0, regression=True),
        "gaussian",
        "plain",
        epochs=3,
        validation=held_out,
        validate_by="mse",
    )
    found = fit.history[fit.best_epoch - 1]["validation_mse"]
    assert found == min(row["validation_mse"] for row in fit.history)
    x, y = (torch.cat(part) for part in zip(*held_out, strict=True))
    assert float((fit.predict(x, 1).mean - y).square().mean()) == pytest.approx(found, rel=1e-5)
    with pytest.raises(TypeError, match="for values"):
        bnn.fit(network(), loader(64, 0), epochs=1, validation=loader(64, 1), validate_by="mse")

"""Koopa: sizes, the least squares of a window, the filter, and what a forecast keeps."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayescore.models import Koopa
from bayescore.models.koopa import advance

SIZES = {
    "ECL": 17_641_056,
    "ETTh2": 567_808,
    "Exchange": 694_960,
    "ILI": 539_072,
    "Traffic": 22_314_448,
    "Weather": 238_112,
}


def weights(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def features(segments: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(3, segments, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def small(**changes: int) -> Koopa:
    options = {"dynamic_dim": 4, "hidden": 5, "blocks": 2} | changes
    return Koopa(2, 24, 12, **options).double().eval()


def split(model: Koopa, r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(2)"""
    spectrum = torch.fft.rfft(r, dim=1).masked_fill(model.kept.view(1, -1, 1), 0)
    var = torch.fft.irfft(spectrum, n=model.context, dim=1)
    return r - var, var


def as_written(model: Koopa, x: torch.Tensor) -> torch.Tensor:
    """The network by (1) to (5), block by block and layer by layer."""
    level = x.detach().mean(1, keepdim=True)
    scale = (x.detach().var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    r, y = (x - level) / scale, 0.0
    segments = -(-model.context // model.segment)
    missing = segments * model.segment - model.context
    for k in model.maps:
        inv, var = split(model, r)
        y = y + model.invariant_decoder(k(model.invariant_encoder(inv.transpose(1, 2)))).transpose(1, 2)
        rows = torch.cat((var[:, model.context - missing :], var), 1)
        z = model.variant_encoder(rows.reshape(len(x), segments, -1))
        rebuilt, ahead = advance(z, -(-model.horizon // model.segment))
        y = y + model.variant_decoder(ahead).reshape(len(x), -1, model.channels)[:, : model.horizon]
        if k is not model.maps[-1]:
            r = r - model.variant_decoder(rebuilt).reshape(len(x), -1, model.channels)[:, missing:]
    return y * scale + level


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_benchmark_network_has_the_published_number_of_weights(name, size):
    with torch.device("meta"):
        assert weights(Koopa.for_dataset(name)) == size


def test_the_reduced_networks_have_fewer_than_5000_weights():
    reduced = {"dynamic_dim": 8, "layers": 2, "blocks": 4}
    assert weights(Koopa.for_dataset("Exchange", **reduced, hidden=4, segment=48)) == 4_496
    assert weights(Koopa.for_dataset("Weather", **reduced, hidden=1, segment=48)) == 3_524
    assert weights(Koopa.for_dataset("Weather", **reduced, hidden=3, segment=24)) < 5_000


def test_two_segments_need_no_solver():
    z = features(2, 6)
    rebuilt, ahead = advance(z, 3)
    k = torch.linalg.lstsq(z[:, :1], z[:, 1:], driver="gelsd").solution  # minimum norm, (3, 6, 6)
    assert torch.allclose(torch.cat((z[:, :1], z[:, :1] @ k), 1), rebuilt, atol=1e-9)
    for i in range(3):
        assert torch.allclose(z[:, -1:] @ torch.linalg.matrix_power(k, i + 1), ahead[:, i : i + 1], atol=1e-9)


@pytest.mark.parametrize(("segments", "dim"), [(3, 6), (4, 8), (7, 6), (9, 3)])
def test_more_segments_are_advanced_by_least_squares(segments, dim):
    z = features(segments, dim)
    x, y = z[:, :-1], z[:, 1:]
    k = torch.linalg.lstsq(x, y, driver="gelsd").solution
    rebuilt, ahead = advance(z, 2)
    assert torch.allclose(torch.cat((z[:, :1], x @ k), 1), rebuilt, atol=1e-6)
    assert torch.allclose(torch.cat((z[:, -1:] @ k, z[:, -1:] @ k @ k), 1), ahead, atol=1e-6)


def test_the_map_of_two_segments_is_the_limit_of_the_general_one():
    """A third segment in front of which nothing is known: its pair (0, z_1) changes nothing."""
    z = features(2, 6)
    longer = torch.cat((torch.zeros_like(z[:, :1]), z), 1)
    assert torch.allclose(advance(z, 1)[1], advance(longer, 1)[1], rtol=1e-4)


@pytest.mark.parametrize("segments", [2, 3, 5])
def test_gradients_pass_through_the_map(segments):
    z = features(segments, 4)[:1].requires_grad_()
    assert torch.autograd.gradcheck(lambda v: advance(v, 2)[1], (z,), atol=1e-4)


@pytest.mark.parametrize("segments", [2, 3])
def test_segments_without_features_give_a_finite_forecast_and_gradient(segments):
    z = torch.zeros(1, segments, 4, requires_grad=True)
    _, ahead = advance(z, 2)
    ahead.sum().backward()
    assert bool(ahead.isfinite().all())
    assert bool(z.grad.isfinite().all())


def test_the_filter_separates_the_frequencies_that_it_was_taught():
    model = Koopa(1, 48, 24, alpha=0.1, dynamic_dim=4, hidden=4).double()  # 2 of 25 frequencies
    t = torch.arange(48, dtype=torch.float64)
    slow = torch.sin(2 * torch.pi * 3 * t / 48) + torch.cos(2 * torch.pi * 7 * t / 48)
    fast = 0.1 * torch.sin(2 * torch.pi * 11 * t / 48)
    model.learn_frequencies([(slow + fast).view(1, 48, 1).repeat(2, 1, 1)])
    assert model.kept.nonzero().flatten().tolist() == [3, 7]
    waves = model._waves(torch.float64)
    assert torch.allclose(waves @ (waves.T @ (slow + fast)), slow, atol=1e-12)


@pytest.mark.parametrize(("context", "alpha"), [(24, 1.0), (25, 1.0), (24, 0.3), (24, 0.01)])
def test_the_filter_by_waves_is_the_filter_by_fourier_transforms(context, alpha):
    model = Koopa(1, context, 8, segment=8, alpha=alpha, dynamic_dim=4, hidden=4).double()
    r = torch.randn(context, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    waves = model._waves(torch.float64)
    inv, _ = split(model, r.view(1, -1, 1))
    assert torch.allclose(waves @ (waves.T @ r), inv.flatten(), atol=1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers": 3, "hidden": 16, "dynamic_dim": 4},
        {"layers": 3, "hidden": 3, "dynamic_dim": 16, "blocks": 1},
        {"segment": 5, "alpha": 0.5},
        {"alpha": 0.01},
    ],
)
@pytest.mark.parametrize("training", [False, True])
def test_products_in_a_cheaper_order_are_the_network_as_its_equations_read(changes, training):
    """Under the same stream, dropout has the same masks in both."""
    model = Koopa(3, 24, 12, **{"dynamic_dim": 6, "hidden": 5, "dropout": 0.3} | changes).double()
    model.train(training)
    x = torch.randn(7, 24, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).cumsum(1)
    inputs = [x.requires_grad_(), *model.parameters()]
    found = []
    for forward in (model, lambda x: as_written(model, x)):
        torch.manual_seed(5)
        out = forward(x)
        found.append([out, *torch.autograd.grad(out.square().mean(), inputs)])
    for fast, written in zip(*found, strict=True):
        assert torch.allclose(fast, written, rtol=1e-7, atol=1e-9)


def test_frequencies_are_learned_from_all_batches_alike():
    x = torch.randn(10, 24, 2, generator=torch.Generator().manual_seed(1))
    whole, parts = small(), small()
    whole.learn_frequencies([x])
    parts.learn_frequencies([(x[:7], x[:7]), (x[7:], x[7:])])
    assert torch.equal(whole.kept, parts.kept)


def test_a_forecast_follows_the_level_and_the_scale_of_its_window():
    model, x = small(), torch.randn(3, 24, 2, dtype=torch.float64)
    assert torch.allclose(model(1e3 * x + 7), 1e3 * model(x) + 7, atol=1e-1)


@pytest.mark.parametrize(
    ("context", "horizon", "segment"), [(24, 12, 6), (25, 12, 8), (24, 13, 5), (24, 48, 12)]
)
def test_context_and_horizon_need_not_be_whole_segments(context, horizon, segment):
    model = Koopa(3, context, horizon, segment=segment, dynamic_dim=4, hidden=5)
    out = model(torch.randn(2, context, 3))
    assert out.shape == (2, horizon, 3)
    out.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_a_window_that_does_not_move_has_a_finite_forecast():
    assert torch.allclose(
        small()(torch.full((1, 24, 2), 5.0, dtype=torch.float64)), torch.tensor(5.0).double(), atol=0.1
    )


def test_the_maps_are_orthogonal_at_first():
    weight = small().maps[0].weight
    assert torch.allclose(weight @ weight.T, torch.eye(4, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"segment": 24}, "two segments"),
        ({"layers": 1}, "layers must be at least 2"),
        ({"alpha": 1.5}, "share"),
        ({"dropout": 1.0}, "below 1"),
    ],
)
def test_impossible_sizes_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        Koopa(2, 24, 12, **changes)


def test_a_window_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="context=24, channels=2"):
        small()(torch.randn(1, 23, 2))


def test_an_unknown_data_set_is_refused():
    with pytest.raises(ValueError, match="did you mean 'Weather'"):
        Koopa.for_dataset("weather")

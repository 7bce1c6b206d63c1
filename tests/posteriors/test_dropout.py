"""Dropout at prediction: the rates, the places, and taking it out again."""

from __future__ import annotations

import pytest
import torch
from small_networks import NETWORKS
from torch import nn

import bayescore.nn as bnn
from toy_problem import network, rings


def wide(width: int = 4000) -> nn.Sequential:
    """The mean of many units, one after a dropout layer."""
    model = nn.Sequential(nn.Linear(1, width), nn.Dropout(0.25), nn.Linear(width, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(0)
        model[0].bias.fill_(1)
        model[2].weight.fill_(1 / width)
    return model


def test_units_are_left_out_at_the_rate_and_the_rest_scaled_up() -> None:
    """With all units 1 the output is (share kept)/(1 - p): mean 1, variance p/((1-p) width)."""
    outputs = bnn.DropoutPosterior(wide(), likelihood="gaussian").predict(torch.zeros(1, 1), 400).outputs
    assert float(outputs.mean()) == pytest.approx(1, abs=0.002)
    assert float(outputs.var()) == pytest.approx(0.25 / 0.75 / 4000, rel=0.25)


def test_dropout_is_inserted_after_every_activation_and_can_be_taken_out_again() -> None:
    model = network()
    keys = list(model.state_dict())
    x, _ = rings(50, 0)
    plain = model(x)
    inserted = bnn.InsertedDropout(model, 0.5)
    assert list(model.state_dict()) == keys
    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert not torch.equal(model.train()(x), plain)
    assert torch.equal(model.eval()(x), plain)
    inserted.remove()
    assert torch.equal(model.train()(x), plain)
    with pytest.raises(KeyError), bnn.InsertedDropout(model, 0.5):
        raise KeyError
    assert torch.equal(model(x), plain)


def test_inserted_dropout_equals_dropout_layers_in_distribution() -> None:
    layers = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2))
    bare = nn.Sequential(layers[0], layers[1], layers[3])
    x, _ = rings(5, 0)
    one = bnn.DropoutPosterior(layers).predict(x, 3000)
    two = bnn.DropoutPosterior(bare, 0.4).predict(x, 3000, seed=9)
    torch.testing.assert_close(one.probs, two.probs, atol=0.02, rtol=0)
    torch.testing.assert_close(one.mutual_information, two.mutual_information, atol=0.01, rtol=0)


def test_the_average_over_masks_per_row_is_that_over_shared_masks() -> None:
    """A mask of its own for every row, as torch's train mode draws them, predicts the same on average."""
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 2))
    x, _ = rings(4, 0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(1)
        own = torch.stack([model.train()(x).softmax(1) for _ in range(3000)]).mean(0)
    torch.testing.assert_close(bnn.DropoutPosterior(model).predict(x, 3000).probs, own, atol=0.02, rtol=0)


def test_channels_are_left_out_as_a_whole() -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 1), nn.Dropout2d(0.5), nn.Identity())
    with torch.no_grad():
        model[0].weight.fill_(1)
        model[0].bias.fill_(0)
    out = bnn.DropoutPosterior(model, likelihood="gaussian").predict(torch.ones(3, 1, 4, 4), 20).outputs
    assert set(out.flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(out, out[:, :, :, :1, :1].expand_as(out))


def test_a_module_used_twice_has_a_mask_for_each_use() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop = nn.Dropout(0.5)
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(x) - self.drop(x) * self.scale

    out = bnn.DropoutPosterior(Twice(), likelihood="gaussian").predict(torch.ones(1, 100), 5).outputs
    assert float(out.abs().max()) > 0


def test_attention_blocks_have_their_dropout_on() -> None:
    case = NETWORKS["attention"]
    prediction = bnn.DropoutPosterior(case.module()).predict(case.batch()[0], 10)
    assert float(prediction.mutual_information.max()) > 0


def test_modules_without_a_place_for_dropout_are_refused() -> None:
    with pytest.raises(ValueError, match="leave p= out: its own dropout layers are on"):
        bnn.DropoutPosterior(NETWORKS["attention"].module(), 0.1)
    with pytest.raises(ValueError, match="pass p="):
        bnn.DropoutPosterior(network())
    with pytest.raises(ValueError, match="no activation module"):
        bnn.DropoutPosterior(nn.Linear(2, 2), 0.1)
    with pytest.raises(ValueError, match="strictly between"):
        bnn.DropoutPosterior(network(), 1.0)
    with pytest.raises(TypeError, match="number"):
        bnn.InsertedDropout(network(), "0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass p="):
        bnn.fit(network(), [rings(8, 0)], num_data=8, method="dropout")

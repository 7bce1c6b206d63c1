"""Networks and data as users have them, and their mistakes: nothing is lost, a refusal is a sentence."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayescore.nn as bnn
from bayescore.nn import Posterior
from bayescore.optim import CalibratedScore, ProximalScore
from toy_problem import loader, network, rings


def trained(model: nn.Module) -> Any:
    return CalibratedScore(model.parameters(), num_data=64, init_sd=0.01).posterior(model)


def test_a_module_that_is_used_twice_survives_prediction_and_forecast() -> None:
    twice = nn.Linear(4, 4)
    model = nn.Sequential(nn.Linear(2, 4), twice, nn.Tanh(), twice, nn.Linear(4, 2))
    x, _ = rings(10, 0)
    before = model(x)
    together = trained(model).predict(x).probs
    bnn.memory_estimate(model, "proximal", (8, 2))
    assert isinstance(twice.weight, nn.Parameter)
    assert torch.equal(model(x), before)
    model.append(nn.RReLU())  # vmap has no rule for it: one draw after the other
    assert torch.allclose(trained(model[:-1]).predict(x).probs, together)
    trained(model).predict(x)


def test_every_draw_sees_the_same_inputs() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            x /= 10
            return self.layer(x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = InPlace(), 50 * torch.ones(1, 2)
    posterior = CalibratedScore(model.parameters(), num_data=64, init_sd=1e-6).posterior(model)
    probs = posterior.predict(x).probs
    assert torch.equal(x, 50 * torch.ones(1, 2))
    torch.testing.assert_close(probs, model(x.clone()).softmax(1), rtol=0, atol=1e-3)


def test_a_last_layer_called_by_keyword_and_an_empty_input_are_fine() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(input=self.body(x).tanh())  # type: ignore[no-any-return]

    model = Named()
    posterior = ProximalScore(bnn.select(model, "last"), num_data=64).posterior(model)
    assert posterior.predict(torch.zeros(3, 2)).probs.shape == (3, 2)
    assert posterior.predict(torch.zeros(0, 2)).probs.shape == (0, 2)


def test_values_are_not_taken_for_classes() -> None:
    x, _ = rings(32, 0)
    with pytest.raises(ValueError, match="likelihood='gaussian'"):
        trained(network(1)).predict(x)
    floats = DataLoader(TensorDataset(x, x), batch_size=8)
    with pytest.raises(TypeError, match="class labels must be whole numbers"):
        bnn.fit(network(2), floats, epochs=1)


def test_binary_labels_of_another_shape_are_refused() -> None:
    model = network(1)
    x, y = rings(32, 0)
    prediction = ProximalScore(model.parameters(), num_data=64).posterior(model, "bernoulli").predict(x)
    prediction.log_prob(y.unsqueeze(1))
    with pytest.raises(ValueError, match="one shape"):
        prediction.log_prob(y)
    with pytest.raises(ValueError, match="0 or 1"):
        prediction.log_prob(torch.full((32, 1), 0.3))
    with pytest.raises(ValueError, match="labels of -1 and 1"):
        bnn.likelihoods.Bernoulli()(torch.zeros(3, 1), -torch.ones(3, 1))


def test_a_posterior_keeps_the_noise_of_its_moment_without_gradients() -> None:
    model, like = network(1), bnn.likelihoods.Gaussian("learned")
    posterior = ProximalScore(model.parameters(), num_data=64).posterior(model, like)
    prediction = posterior.predict(rings(5, 0)[0])
    before = prediction.std.numpy().copy()
    with torch.no_grad():
        like.log_noise.fill_(3.0)
    assert (posterior.predict(rings(5, 0)[0]).std.numpy() == before).all()
    assert like.log_noise.requires_grad


@pytest.mark.parametrize("what", ["noise", "point"])
def test_a_nan_batch_does_not_spoil_what_is_not_random(what: str) -> None:
    x, _ = rings(64, 0)
    x[40] = math.nan
    like = bnn.likelihoods.Gaussian("learned")
    model = network(1)
    data = DataLoader(TensorDataset(x, torch.zeros(64, 1)), batch_size=16)
    options = {"bayesian": "last"} if what == "point" else {}
    with pytest.warns(RuntimeWarning, match="not finite"):
        fit = bnn.fit(model, data, like, epochs=2, **options)  # type: ignore[arg-type]
    assert like.log_noise.isfinite()
    assert all(p.isfinite().all() for p in model.parameters())
    assert "2 left out" in fit.status
    assert "noise" in fit.status


def test_a_loss_that_is_not_a_number_is_never_the_best() -> None:
    x, y = rings(64, 1)
    x[0] = math.nan
    held_out = DataLoader(TensorDataset(x, y), batch_size=64)
    fit = bnn.fit(network(), loader(64, 0), epochs=3, validation=held_out, patience=1)
    assert fit.best_epoch == 3
    assert "none of them with a finite loss on validation" in fit.status


def test_a_stream_of_data_is_trained_on_and_an_empty_loader_refused() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from zip(*rings(64, 0), strict=True)

    bnn.fit(network(), DataLoader(Stream(), batch_size=16), epochs=1, num_data=64)
    few = DataLoader(TensorDataset(*rings(8, 0)), batch_size=16, drop_last=True)
    with pytest.raises(ValueError, match="no batch"):
        bnn.fit(network(), few, epochs=1)


def test_mistakes_are_named_before_training() -> None:
    x, y = rings(32, 0)
    data = TensorDataset(x, y)
    with pytest.raises(ValueError, match="pass validation="):
        bnn.fit(network(), loader(32, 0), patience=2)
    with pytest.raises(TypeError, match="wrap it in a DataLoader"):
        bnn.fit(network(), data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a pair, inputs and a tensor of targets.*got a dict"):
        bnn.fit(network(), [{"x": x, "y": y}], num_data=32)
    with pytest.raises(TypeError, match="got a tuple of Tensor, Tensor, Tensor"):
        bnn.fit(network(), [(x, y, y)], num_data=32)
    with pytest.raises(ValueError, match="option of ProximalScore called 'learning_rate'"):
        bnn.fit(network(), loader(32, 0), learning_rate=0.1)
    with pytest.raises(ValueError, match="epochs must be at least 3"):
        bnn.fit(network(), loader(32, 0), method="swag", epochs=2)
    with pytest.raises(ValueError, match="swag collects all weights"):
        bnn.fit(network(), loader(32, 0), method="swag", bayesian="last")
    with pytest.raises(FileNotFoundError, match="no folder"):
        bnn.fit(network(), loader(32, 0), checkpoint="nowhere/run.ckpt")


def test_a_chain_keeps_states_whatever_the_number_of_steps() -> None:
    fit = bnn.fit(network(), loader(64, 0), method="sgld", epochs=4, validation=loader(32, 1))
    assert "states kept" in fit.status


def test_statistics_cannot_be_estimated_from_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    x, _ = rings(16, 0)
    with pytest.raises(ValueError, match="recalibrate gave no batch"):
        trained(model).predict(x, recalibrate=iter([]))


def test_a_likelihood_of_ones_own_is_asked_for_when_loading(tmp_path: Path) -> None:
    class Laplacian(bnn.likelihoods.Likelihood):
        name = "laplacian"

        def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
            return -(outputs - y).abs().flatten(1).sum(1)

        def mean(self, outputs: Tensor) -> Tensor:
            return outputs

    file, model = tmp_path / "net.safetensors", network(1)
    ProximalScore(model.parameters(), num_data=64).posterior(model, Laplacian()).save(file)
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(ValueError, match="pass likelihood="):
        Posterior.load(file, network(1))
    assert isinstance(Posterior.load(file, network(1), Laplacian()).likelihood, Laplacian)


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_files_with_senseless_numbers_are_refused(value: float, tmp_path: Path) -> None:
    file, model = tmp_path / "net.safetensors", network()
    posterior = trained(model)
    posterior.sd["0.weight"].fill_(value)
    posterior.save(file)
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(file, network())


def test_a_confident_mistake_about_a_binary_outcome_costs_its_logit() -> None:
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 20.0)
    nn.init.zeros_(model.bias)
    posterior = bnn.PointPosterior(model, likelihood="bernoulli")
    prediction = posterior.predict(torch.tensor([[1.0], [-1.0]]))
    surely_wrong = prediction.log_prob(torch.tensor([[0], [1]]))
    torch.testing.assert_close(surely_wrong.float(), torch.tensor([-20.0, -20.0]))
    with pytest.raises(ValueError, match="0 or 1"):
        prediction.log_prob(torch.tensor([[-1], [1]]))


def test_ensembles_of_ensembles_mix_values() -> None:
    like = bnn.likelihoods.Gaussian(0.1)
    members = [
        ProximalScore(m.parameters(), 64).posterior(m, like) for m in (network(1, s) for s in range(3))
    ]
    point = bnn.PointPosterior(network(1), likelihood=like)
    mixture = bnn.Ensemble([bnn.Ensemble(members[:2]), members[2], point])
    x, _ = rings(4, 0)
    prediction = mixture.predict(x, 31)
    assert prediction.outputs.shape[0] == prediction.draws
    singles = [bnn.Ensemble(members[:2]).predict(x, 11), members[2].predict(x, 11, seed=1), point.predict(x)]
    expected = torch.stack([single.mean for single in singles]).mean(0)
    torch.testing.assert_close(prediction.mean, expected, rtol=0.05, atol=0.02)


METHODS = ["proximal", "calibrated", "descent", "advi", "bam", "published-bam", "sgld", "plain", "swag"]


@pytest.mark.parametrize("method", METHODS)
def test_a_module_without_parameters_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match=r"the module has no parameters to train \(Tanh\)"):
        bnn.fit(nn.Tanh(), loader(64, 0, 8), method=method, epochs=3)


@pytest.mark.parametrize("label", [2, -1])
@pytest.mark.parametrize("part", ["training", "validation"])
def test_labels_out_of_range_are_named(label: int, part: str) -> None:
    x, y = rings(32, 0)
    wrong = y.clone()
    wrong[3] = label
    sets = {"training": y, "validation": y, part: wrong}
    batches = {name: DataLoader(TensorDataset(x, labels), 8) for name, labels in sets.items()}
    with pytest.raises(
        ValueError, match=rf"class labels must be from 0 to 1, .*; got {label}: number the labels"
    ):
        bnn.fit(network(), batches["training"], epochs=1, validation=batches["validation"])


def test_data_without_a_label_are_left_out_as_torch_does() -> None:
    x, y = rings(32, 0)
    y[3] = -100
    bnn.fit(network(), DataLoader(TensorDataset(x, y), 8), epochs=1)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_on_the_meta_device_is_refused(method: str) -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="is on the meta device and has no numbers; make the weights first"):
        bnn.fit(model, loader(64, 0, 8), method=method, epochs=3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        pytest.param("num_data", 10**400, r"num_data must be at most 1e\+18; got about 1e400", id="num_data"),
        ("prior_sd", 1e-200, r"prior_sd must be a positive number between .*; got 1e-200"),
        ("temperature", 1e-200, r"temperature must be a positive number between .*; got 1e-200"),
        ("init_sd", 1e-200, r"init_sd"),
        ("point_lr", math.nan, "point_lr must be a positive number; got nan"),
    ],
)
def test_numbers_out_of_range_are_refused_before_training(
    method: str, option: str, value: float, sentence: str
) -> None:
    if method == "proximal" and option == "prior_sd":
        sentence = "ProximalScore has no prior_sd: give prior_scale"
    with pytest.raises(ValueError, match=sentence):
        bnn.fit(network(), loader(64, 0, 8), method=method, epochs=3, **{option: value})


@pytest.mark.parametrize(
    ("method", "layers", "options"),
    [
        # without a memory of squares a step is far longer than lr once the gradients have become small
        ("proximal", 1, {"lr": 1e18, "weight_decay": 0.0, "betas": (0.9, 0.0)}),
        ("calibrated", 3, {"lr": 1e9}),
        ("plain", 3, {"prior_sd": 1e-18}),
    ],
)
def test_a_fit_whose_weights_overflow_says_what_to_lower(
    method: str, layers: int, options: dict[str, Any]
) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(layers)))
    with pytest.raises(
        FloatingPointError, match=r"from finite gradients: lower lr .* last checkpoint is good"
    ):
        bnn.fit(model, loader(64, 0, 8), method=method, epochs=3, **options)

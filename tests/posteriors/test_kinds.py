"""What every kind of posterior promises, whatever is inside."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch

import bayescore.nn as bnn
from toy_problem import POSTERIORS, network, rings

KINDS = pytest.mark.parametrize("kind", POSTERIORS)
RANDOM = pytest.mark.parametrize("kind", [kind for kind in POSTERIORS if kind != "point"])


@KINDS
def test_predictions_are_probabilities_with_their_uncertainties(kind: str) -> None:
    prediction = POSTERIORS[kind](network()).predict(rings(20, 1)[0], draws=8)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(20))
    assert (prediction.mutual_information >= 0).all()
    assert (prediction.entropy <= math.log(2) + 1e-6).all()
    if kind == "point":
        assert float(prediction.mutual_information.max()) == 0
    else:
        assert float(prediction.mutual_information.max()) > 0


@KINDS
def test_predictions_do_not_depend_on_the_batch_size(kind: str) -> None:
    posterior = POSTERIORS[kind](network())
    x, _ = rings(20, 1)
    whole = posterior.predict(x, draws=6, seed=3)
    parts = posterior.predict(x, draws=6, seed=3, batch_size=7)
    torch.testing.assert_close(parts.probs, whole.probs)
    torch.testing.assert_close(parts.mutual_information, whole.mutual_information, rtol=1e-4, atol=1e-6)


@RANDOM
def test_a_seed_chooses_the_draws(kind: str) -> None:
    posterior = POSTERIORS[kind](network())
    x, _ = rings(20, 1)
    one, again, other = (posterior.predict(x, draws=4, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.probs, again.probs)
    assert torch.equal(one.mutual_information, again.mutual_information)
    assert not torch.equal(one.mutual_information, other.mutual_information)


@KINDS
def test_predicting_leaves_the_module_and_the_global_stream_as_they_were(kind: str) -> None:
    model = network()
    posterior = POSTERIORS[kind](model)
    model.train()
    before, stream = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    posterior.predict(rings(20, 1)[0], draws=3)
    with posterior.sample_(seed=1) as drawn:
        drawn(rings(4, 1)[0])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), stream)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@KINDS
def test_later_training_does_not_change_a_posterior(kind: str) -> None:
    model = network()
    posterior = POSTERIORS[kind](model)
    x, _ = rings(20, 1)
    before = posterior.predict(x, draws=3).probs
    with torch.no_grad():
        for p in model.parameters():
            p.add_(1)
    assert torch.equal(posterior.predict(x, draws=3).probs, before)


@KINDS
def test_a_saved_posterior_predicts_the_same_in_a_fresh_module(kind: str, tmp_path: Path) -> None:
    posterior = POSTERIORS[kind](network())
    posterior.save(tmp_path / "net.safetensors")
    loaded = bnn.Posterior.load(tmp_path / "net.safetensors", network(seed=5))
    assert type(loaded) is type(posterior)
    x, _ = rings(20, 1)
    torch.testing.assert_close(loaded.predict(x, draws=4).probs, posterior.predict(x, draws=4).probs)
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match="another model"):
        bnn.Posterior.load(tmp_path / "net.safetensors", other)


@RANDOM
def test_a_drawn_module_is_a_function_of_the_input(kind: str) -> None:
    posterior = POSTERIORS[kind](network())
    x, _ = rings(20, 1)
    with posterior.sample_(seed=1) as drawn, torch.no_grad():
        torch.testing.assert_close(drawn(x)[:5], drawn(x[:5]))

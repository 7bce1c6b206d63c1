"""Training options that large networks need: pieces of a batch, bfloat16, groups, frozen statistics, time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.nn.plain import PlainAdam
from bayescore.nn.weight_dropout import WeightDropout
from toy_problem import loader, network, rings


def weights(fit):
    return torch.cat([p.detach().flatten() for p in fit.posterior.model.parameters()])


@pytest.mark.parametrize("method", ["proximal", "plain", "advi", "weight-dropout"])
@pytest.mark.parametrize("size", [64, 50])  # 50 does not divide into three equal pieces
def test_a_batch_in_pieces_trains_as_the_whole_batch(method, size):
    whole, pieces = (
        bnn.fit(network(), loader(150, 0, batch=size), method=method, epochs=2, accumulate=parts)
        for parts in (1, 3)
    )
    assert torch.allclose(weights(whole), weights(pieces), atol=2e-5)
    assert whole.history[-1]["loss"] == pytest.approx(pieces.history[-1]["loss"], rel=1e-4)


def test_accumulate_is_at_least_one():
    with pytest.raises(ValueError, match="accumulate must be at least 1; got 0"):
        bnn.fit(network(), loader(64, 0), epochs=1, accumulate=0)


@pytest.mark.parametrize("method", ["proximal", "plain"])
def test_autocast_runs_in_bfloat16_and_learns(method):
    seen = set()
    model = network()
    model[0].register_forward_hook(lambda *call: seen.add(call[2].dtype))
    fit = bnn.fit(model, loader(256, 0), method=method, epochs=25, lr=1e-2, autocast=True)
    assert seen == {torch.bfloat16}
    x, y = rings(300, 2)
    assert float((fit.predict(x, 10).classes == y).float().mean()) > 0.75
    assert next(model.parameters()).dtype == torch.float32


def test_group_options_hold_for_the_parameters_that_match():
    model = network()
    last = f"{len(model) - 1}.*"
    fit = bnn.fit(
        model,
        loader(64, 0),
        epochs=1,
        lr=1e-3,
        prior_mean="current",
        group_options={last: {"lr": 1e-2, "prior_mean": 0.0}},
    )
    head, body = fit.optimizer.param_groups
    assert (head["initial_lr"], body["initial_lr"]) == (1e-2, 1e-3)
    assert (head["prior_mean"], body["prior_mean"]) == (0.0, "current")
    assert len(head["params"]) == 2
    assert len(body["params"]) == len(list(model.parameters())) - 2
    with pytest.raises(ValueError, match=r"no parameter matches 'haed\.\*'"):
        bnn.fit(network(), loader(64, 0), epochs=1, group_options={"haed.*": {"lr": 1e-2}})


def test_resuming_with_other_group_options_is_refused(tmp_path):
    file = tmp_path / "run.safetensors"
    bnn.fit(network(), loader(64, 0), epochs=1, checkpoint=file, group_options={"0.*": {"lr": 1e-2}})
    with pytest.raises(ValueError, match="its group_options is"):
        bnn.fit(network(), loader(64, 0), epochs=1, checkpoint=file, group_options={"0.*": {"lr": 1e-3}})


@pytest.mark.parametrize("policy", ["frozen", "training"])
def test_batchnorm_keeps_its_statistics_if_it_is_frozen(policy):
    model = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    before = model[1].running_mean.clone()
    bnn.fit(model, loader(64, 0), epochs=1, batchnorm=policy)
    assert torch.equal(model[1].running_mean, before) == (policy == "frozen")
    assert model[1].weight.requires_grad
    with pytest.raises(ValueError, match="policy of batchnorm called 'freeze'; did you mean 'frozen'"):
        bnn.fit(model, loader(64, 0), epochs=1, batchnorm="freeze")


def test_a_checkpoint_is_written_after_minutes(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(
        "bayescore.nn.loop.write_checkpoint", lambda path, run, state: written.append(state.unfinished)
    )
    options = {"epochs": 2, "checkpoint": tmp_path / "run.safetensors"}
    bnn.fit(network(), loader(64, 0, batch=16), checkpoint_minutes=1e-9, **options)
    assert len(written) == 10  # after each of four batches, and after each of two epochs
    written.clear()
    bnn.fit(network(), loader(64, 0, batch=16), checkpoint_minutes=60, **options)
    assert written == [None, None]
    with pytest.raises(ValueError, match="checkpoint_minutes lie between two writes"):
        bnn.fit(network(), loader(64, 0), checkpoint_minutes=1)


def test_every_epoch_is_reported():
    rows = []
    bnn.fit(network(), loader(64, 0), epochs=3, validation=loader(64, 1), callbacks=rows.append)
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all("validation_nll" in row for row in rows)


def test_plain_training_decays_to_the_weights_it_began_with():
    torch.manual_seed(0)
    models = [nn.Linear(3, 1, dtype=torch.float64) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    start = [p.detach().clone() for p in models[0].parameters()]
    x = torch.randn(8, 3, dtype=torch.float64)
    ours = PlainAdam(models[0].parameters(), 8, prior_mean="current", prior_sd=0.5)
    adam = torch.optim.Adam(models[1].parameters(), lr=1e-3)
    for _ in range(5):
        ours.zero_grad()
        models[0](x).square().mean().backward()
        ours.step()
        adam.zero_grad()
        pairs = zip(models[1].parameters(), start, strict=True)
        prior = sum((p - m0).square().sum() for p, m0 in pairs)
        (models[1](x).square().mean() + prior / (2 * 8 * 0.25)).backward()
        adam.step()
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-12)


def test_the_gradient_of_weight_dropout_is_that_of_autograd():
    torch.manual_seed(0)
    model = nn.Linear(4, 2, bias=False, dtype=torch.float64)
    start = model.weight.detach().clone()
    opt = WeightDropout(model.parameters(), 10, p=0.5, prior_sd=0.7)
    with torch.no_grad():
        model.weight += 0.3
    mean = model.weight.detach().clone().requires_grad_()
    x = torch.randn(6, 4, dtype=torch.float64)
    drawn = {}

    def closure():
        drawn["weight"] = model.weight.detach().clone()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    opt.step(closure)
    z = (drawn["weight"] == mean.detach()).double()
    assert 0 < z.mean() < 1
    theta = z * mean + (1 - z) * start
    divergence = 0.5 * (1 - 0.5) * (mean - start).square().sum() / 0.7**2
    ((x @ theta.T).square().mean() + divergence / 10).backward()
    assert torch.allclose(opt.state[model.weight]["exp_avg"], 0.1 * mean.grad, atol=1e-12)


def test_weight_dropout_draws_two_spikes_and_comes_back_from_its_file(tmp_path):
    fit = bnn.fit(network(), loader(64, 0), method="weight-dropout", epochs=2, p=0.4)
    posterior = fit.posterior
    for name, value in posterior.draw(0, 1).items():
        m, m0 = posterior.weights[name], posterior.initial[name]
        assert bool(((value == m) | (value == m0)).all())
        if value.dim() > 1:
            assert 0.2 < float((value == m0).double().mean()) < 0.6
    posterior.save(tmp_path / "net.safetensors")
    x, _ = rings(20, 3)
    again = bnn.Posterior.load(tmp_path / "net.safetensors", network())
    assert torch.equal(again.predict(x, 5).probs, posterior.predict(x, 5).probs)


@pytest.mark.parametrize("method", ["plain", "weight-dropout"])
def test_a_run_about_the_initial_weights_resumes_bitwise(tmp_path, method, monkeypatch):
    data = DataLoader(TensorDataset(*rings(64, 0)), 16)
    options = {"method": method, "prior_mean": "current", "epochs": 3}
    whole = bnn.fit(network(), data, **options)
    file = tmp_path / "run.safetensors"

    def stop(row):
        if row["epoch"] == 2:
            raise SystemExit

    with pytest.raises(SystemExit):
        bnn.fit(network(), data, checkpoint=file, callbacks=stop, **options)
    resumed = bnn.fit(network(), data, checkpoint=file, **options)
    for p, q in zip(whole.posterior.centre().values(), resumed.posterior.centre().values(), strict=True):
        assert torch.equal(p, q)

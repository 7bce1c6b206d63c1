"""Uses beyond predicting: acquisition against enumeration, pruning by a known order, exported programs,
moments against draws."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

import bayescore.nn as bnn
from bayescore.posteriors import acquisition


def small(likelihood="categorical", outputs=2, draws=3):
    """Three draws of a linear classifier, and a pool of five rows of which two are the same."""
    rng = torch.Generator().manual_seed(1)
    net = nn.Linear(2, outputs, bias=False)
    path = {"weight": 2 * torch.randn(draws, outputs, 2, generator=rng)}
    pool = torch.tensor([[1.0, 0.2], [1.0, 0.2], [-0.3, 1.0], [0.1, 0.1], [0.5, -0.8]])
    return bnn.DrawsPosterior(net, path, likelihood=likelihood), pool


def information(probs, rows):
    """I(y_B; w) by going through all labels of the rows."""
    draws, _, classes = probs.shape
    joint = 0.0
    for labels in itertools.product(range(classes), repeat=len(rows)):
        p = sum(
            math.prod(float(probs[s, i, y]) for i, y in zip(rows, labels, strict=True)) for s in range(draws)
        )
        joint -= p / draws * math.log(p / draws)
    single = -(probs * probs.log()).sum(-1).mean(0)
    return joint - sum(float(single[i]) for i in rows)


def enumerated(posterior, pool):
    outputs = [pool @ weight.T for weight in posterior.path["weight"]]
    return torch.stack([out.double().softmax(1) for out in outputs])


@pytest.mark.parametrize("outputs", [2, 3])
def test_rows_are_acquired_in_the_order_of_the_enumerated_information(outputs):
    posterior, pool = small(outputs=outputs)
    probs = enumerated(posterior, pool)
    taken = []
    for _ in range(3):
        rest = [i for i in range(5) if i not in taken]
        taken.append(max(rest, key=lambda i: information(probs, [*taken, i])))
    assert bnn.acquire(posterior, pool, 3, draws=3).tolist() == taken
    one_by_one = sorted(range(5), key=lambda i: -information(probs, [i]))
    found = bnn.acquire(posterior, pool, 3, joint=False, draws=3).tolist()
    assert [round(information(probs, [i]), 9) for i in found] == [
        round(information(probs, [i]), 9) for i in one_by_one[:3]
    ]


def test_the_batch_form_takes_no_row_twice_in_other_words():
    """Two certain draws of each of two questions: the label of one row settles its copy's."""
    net = nn.Linear(2, 2, bias=False)
    signs = [(a, b) for a in (-1.0, 1.0) for b in (-1.0, 1.0)]
    rows = torch.tensor([[[20 * a, 10 * b], [-20 * a, -10 * b]] for a, b in signs])
    posterior = bnn.DrawsPosterior(net, {"weight": rows})
    pool = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.1]])
    assert sorted(bnn.acquire(posterior, pool, 2, joint=False, draws=4).tolist()) == [0, 1]
    assert bnn.acquire(posterior, pool, 2, draws=4).tolist()[1] == 2


def test_sampled_labellings_agree_with_all_of_them(monkeypatch):
    posterior, pool = small(outputs=3)
    exact = bnn.acquire(posterior, pool, 4, draws=3).tolist()
    monkeypatch.setattr(acquisition, "LABELLINGS", 8)
    table, share = torch.rand(3, 27, dtype=torch.float64), torch.ones(27, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    totals = []
    for _ in range(4000):
        thin, weight = acquisition._thinned(table, share, rng)
        totals.append(float((weight * thin.mean(0).log()).sum()))
    assert sum(totals) / 4000 == pytest.approx(float(table.mean(0).log().sum()), rel=0.02)
    assert bnn.acquire(posterior, pool, 2, draws=3).tolist() == exact[:2]


def test_binary_outcomes_and_ensembles_are_acquired_too():
    posterior, pool = small("bernoulli", 1)
    assert len(bnn.acquire(posterior, pool, 2, draws=3)) == 2
    mixture = bnn.Ensemble([small()[0], small()[0]])
    assert (
        bnn.acquire(mixture, pool, 3, draws=6).tolist() == bnn.acquire(small()[0], pool, 3, draws=3).tolist()
    )


def test_a_pool_of_values_or_too_few_rows_is_refused():
    posterior, pool = small("gaussian", 1)
    with pytest.raises(TypeError, match="BALD is about classes, and the likelihood is 'gaussian'"):
        bnn.acquire(posterior, pool)
    with pytest.raises(ValueError, match="k is 6 and the pool has 5 rows"):
        bnn.acquire(small()[0], pool, 6)


def gaussian(likelihood="categorical", net=None):
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    mean = {name: p.detach().clone() for name, p in net.named_parameters()}
    sd = {name: 0.05 + torch.rand_like(p) * 0.2 for name, p in mean.items()}
    return bnn.GaussianPosterior(net, mean, sd, likelihood=likelihood)


def test_the_weights_of_least_signal_to_noise_are_pruned_over_all_tensors(tmp_path):
    posterior = gaussian()
    found = bnn.pruned(posterior, 0.5)
    ratio = torch.cat([(posterior.mean[n].abs() / posterior.sd[n]).flatten() for n in posterior.names])
    zero = torch.cat([(found.mean[n] == 0).flatten() for n in posterior.names])
    assert int(zero.sum()) == len(ratio) // 2
    assert ratio[zero].max() <= ratio[~zero].min()
    assert all(bool((found.sd[n][found.mean[n] == 0] == 0).all()) for n in posterior.names)
    found.save(tmp_path / "pruned.safetensors")
    again = bnn.Posterior.load(tmp_path / "pruned.safetensors", posterior.model)
    x = torch.randn(4, 3)
    assert torch.equal(again.predict(x).probs, found.predict(x).probs)


def test_pruning_nothing_changes_nothing_and_all_is_refused():
    posterior = gaussian()
    assert all(torch.equal(a, posterior.mean[n]) for n, a in bnn.pruned(posterior, 0.0).mean.items())
    with pytest.raises(ValueError, match="share must be below 1"):
        bnn.pruned(posterior, 1.0)


@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_an_exported_predictor_gives_the_predictions_of_its_posterior(likelihood, tmp_path):
    posterior, x = gaussian(likelihood), torch.randn(6, 3)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(
        bnn.Predictor(posterior, draws=7, seed=3), (x,), dynamic_shapes=(({0: rows},),)
    )
    torch.export.save(program, tmp_path / "net.pt2")
    served = torch.export.load(tmp_path / "net.pt2").module()
    for inputs in (x, torch.randn(9, 3)):
        expected = posterior.predict(inputs, 7, seed=3)
        if likelihood == "gaussian":
            mean, std = served(inputs)
            torch.testing.assert_close(mean, expected.mean)
            torch.testing.assert_close(std, expected.std)
        else:
            torch.testing.assert_close(served(inputs), expected.probs)


def test_the_mean_network_is_exported_as_it_predicts():
    posterior, x = gaussian(), torch.randn(6, 3)
    with posterior.mean_() as net:
        program = torch.export.export(net, (x,))
        expected = net(x)
    torch.testing.assert_close(program.module()(x), expected)


def test_a_predictor_of_something_without_draws_of_weights_is_refused():
    with pytest.raises(TypeError, match="holds draws of a posterior of weights; got an Ensemble"):
        bnn.Predictor(bnn.Ensemble([gaussian()]))


def onnx_session(module, x, path):
    pytest.importorskip("onnxscript", reason="torch.onnx.export needs onnxscript")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime runs the exported network")
    rows = torch.export.Dim("rows", min=2)
    shapes = (({0: rows},),) if isinstance(module, bnn.Predictor) else ({0: rows},)
    torch.onnx.export(module, (x,), path, dynamic_shapes=shapes, dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    return lambda inputs: session.run(None, {session.get_inputs()[0].name: inputs.numpy()})


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's exporter warns of torch
@pytest.mark.parametrize("likelihood", ["categorical", "bernoulli", "gaussian"])
def test_a_predictor_in_onnx_gives_the_predictions_of_its_posterior(likelihood, tmp_path):
    posterior, x = gaussian(likelihood), torch.randn(6, 3)
    served = onnx_session(bnn.Predictor(posterior, draws=7, seed=3), x, tmp_path / "net.onnx")
    for inputs in (x, torch.randn(9, 3)):
        expected = posterior.predict(inputs, 7, seed=3)
        wanted = [expected.mean, expected.std] if likelihood == "gaussian" else [expected.probs]
        for found, value in zip(served(inputs), wanted, strict=True):
            torch.testing.assert_close(torch.tensor(found), value)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_the_mean_network_in_onnx_predicts_as_it_does_here(tmp_path):
    posterior, x = gaussian(), torch.randn(6, 3)
    with posterior.mean_() as net, torch.no_grad():
        (found,) = onnx_session(net, x, tmp_path / "mean.onnx")(x)
        torch.testing.assert_close(torch.tensor(found), net(x))


def test_moments_of_a_linear_layer_are_exact():
    posterior, x = gaussian("gaussian", nn.Linear(3, 2)), torch.randn(6, 3)
    found = bnn.propagate(posterior, x)
    mean, sd = posterior.mean, posterior.sd
    variance = x.square() @ sd["weight"].square().T + sd["bias"].square()
    torch.testing.assert_close(found.mean, x @ mean["weight"].T + mean["bias"])
    torch.testing.assert_close(found.epistemic_std, variance.sqrt())


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU])
@pytest.mark.parametrize("hidden", [1, 2])
def test_propagated_moments_are_those_of_many_draws(activation, hidden):
    torch.manual_seed(0)
    layers = [layer for _ in range(hidden) for layer in (nn.LazyLinear(16), activation(), nn.Dropout())]
    net = nn.Sequential(nn.Flatten(), *layers, nn.LazyLinear(2))
    x = torch.randn(6, 1, 3)
    net(x)
    posterior = gaussian("gaussian", net)
    found, drawn = bnn.propagate(posterior, x), posterior.predict(x, 20_000)
    assert ((found.mean - drawn.mean).abs() < 0.04 * drawn.epistemic_std).all()
    torch.testing.assert_close(found.epistemic_std, drawn.epistemic_std, rtol=0.03, atol=0)


def test_propagated_class_probabilities_are_those_of_many_draws():
    posterior, x = gaussian(), torch.randn(6, 3)
    torch.testing.assert_close(
        bnn.propagate(posterior, x).probs, posterior.predict(x, 20_000).probs, rtol=0, atol=0.005
    )


def test_moments_stop_at_a_module_that_they_cannot_pass():
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(TypeError, match="the network has a LayerNorm: use"):
        bnn.propagate(gaussian(net=net), torch.randn(6, 3))
    with pytest.raises(TypeError, match="propagated for a Gaussian posterior; got a DrawsPosterior"):
        bnn.propagate(*small())
    with pytest.raises(ValueError, match="first layer takes 3 columns"):
        bnn.propagate(gaussian(), torch.randn(6, 5))

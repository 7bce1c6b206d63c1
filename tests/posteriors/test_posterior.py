"""Posteriors of networks: draws, predictions, files."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_networks import NETWORKS, OPTIMIZERS, train
from torch import nn

from bayescore.nn import DrawsPosterior, Ensemble, GaussianPosterior, PointPosterior, Posterior, select
from bayescore.posteriors.likelihoods import Gaussian
from bayescore.posteriors.prediction import ClassPrediction, ValuePrediction
from file_damage import check_that_damage_is_refused, header_of, mutated, read_or_refused, with_header

CONV = NETWORKS["conv"]


def trained(shell: str = "proximal", network: str = "conv"):  # type: ignore[no-untyped-def]
    case = NETWORKS[network]
    model = case.module()
    opt = OPTIMIZERS[shell](model.parameters(), 50)
    train(opt, case, model, 4)
    return model, opt.posterior(model)


@pytest.mark.parametrize("shell", ["proximal", "sgld"])
def test_prediction_is_deterministic_and_leaves_the_model_as_it_was(shell: str) -> None:
    model, posterior = trained(shell)
    model.train()
    model.norm.eval()
    before = copy.deepcopy(model.state_dict())
    x, y = CONV.batch(n=7)
    one = posterior.predict(x, draws=4, seed=1)
    two = posterior.predict(x, draws=4, seed=1, batch_size=3)
    torch.testing.assert_close(one.probs, two.probs)
    assert not torch.equal(one.probs, posterior.predict(x, draws=4, seed=2).probs)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training
    assert not model.norm.training
    torch.testing.assert_close(one.probs.sum(1), torch.ones(7))
    assert (one.mutual_information >= 0).all()
    assert (one.entropy >= one.mutual_information).all()
    torch.testing.assert_close(one.log_prob(y), one.probs[torch.arange(7), y].log())


def test_a_prediction_is_the_average_over_single_draws() -> None:
    model, posterior = trained()
    x, _ = CONV.batch(n=5)
    singles = []
    for index in range(3):
        with torch.no_grad():
            live = dict(model.named_parameters())
            for name, value in posterior.draw(0, index).items():
                live[name].copy_(value)
            singles.append(model.eval()(x).softmax(1))
    torch.testing.assert_close(posterior.predict(x, draws=3).probs, torch.stack(singles).mean(0))


def test_a_draw_can_be_used_in_a_block() -> None:
    model, posterior = trained()
    x, _ = CONV.batch()
    with posterior.sample_(seed=0) as drawn:
        torch.testing.assert_close(drawn(x).softmax(1), posterior_draw(posterior, x))
    with pytest.raises(KeyError), posterior.sample_():
        raise KeyError
    with posterior.mean_() as centred:
        assert torch.equal(centred.head.weight, posterior.centre()["head.weight"])
    assert all(torch.isfinite(p).all() for p in model.parameters())


def posterior_draw(posterior: Posterior, x: torch.Tensor) -> torch.Tensor:
    model = copy.deepcopy(posterior.model)
    return GaussianPosterior(model, posterior.mean, posterior.sd).predict(x, draws=1).probs  # type: ignore[attr-defined]


def test_later_training_does_not_change_a_posterior() -> None:
    case = NETWORKS["conv"]
    model = case.module()
    opt = OPTIMIZERS["proximal"](model.parameters(), 50)
    train(opt, case, model, 3)
    posterior = opt.posterior(model)
    x, _ = case.batch()
    before = posterior.predict(x, draws=2).probs
    train(opt, case, model, 3, first=3)
    assert torch.equal(posterior.predict(x, draws=2).probs, before)


def test_batchnorm_statistics_can_be_estimated_anew() -> None:
    model, posterior = trained()
    x, _ = CONV.batch(n=16)
    before = copy.deepcopy(model.state_dict())
    shifted = posterior.predict(x, draws=2, recalibrate=[(10 * x,)]).probs
    assert not torch.allclose(shifted, posterior.predict(x, draws=2).probs)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.norm.momentum == 0.1


def test_values_have_intervals_of_the_right_size() -> None:
    """One linear output with weight N(0, 1) and noise 0.5: at x the prediction is N(0, x^2 + 0.25)."""
    model = nn.Linear(1, 1, bias=False)
    zero, one = {"weight": torch.zeros(1, 1)}, {"weight": torch.ones(1, 1)}
    posterior = GaussianPosterior(model, zero, one, likelihood=Gaussian(0.5))
    x = torch.tensor([[0.0], [2.0]])
    prediction = posterior.predict(x, draws=4000)
    assert isinstance(prediction, ValuePrediction)
    sd = (x.square() + 0.25).sqrt()
    torch.testing.assert_close(prediction.std, sd, rtol=0.05, atol=0)
    torch.testing.assert_close(prediction.epistemic_std, x, rtol=0.05, atol=1e-6)
    low, high = prediction.interval(0.9)
    torch.testing.assert_close(high, 1.645 * sd, rtol=0.07, atol=0)
    torch.testing.assert_close(low, -1.645 * sd, rtol=0.07, atol=0)
    normal = torch.distributions.Normal(torch.zeros(2, 1), sd)
    y = torch.tensor([[0.3], [1.0]])
    torch.testing.assert_close(prediction.log_prob(y), normal.log_prob(y).squeeze(1), rtol=0.05, atol=0.02)
    with pytest.raises(AttributeError, match="has no probs"):
        _ = prediction.probs
    with pytest.raises(ValueError, match="level"):
        prediction.interval(1.0)


def test_count_quantiles_are_whole_and_cover() -> None:
    model = nn.Linear(1, 1, bias=False)
    posterior = GaussianPosterior(
        model, {"weight": torch.ones(1, 1)}, {"weight": torch.full((1, 1), 1e-6)}, likelihood="poisson"
    )
    prediction = posterior.predict(torch.tensor([[2.0]]), draws=3)
    counts = torch.arange(60.0)
    mass = torch.distributions.Poisson(torch.tensor(2.0).exp()).log_prob(counts).exp().cumsum(0)
    for q in (0.05, 0.5, 0.95):
        assert float(prediction.quantile(q)) == float((mass < q).sum())


def test_mutual_information_is_what_the_draws_disagree_about() -> None:
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    prediction = ClassPrediction(2, certain.mean(0, keepdim=True), torch.zeros(1))
    torch.testing.assert_close(prediction.mutual_information, torch.tensor([2.0]).log())


@pytest.mark.parametrize("shell", ["proximal", "sgld"])
def test_a_saved_posterior_predicts_the_same_in_a_fresh_model(shell: str, tmp_path: Path) -> None:
    _, posterior = trained(shell)
    posterior.save(tmp_path / "net.safetensors")
    fresh = CONV.module(seed=9)
    loaded = Posterior.load(tmp_path / "net.safetensors", fresh)
    x, _ = CONV.batch()
    assert torch.equal(loaded.predict(x, draws=3).probs, posterior.predict(x, draws=3).probs)
    assert torch.equal(fresh.head.weight, posterior.centre()["head.weight"])
    assert list(tmp_path.iterdir()) == [tmp_path / "net.safetensors"]


def test_learned_noise_is_saved_and_a_callable_is_asked_for(tmp_path: Path) -> None:
    case = NETWORKS["tied"]
    model = case.module()
    opt = OPTIMIZERS["advi"](model.parameters(), 50)
    train(opt, case, model, 1)
    like = Gaussian("learned")
    with torch.no_grad():
        like.log_noise.fill_(0.25)
    opt.posterior(model, like).save(tmp_path / "a.safetensors")
    assert float(Posterior.load(tmp_path / "a.safetensors", model).likelihood.log_noise.detach()) == 0.25
    opt.posterior(model, lambda o, y: (o - y).square().mean()).save(tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match="pass likelihood="):
        Posterior.load(tmp_path / "b.safetensors", model)
    Posterior.load(tmp_path / "b.safetensors", model, likelihood=lambda o, y: (o - y).square().mean())


def test_files_that_are_not_this_models_posterior_are_refused(tmp_path: Path) -> None:
    _, posterior = trained(network="mlp")
    path = tmp_path / "net.safetensors"
    posterior.save(path)
    case = NETWORKS["mlp"]
    with pytest.raises(ValueError, match="another model"):
        Posterior.load(path, nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)))
    with pytest.raises(FileNotFoundError, match="no saved posterior"):
        Posterior.load(tmp_path / "nowhere", case.module())
    data = path.read_bytes()
    for name, content in {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "pickle": b"\x80\x04\x95" + data,
        "text": b"hello" * 100,
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="not a readable bayescore posterior"):
            Posterior.load(tmp_path / name, case.module())
    tensors = load_file(path)
    save_file(tensors, tmp_path / "plain")
    with pytest.raises(ValueError, match="not a readable bayescore posterior"):
        Posterior.load(tmp_path / "plain", case.module())
    header = header_of(path)
    tensors["random.mean.0.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "lie")
    with_header(tmp_path / "lie", header)
    with pytest.raises(ValueError, match="damaged"):
        Posterior.load(tmp_path / "lie", case.module())


@pytest.mark.parametrize("members", [1, 2])
def test_a_flipped_bit_or_a_cut_anywhere_is_refused_and_the_model_is_as_it_was(
    members: int, tmp_path: Path
) -> None:
    path, model = tmp_path / "net.safetensors", NETWORKS["mlp"].module(seed=4)
    _, gaussian = trained(network="mlp")
    posterior = gaussian if members == 1 else Ensemble([gaussian] * members)
    posterior.save(path)
    check_that_damage_is_refused(path, lambda: Posterior.load(path, model), flips=300, cuts=100)
    assert all(map(torch.equal, model.parameters(), gaussian.model.parameters()))


def test_any_header_is_refused_by_a_sentence_or_read(tmp_path: Path) -> None:
    """The checksum is right, so that the header itself is judged."""
    path, rng, read = tmp_path / "net.safetensors", random.Random(1), 0
    _, gaussian = trained(network="mlp")
    x, _ = NETWORKS["mlp"].batch()
    for posterior in (gaussian, PointPosterior(gaussian.model), Ensemble([gaussian] * 2)):
        posterior.save(path)
        valid = header_of(path)
        for _ in range(200):
            with_header(path, mutated(valid, rng))
            found = read_or_refused(path, lambda: Posterior.load(path, NETWORKS["mlp"].module(seed=4)))
            if found is None:
                continue
            read += 1
            assert found.predict(x, 2).probs.isfinite().all()
    assert 0 < read < 300


def test_ensembles_nested_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    _, gaussian = trained(network="mlp")
    gaussian.save(path)
    inner = json.dumps(header_of(path))
    for depth in (100, 300, 400, 3000):
        start = '{"format": "bayescore-network-1", "kind": "ensemble", "members": ['
        with_header(path, start * depth + inner + "]}" * depth)
        with pytest.raises(ValueError, match=r"its header is nested too deeply|is damaged"):
            Posterior.load(path, NETWORKS["mlp"].module())


@pytest.mark.parametrize("kind", ["gaussian", "point", "ensemble"])
def test_a_file_with_strange_options_is_refused_and_the_model_is_as_it_was(kind: str, tmp_path: Path) -> None:
    path, model = tmp_path / "net.safetensors", NETWORKS["mlp"].module(seed=4)
    _, gaussian = trained(network="mlp")
    kinds = {
        "gaussian": gaussian,
        "point": PointPosterior(gaussian.model),
        "ensemble": Ensemble([gaussian] * 2),
    }
    kinds[kind].save(path)
    header = header_of(path)
    config = {"temperature": "x"} if kind == "point" else {"x": 1}
    (header["members"][1] if kind == "ensemble" else header)["config"] = config
    with_header(path, header)
    with pytest.raises(ValueError, match="not a readable bayescore posterior") as caught:
        Posterior.load(path, model)
    assert "checksum" not in str(caught.value)
    same = zip(model.parameters(), NETWORKS["mlp"].module(seed=4).parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in same)


def test_a_kind_of_ones_own_is_saved_and_loaded_and_takes_no_other_kinds_place(tmp_path: Path) -> None:
    class Doubled(GaussianPosterior):
        kind = "doubled"

    class Impostor(GaussianPosterior):
        kind = "gaussian"

    model, gaussian = trained(network="mlp")
    for kind, loaded in ((Doubled, Doubled), (Impostor, GaussianPosterior)):
        kind(model, gaussian.mean, gaussian.sd).save(tmp_path / "net.safetensors")
        found = Posterior.load(tmp_path / "net.safetensors", NETWORKS["mlp"].module())
        assert type(found) is loaded
        x, _ = NETWORKS["mlp"].batch()
        assert torch.equal(found.predict(x, 2).probs, gaussian.predict(x, 2).probs)


def test_a_set_of_draws_uses_every_member_once() -> None:
    model = nn.Linear(1, 1, bias=False)
    path = {"weight": torch.arange(5.0).reshape(5, 1, 1)}
    posterior = DrawsPosterior(model, path, likelihood="gaussian")
    prediction = posterior.predict(torch.ones(1, 1), draws=5, seed=3)
    assert sorted(prediction.outputs.flatten().tolist()) == [0, 1, 2, 3, 4]


def test_parameters_are_selected_by_pattern_layer_and_kind() -> None:
    model = CONV.module()
    assert [n for n, _ in select(model, "last")] == ["head.weight", "head.bias"]
    assert [n for n, _ in select(model, exclude="norms")] == [
        "conv.weight", "conv.bias", "head.weight", "head.bias",
    ]  # fmt: skip
    model.conv.bias.requires_grad_(False)
    assert [n for n, _ in select(model, ["conv.*", "*.bias"], exclude="norm.*")] == [
        "conv.weight",
        "head.bias",
    ]
    with pytest.raises(ValueError, match="did you mean"):
        select(model, "heads.weight")
    with pytest.raises(ValueError, match="no trainable parameter"):
        select(model, "conv.bias")

"""Classifiers by name: their sizes, their heads, their weights, their frozen stages and their adapters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import bayescore.models as models
from bayescore.operators import declare_vision_operators

declare_vision_operators()


@pytest.mark.parametrize(("name", "body"), [("resnet101", 42_500_160), ("vit_l_32", 305_510_400)])
def test_the_papers_networks_have_the_papers_bodies(name, body):
    pytest.importorskip("torchvision")
    with torch.device("meta"):
        assert models.image_classifier(name, 37).body_size == body


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("resnet18", "fc"),
        ("mobilenet_v2", "classifier.1"),
        ("squeezenet1_1", "classifier.1"),
        ("vit_b_32", "heads.head"),
        ("densenet121", "classifier"),
        ("convnext_tiny", "classifier.2"),
    ],
)
def test_the_head_is_replaced_wherever_the_library_has_it(name, head):
    pytest.importorskip("torchvision")
    with torch.device("meta"):
        found = models.image_classifier(name, 5)
    assert found.head == head
    assert found.module.get_submodule(head).weight.shape[0] == 5


def test_a_network_of_timm_is_built():
    pytest.importorskip("timm")
    found = models.image_classifier("timm/resnet10t", 3, size=32)
    assert found.module.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 3)
    with pytest.raises(ValueError, match="no network of timm called 'resnet10x'; did you mean"):
        models.image_classifier("timm/resnet10x", 3)


def test_the_first_loss_is_that_of_equal_probabilities():
    pytest.importorskip("torchvision")
    found = models.image_classifier("mobilenet_v2", 7, size=32)
    outputs = found.module.eval()(torch.randn(4, 3, 32, 32)).detach()
    assert float(nn.functional.cross_entropy(outputs, torch.tensor([0, 1, 2, 3]))) == pytest.approx(np.log(7))


@pytest.mark.parametrize("kind", [".safetensors", ".pth", ".npz", "prefixed.pth", "nested.pt"])
def test_weights_come_from_files_of_every_kind(tmp_path, kind):
    torch.manual_seed(1)
    there = models.small_cnn(10)
    state = dict(there.state_dict())
    path = tmp_path / f"weights{kind}"
    if kind == ".safetensors":
        save_file(state, path)
    elif kind == ".npz":
        np.savez(path, **{name: value.numpy() for name, value in state.items()})
    elif kind == "prefixed.pth":
        torch.save({f"module.{name}": value for name, value in state.items()}, path)
    elif kind == "nested.pt":
        torch.save({"state_dict": state, "epoch": 3}, path)
    else:
        torch.save(state, path)
    found = models.image_classifier("small", 3, weights=path)
    for name, value in found.module.state_dict().items():
        assert name.startswith(found.head) or torch.equal(value, state[name])


def test_files_that_are_not_the_networks_weights_are_refused_in_a_sentence(tmp_path):
    def load(path):
        models.image_classifier("small", 3, weights=path)

    torch.save({"a": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"lacks '0\.weight'"):
        load(tmp_path / "other.pth")
    state = models.small_cnn(3).state_dict()
    torch.save({**state, "0.weight": torch.zeros(2)}, tmp_path / "shape.pth")
    with pytest.raises(ValueError, match=r"of another network: 0\.weight is \(2,\) there"):
        load(tmp_path / "shape.pth")
    (tmp_path / "code.pth").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(ValueError, match=r"code\.pth is no readable file of weights"):
        load(tmp_path / "code.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "object.pth")
    with pytest.raises(ValueError, match="no readable file of weights"):
        load(tmp_path / "object.pth")
    (tmp_path / "weights.txt").write_text("")
    with pytest.raises(ValueError, match="weights must end in"):
        load(tmp_path / "weights.txt")


@pytest.mark.parametrize(
    ("name", "freeze"),
    [("resnet18", 6), ("mobilenet_v2", 15), ("vit_b_32", 3), ("small", 3), ("efficientnet_b0", 4)],
)
def test_a_network_in_stages_is_the_network(name, freeze):
    if name != "small":
        pytest.importorskip("torchvision")

    def make(**options):
        torch.manual_seed(0)
        return models.image_classifier(name, 3, size=32, head="random", **options).module.eval()

    whole, cut = make(), make(freeze=freeze)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(whole(x), cut(x), atol=1e-5)
        assert torch.allclose(cut(cut.features(x)), cut(x), atol=1e-5)
    assert not any(p.requires_grad for p in cut.stem.parameters())
    assert sum(p.numel() for p in cut.parameters()) == sum(p.numel() for p in whole.parameters())
    assert not cut.train().stem.training


def test_adapters_change_nothing_before_they_are_trained_and_little_is_trained():
    pytest.importorskip("torchvision")

    def make(rank):
        torch.manual_seed(0)
        return models.image_classifier("vit_b_32", 3, size=32, head="random", adapters=rank).module.eval()

    whole, adapted = make(0), make(4)
    with torch.no_grad():
        adapted.heads.head.load_state_dict(whole.heads.head.state_dict())
        x = torch.randn(2, 3, 32, 32)
        assert torch.allclose(whole(x), adapted(x), atol=1e-5)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained < 0.02 * sum(p.numel() for p in whole.parameters())
    adapted(x).sum().backward()
    own = dict(adapted.named_parameters())
    in_proj = "encoder.layers.encoder_layer_0.self_attention.parametrizations.in_proj_weight.0.b"
    assert own[in_proj].grad.abs().max() > 0  # also where a function uses the weight


def test_a_module_of_the_users_own_gets_a_head():
    found = models.classifier(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1000)), 3)
    assert (found.head, found.body_size) == ("2", 40)
    with pytest.raises(ValueError, match="no linear layer at its end"):
        models.classifier(nn.Sequential(nn.Conv2d(3, 4, 3)), 3)
    with pytest.raises(ValueError, match="a single layer"):
        models.classifier(nn.Linear(3, 4), 3)


def test_lite_pads_within_its_convolutions_and_computes_the_same():
    package = pytest.importorskip("efficientnet_lite_pytorch")
    found = models.image_classifier("efficientnet_lite0", 5, size=48, head="random").module
    theirs = package.EfficientNet.from_name("efficientnet-lite0")
    theirs._fc = nn.Linear(found._fc.in_features, 5)
    theirs.load_state_dict(found.state_dict())
    x = torch.randn(2, 3, 48, 48)
    for module in (found, theirs):
        module.eval().requires_grad_(False)
    torch.testing.assert_close(found(x), theirs(x), rtol=1e-4, atol=1e-5)
    layers = [m for m in found.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (5, 5)]
    assert sum(layer.padding == (2, 2) for layer in layers) > len(layers) / 2


def test_a_module_where_a_name_belongs_is_told_where_it_belongs():
    with pytest.raises(TypeError, match=r"give your own module to bs\.models\.classifier"):
        models.image_classifier(nn.Linear(2, 2), 3)

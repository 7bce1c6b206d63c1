"""What becomes of BatchNorm's statistics in fine-tuning: frozen, learned in training, or estimated again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bayescore.data.batches import Batches
from bayescore.finetune.training import FineTuning, fine_tune
from bayescore.models.networks import classifier
from bayescore.models.stages import freeze_stages
from bayescore.operators import declare_vision_operators
from bayescore.posteriors.forward import own_tensors
from bayescore.posteriors.gaussian import GaussianPosterior

ROWS, CLASSES = 40, 3


def network(frozen=0):
    """Two convolutions with BatchNorm, whose statistics are those of other data than the tests'."""
    torch.manual_seed(0)
    stages = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4),
              nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # fmt: skip
    module = nn.Sequential(*stages, nn.Linear(4, 2))
    module.train()
    for _ in range(20):
        module(torch.randn(16, 3, 8, 8) + 1)
    found = classifier(module, CLASSES)
    if frozen:
        module = freeze_stages(module, found.head, frozen, (3, 8, 8))
        return type(found)(module, "head")
    return found


def rows():
    rng = torch.Generator().manual_seed(1)
    y = torch.randint(CLASSES, (ROWS,), generator=rng)
    return torch.randn(ROWS, 3, 8, 8, generator=rng) + y[:, None, None, None], y


def tuned(policy, method="proximal", frozen=0):
    x, y = rows()
    if frozen:
        x = network(frozen).module.features(x)
    settings = FineTuning(method=method, epochs=3, batch_size=8, batchnorm=policy, draws=2)

    def batches(seed=None):
        return Batches(lambda chosen, _: x[chosen], y, 8, seed)

    posterior, _ = fine_tune(
        lambda: network(frozen), batches, batches(), settings, plain=batches, progress=False
    )
    return posterior, x


def statistics(tensors):
    return {name: value.detach().clone() for name, value in tensors.items() if "running" in name}


def expected(posterior, x):
    """The mean over the batches of the mean and the variance that every BatchNorm sees, written out."""
    with posterior.mean_() as model:
        seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}

        def note(name):
            def hook(_, inputs):
                flat = inputs[0].transpose(0, 1).flatten(1)
                seen.setdefault(name, []).append((flat.mean(1), flat.var(1)))

            return hook

        layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)}
        hooks = [layer.register_forward_pre_hook(note(name)) for name, layer in layers.items()]
        for layer in layers.values():  # a layer sees what the one before it makes of this batch
            layer.train()
        with torch.no_grad():
            for part in x.split(8):
                model(part)
        for hook in hooks:
            hook.remove()
        for layer in layers.values():
            layer.eval()
    return {
        f"{name}.running_{word}": torch.stack([pair[i] for pair in pairs]).mean(0)
        for name, pairs in seen.items()
        for i, word in enumerate(("mean", "var"))
    }


@pytest.mark.parametrize("method", ["proximal", "swag"])
def test_statistics_that_are_estimated_again_are_those_of_the_training_data_at_the_mean(method):
    posterior, x = tuned("re-estimated", method)
    found = statistics(posterior.fixed)
    assert len(found) == 4
    for name, value in expected(posterior, x).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_frozen_statistics_are_those_of_the_pretrained_network_and_others_are_not():
    before = statistics(own_tensors(network().module))
    found = {policy: statistics(tuned(policy)[0].fixed) for policy in ("frozen", "training", "re-estimated")}
    for name, value in before.items():
        assert torch.equal(found["frozen"][name], value)
        assert not torch.allclose(found["training"][name], value, rtol=0.01)
        assert not torch.allclose(found["re-estimated"][name], value, rtol=0.01)


def test_frozen_stages_keep_their_statistics_when_the_others_are_estimated_again(tmp_path: Path):
    before = statistics(own_tensors(network(3).module))
    posterior, features = tuned("re-estimated", frozen=3)
    found = statistics(posterior.fixed)
    for name, value in before.items():
        assert torch.equal(found[name], value) == name.startswith("stem"), name
    posterior.save(tmp_path / "model.safetensors")
    again = GaussianPosterior.load(tmp_path / "model.safetensors", network(3).module)
    assert torch.equal(again.predict(rows()[0], 2).probs, posterior.predict(features, 2).probs)


def test_laplace_linearises_the_network_with_the_statistics_that_were_estimated_again():
    declare_vision_operators()  # laplace-torch imports torchvision if it is there
    pytest.importorskip("laplace")
    posterior, _ = tuned("re-estimated", "laplace")
    plain, _ = tuned("re-estimated", "plain")
    old, _ = tuned("frozen", "plain")
    found = statistics(own_tensors(posterior.model))
    assert torch.equal(found["1.running_mean"], statistics(plain.fixed)["1.running_mean"])
    assert not torch.equal(found["1.running_mean"], statistics(old.fixed)["1.running_mean"])

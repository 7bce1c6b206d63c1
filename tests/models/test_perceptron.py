"""The perceptron of the MNIST experiment."""

from __future__ import annotations

import pytest
import torch

from bayescore.models import mlp


def test_it_flattens_images_and_ends_without_activation():
    out = mlp(784, (20, 20), 10)(torch.randn(3, 28, 28))
    assert out.shape == (3, 10)
    assert bool((out < 0).any())


def test_a_width_must_be_positive():
    with pytest.raises(ValueError, match="width"):
        mlp(784, (0,), 10)

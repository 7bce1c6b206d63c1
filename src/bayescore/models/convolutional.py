"""A small convolutional network for trials, and for pictures that no pretrained network has seen."""

from __future__ import annotations

from torch import nn

__all__ = ["small_cnn"]

WIDTHS = (16, 32, 64)


def small_cnn(classes: int, channels: int = 3) -> nn.Sequential:
    """Three convolutions with ReLU and pooling, the mean over the map, and a linear head."""
    layers: list[nn.Module] = []
    before = channels
    for width in WIDTHS:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

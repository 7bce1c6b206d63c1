"""The activation modules of torch that act on every unit by itself."""

from __future__ import annotations

from torch import nn

__all__ = ["ACTIVATIONS"]

ACTIVATIONS = (
    nn.CELU, nn.ELU, nn.GELU, nn.GLU, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.RReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softsign,
    nn.Tanh, nn.Tanhshrink,
)  # fmt: skip

"""Triangular factors L as unconstrained matrices R: R equals L below the diagonal and log L on it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["derivative", "factor_from_raw", "lower_triangle", "raw_from_factor"]


def raw_from_factor(factor: Tensor) -> Tensor:
    """R from L: the logarithm on the diagonal."""
    return torch.where(_masks(factor)[0], factor.abs().log(), factor.tril())


def factor_from_raw(raw: Tensor) -> Tensor:
    """L from R: the exponential on the diagonal, and zeros above it whatever R holds there."""
    diagonal, lower = _masks(raw)
    return torch.where(diagonal, raw.exp(), raw * lower)


def derivative(factor: Tensor) -> Tensor:
    """dL/dR entrywise: L_ii on the diagonal, one below it."""
    diagonal, lower = _masks(factor)
    return torch.where(diagonal, factor, lower)


def lower_triangle(matrix: Tensor) -> Tensor:
    """Ones strictly below the diagonal, zeros elsewhere, (D, D)."""
    return _masks(matrix)[1]


def _masks(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The diagonal (bool) and the strictly lower triangle (ones) of a D x D matrix."""
    return _make_masks(matrix.shape[-1], matrix.dtype, matrix.device)


@lru_cache(maxsize=32)
def _make_masks(dim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):
        ones = torch.ones(dim, dim, dtype=dtype, device=device)
        return torch.eye(dim, dtype=torch.bool, device=device), ones.tril(-1)

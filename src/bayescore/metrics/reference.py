"""How far draws are from reference draws of the same quantities, in standard deviations of the reference.

With m, s the means and standard deviations of the draws and m*, s* those of the reference, per coordinate:
    mean error  |m - m*| / s*                                                                          (1)
    sd error    |s - s*| / s*                                                                          (2)
Sliced Wasserstein distance: over directions w uniform on the sphere, in coordinates divided by s*,
    E_w  int_0^1 |F_w^{-1}(p) - G_w^{-1}(p)| dp                                                        (3)
F_w, G_w the laws of w . x. A shift of all mass by one s* along one of D coordinates gives E|w_1|, about
sqrt(2 / (pi D)). Both errors of exact draws are of the order 1/sqrt(n), and so is (3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayescore.rng import generator

__all__ = ["Comparison", "compare_draws", "mean_errors", "sd_errors", "sliced_wasserstein"]

QUANTILES = 500


@dataclass(frozen=True)
class Comparison:
    """Errors of draws against reference draws, per coordinate and overall."""

    names: tuple[str, ...]
    mean_errors: Tensor  # (D,)
    sd_errors: Tensor  # (D,)
    sliced_wasserstein: float

    @property
    def mean_error(self) -> float:
        """The root mean square of the mean errors."""
        return float(self.mean_errors.square().mean().sqrt())

    @property
    def sd_error(self) -> float:
        """The root mean square of the sd errors."""
        return float(self.sd_errors.square().mean().sqrt())

    def __str__(self) -> str:
        worst_mean, worst_sd = int(self.mean_errors.argmax()), int(self.sd_errors.argmax())
        return (
            f"mean error {self.mean_error:.3f} (most: {float(self.mean_errors[worst_mean]):.3f}, "
            f"{self.names[worst_mean]}), sd error {self.sd_error:.3f} "
            f"(most: {float(self.sd_errors[worst_sd]):.3f}, {self.names[worst_sd]}), "
            f"sliced Wasserstein {self.sliced_wasserstein:.3f}, in posterior standard deviations"
        )


def mean_errors(draws: Tensor, reference: Tensor) -> Tensor:
    """(1) of draws (n, D) against reference draws (N, D), (D,)."""
    draws, reference, sd = _checked(draws, reference)
    return (draws.mean(0) - reference.mean(0)).abs() / sd


def sd_errors(draws: Tensor, reference: Tensor) -> Tensor:
    """(2) of draws (n, D) against reference draws (N, D), (D,)."""
    draws, _, sd = _checked(draws, reference)
    return (draws.std(0) - sd).abs() / sd


def sliced_wasserstein(draws: Tensor, reference: Tensor, *, directions: int = 200, seed: int = 0) -> float:
    """(3) between draws (n, D) and reference draws (N, D), over random directions and a grid of quantiles."""
    draws, reference, sd = _checked(draws, reference)
    rng = generator(seed, purpose="slices")
    w = torch.randn(draws.shape[1], directions, generator=rng, dtype=torch.float64)
    w = w / w.norm(dim=0)
    p = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    sides = [_quantiles((x / sd) @ w, p) for x in (draws, reference)]  # (Q, directions) each
    return float((sides[0] - sides[1]).abs().mean())


def compare_draws(draws: Tensor, reference: Tensor, names: Sequence[str] | None = None) -> Comparison:
    """All errors of draws (n, D) against reference draws (N, D).

    >>> rng = torch.Generator().manual_seed(0)
    >>> x = torch.randn(1000, 2, generator=rng, dtype=torch.float64)
    >>> compare_draws(x, x).mean_error
    0.0
    """
    names = tuple(names) if names is not None else tuple(f"x[{i + 1}]" for i in range(draws.shape[-1]))
    if len(names) != draws.shape[-1]:
        raise ValueError(f"{draws.shape[-1]} coordinates need {draws.shape[-1]} names; got {len(names)}")
    return Comparison(
        names,
        mean_errors(draws, reference),
        sd_errors(draws, reference),
        sliced_wasserstein(draws, reference),
    )


def _quantiles(x: Tensor, p: Tensor) -> Tensor:
    """Quantiles (Q, k) of the columns of x (n, k), linear between the order statistics."""
    ordered = x.sort(0).values
    position = (p * len(x) - 0.5).clamp(0, len(x) - 1)
    low = position.floor().long()
    high = (low + 1).clamp_max(len(x) - 1)
    return torch.lerp(ordered[low], ordered[high], (position - low).unsqueeze(-1))


def _checked(draws: Tensor, reference: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Both in double precision, and s*."""
    for name, x in (("draws", draws), ("reference", reference)):
        if x.dim() != 2 or len(x) < 2:
            raise ValueError(f"{name} must be at least two draws (n, D); got the shape {tuple(x.shape)}")
    if draws.shape[1] != reference.shape[1]:
        raise ValueError(
            f"draws have {draws.shape[1]} coordinates and the reference {reference.shape[1]}; "
            "give the same quantities"
        )
    draws, reference = draws.detach().cpu().double(), reference.detach().cpu().double()
    sd = reference.std(0)
    if not bool((sd > 0).all()):
        raise ValueError(f"{int((sd == 0).sum())} coordinates of the reference do not vary; leave them out")
    return draws, reference, sd

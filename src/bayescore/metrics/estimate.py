"""A number with its Monte Carlo error."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Estimate"]


class Estimate(NamedTuple):
    """A Monte Carlo estimate.

    >>> print(Estimate(1.2345, 0.01))
    1.234 ± 0.010
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:z.3f} ± {self.error:.3f}"  # z: no minus before a zero

    def __float__(self) -> float:
        return self.value

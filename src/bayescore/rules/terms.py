"""What a rule tells about a step besides the new state: terms with one number per weight.

Each parameter tensor's totals over its weights are kept: the sum of a term, or its largest value.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Largest", "Terms"]


class Largest(NamedTuple):
    """A term of which the largest value is wanted, not the sum."""

    values: Tensor


Terms = tuple[Tensor | Largest, ...]

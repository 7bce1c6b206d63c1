"""Random streams: one generator per fit, so that no fit depends on the others.

F fits that run together have F generators. Every random tensor has a leading dimension F, and row f comes
from generator f alone: the same seed gives the same numbers whether a fit runs alone or with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from numbers import Integral

import torch
from torch import Tensor

__all__ = ["Streams", "check_seed", "generator"]

MANY = 100  # times a subset: a permutation of a larger population would be wasteful


def generator(
    seed: int | torch.Generator | None, device: torch.device | str = "cpu", purpose: str = ""
) -> torch.Generator:
    """A generator from a seed; a generator is returned unchanged, None means a random seed.

    One seed gives independent numbers for different purposes: a target, a family and a fit with the seed 0
    must not share random numbers.
    """
    if isinstance(seed, torch.Generator):
        return seed
    rng = torch.Generator(device=device)
    if seed is None:
        rng.seed()
    elif isinstance(seed, Integral) and not isinstance(seed, bool):
        seed = int(seed)
        check_seed(seed)
        mixed = blake2b(f"{purpose}:{seed}".encode(), digest_size=7).digest()
        rng.manual_seed(int.from_bytes(mixed) if purpose else seed)
    else:
        raise TypeError(f"a seed is an int, a torch.Generator or None; got {seed!r}")
    return rng


def check_seed(seed: int) -> None:
    """Raise unless torch's generators, and the files of fits, can hold the seed."""
    if not -(2**63) <= seed < 2**64:
        raise ValueError(f"a seed must be from -2^63 to 2^64 - 1; got a number of {seed.bit_length()} bits")


class Streams:
    """F independent random streams, drawn together as tensors (F, ...)."""

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if not seeds:
            raise ValueError("at least one seed is needed")
        self.dtype = dtype
        self.device = torch.device(device)
        self.generators = [generator(seed, self.device, "fit") for seed in seeds]

    def __len__(self) -> int:
        return len(self.generators)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (F, *shape)."""
        return self._gather(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), (F, *shape)."""
        return self._gather(torch.rand, shape)

    def subsets(self, population: int, size: int) -> Tensor:
        """Indices (F, size) drawn without replacement from range(population)."""
        return torch.stack([_subset(population, size, g) for g in self.generators])

    def rows(self) -> list[Tensor]:
        """The state of every generator, (bytes,) each."""
        return [g.get_state() for g in self.generators]

    def state(self) -> Tensor:
        """The state of every generator, (F, bytes)."""
        return torch.stack(self.rows())

    def restore(self, state: Tensor | Sequence[Tensor]) -> None:
        """Continue from what `state()` or `rows()` returned."""
        for g, row in zip(self.generators, state, strict=True):
            g.set_state(row.clone())  # a view of a larger tensor crashes some versions of torch

    def _gather(self, source, shape: tuple[int, ...]) -> Tensor:  # type: ignore[no-untyped-def]
        options = {"dtype": self.dtype, "device": self.device}
        rows = [source((1, *shape), generator=g, **options) for g in self.generators]
        return rows[0] if len(rows) == 1 else torch.cat(rows)


def _subset(population: int, size: int, rng: torch.Generator) -> Tensor:
    """Indices (size,) without replacement; few of very many are drawn until enough differ."""
    if population < MANY * size:
        return torch.randperm(population, generator=rng, device=rng.device)[:size]
    chosen: dict[int, None] = {}
    while len(chosen) < size:
        drawn = torch.randint(population, (size,), generator=rng, device=rng.device)
        chosen.update(dict.fromkeys(drawn.tolist()))
    return torch.tensor(list(chosen)[:size], device=rng.device)

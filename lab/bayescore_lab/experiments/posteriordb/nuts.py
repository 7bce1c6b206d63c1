"""Long runs of Stan's own NUTS on a compiled program: the references of posteriordb-all.

nuts.cpp has the sampler, compiled once into the cache of Stan programs. Chains begin at points uniform in
(-2, 2)^D, as Stan's do, or each at the point of largest density among a hundred of them. Draws leave the
unconstrained space by the program itself.
"""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import c_double, c_int, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.rng import generator
from bayescore.targets.stan import Stan
from bayescore.targets.stan.cache import cache_folder, fetch
from bayescore.targets.stan.library import CompiledModel
from bayescore.targets.stan.toolchain import find_toolchain, run_compiler

__all__ = ["Chains", "sample"]

SOURCE = Path(__file__).with_name("nuts.cpp")
MAX_DEPTH = 12
TRIES = 100  # points among which a start with a finite density is looked for


@dataclass(frozen=True)
class Chains:
    """States of chains, draws (chains, n, D) on the unconstrained space, and how the sampler did."""

    draws: Tensor
    divergences: int
    deepest: int  # states at the largest depth of a tree
    gradients: int


def sample(
    target: Stan, chains: int, warmup: int, draws: int, seed: int, delta: float, *, best: bool = False
) -> Chains:
    """`chains` chains one after the other; delta is the acceptance that the step size aims at.

    With `best` a chain begins at the point of largest density among those where it may begin.
    """
    assert isinstance(target.model, CompiledModel)
    library = _library()
    out = torch.empty(chains, draws, target.dim, dtype=torch.float64)
    counts = torch.zeros(chains, 3, dtype=torch.int64)
    for chain in range(chains):
        start = _start(target, seed, chain, best)
        failed = library.nuts_chain(
            ctypes.cast(target.model.library.bs_log_density, c_void_p),
            target.model._model,
            target.dim,
            start.data_ptr(),
            warmup,
            draws,
            delta,
            MAX_DEPTH,
            seed,
            chain + 1,
            out[chain].data_ptr(),
            counts[chain].data_ptr(),
        )
        if failed:
            raise RuntimeError(f"NUTS on {target.label} ended with: {library.nuts_text().decode()}")
    divergences, deepest, gradients = counts.sum(0).tolist()
    return Chains(out, divergences, deepest, gradients)


def _start(target: Stan, seed: int, chain: int, best: bool) -> Tensor:
    rng = generator(seed, purpose=f"start of chain {chain}")
    points = 4 * torch.rand(TRIES, target.dim, generator=rng, dtype=torch.float64) - 2
    value, score = target.log_prob_and_score(points)
    finite = value.isfinite() & score.isfinite().all(-1)
    if not finite.any():
        raise RuntimeError(f"the density of {target.label} is finite at none of {TRIES} points in (-2, 2)^D")
    chosen = value.where(finite, -torch.inf).argmax() if best else finite.nonzero()[0]
    return points[int(chosen)].contiguous()


def _library() -> ctypes.CDLL:
    toolchain = find_toolchain()
    key = hashlib.sha256((SOURCE.read_text(encoding="utf-8") + toolchain.identity).encode()).hexdigest()[:32]

    def make(out: Path) -> None:
        options = (*toolchain.flags, "-shared", str(SOURCE), "-o", str(out), *toolchain.link_flags)
        run_compiler(toolchain, *options)

    library = ctypes.CDLL(str(fetch(cache_folder(), f"nuts-{key}.so", make)))
    library.nuts_chain.restype = c_int
    numbers: list[Any] = [c_int64, c_void_p, c_int64, c_int64, c_double, c_int, c_uint32, c_uint32]
    library.nuts_chain.argtypes = [c_void_p, c_void_p, *numbers, c_void_p, c_void_p]
    library.nuts_text.restype = ctypes.c_char_p
    return library

"""Draws that can be taken back exactly: a large tensor's mean is in the module alone, not in the state too.

So it is in networks whose updates are compiled (optim/noise.py). Smaller ones hold a copy: eager operations
on bits take longer than copying. Inside a block the module holds theta = m + d. Afterwards m = theta - d must
be m to the last bit, or every draw would leave a rounding error behind; and d must be known again without
making the noise again, which takes longer than the rest of a step. Both are so if noise, draws and means are
on grids.

**Noise** of such a tensor has 256 levels. With n ~ N(0, 1) (optim/noise.py), k = 20 levels per unit,
    c = floor(k n) in [-128, 127],    eps = r (c + 1/2)/k,    r = (1 + 1/(12 k^2))^(-1/2)                (1)
so that eps has mean 0 and variance 1, and |eps| <= 6.4. A draw writes c + 128 into the eight lowest bits of
the number from which the width is computed (the sd, or Adam's v), and whoever needs eps reads it there until
the next draw. These numbers keep 16 significant bits. The bits that c replaces and c itself have the same
mean, so that this is stochastic rounding: no small change of v is lost on average.

**Draws and means** are multiples of one quantum q per tensor, a power of two. With p bits in a significand
(24 or 53), M = 2^(p - 1) q, and sd a function of state that does not change until the step,
    d = q round(sd eps/q),  |d| <= M,       m = q (a whole number),  |m| <= M                            (2)
Then |theta| <= 2^p q, and theta = m + d and m = theta - d are exact. One kernel does both, with q and -q.

**Rounding.** An update m -> m' that is smaller than q would be lost if it were rounded to nearest: always,
for the small weights of a tensor that has large ones too. It is rounded up or down at random instead,
    m <- m + q floor((m' - m)/q + u),       u = frac(the bits of the number with c times 0.618...)        (3)
which is m' on average: c varies over many levels, so that u is uniform in [0, 1). Where a weight is as large
as M this loses nothing: the float itself has no finer steps there.

**The quantum.** Before each of the first eleven updates and then before every eighth, over the whole tensor,
    L = max(max |m|, 8 max sd):     M becomes the power of two in [2 L, 4 L) if L > M/2; M/2 if L < M/8    (4)
after that update, so that a weight can double from one look to the next. (If it does more, a draw is taken
back to within the last bit of theta.) Whether L > M/2 and L >= M/8 are two bits, which the processes of a
sharded run send with everything else in a step; L itself is sent when a tensor has outgrown its grid. A finer
grid has all points of a coarser one: a smaller M changes no number; after a larger one, means are rounded to
nearest. The quanta are in the parameter groups ("quanta"), one per tensor; 0: not known. Weights that other
code has written are put on a grid of their own when they are noticed.

A tensor is displaced as a whole or not at all: Ctrl-C waits until it is done (`uninterrupted`).
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.optim.noise import Noise, numbers
from bayescore.rules.terms import Largest

__all__ = [
    "WIDE",
    "Grid",
    "Look",
    "decoded",
    "displace",
    "displace_by_sd",
    "fitted",
    "grid_like",
    "is_look",
    "look_at",
    "off_grid",
    "on_grid",
    "quantum_of",
    "rounded_update",
    "snap",
    "uninterrupted",
    "write_codes",
]

WIDE = 8.0  # of (4)
LEAST, MOST = 2.0**-100, 2.0**100  # of M: 1/q and q are numbers in float32


class Grid(NamedTuple):
    """A quantum and its inverse, as zero-dimensional tensors; minus the quantum takes a draw back."""

    quantum: Tensor
    inverse: Tensor


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C within the block takes effect when the block has ended; Python handles it in the main thread."""
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[Any] = []
    signal.signal(signal.SIGINT, lambda *seen: late.append(seen))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if late:
            usual(*late[0])


def _bits(value: Tensor) -> Tensor:
    return value.view(torch.int64 if value.dtype == torch.float64 else torch.int32)


def write_codes(state: Tensor, noise: Noise) -> None:
    """Write noise into the lowest bits of a state tensor: (1), as literals, which the compiler sees."""
    code = (numbers(noise, state) * 20.0).floor().clamp(-128, 127) + 128
    bits = _bits(state.clamp_min(7.52316384526264e-37))  # 2^-120: no code may make a denormal number
    state.copy_(((bits & -256) | code.to(bits.dtype)).view(state.dtype))


def decoded(state: Tensor) -> Tensor:
    """eps of (1), from the lowest bits of a state tensor."""
    return ((_bits(state) & 255).to(state.dtype) - 127.5) * 0.049994792480422


def displace(weight: Tensor, sd: Tensor, state: Tensor, quantum: Tensor, inverse: Tensor) -> None:
    """Add d of (2) to the weights; with -quantum, subtract it."""
    most = _most(weight)
    weight.add_((sd * decoded(state) * inverse).round().clamp(-most, most) * quantum)


def displace_by_sd(weight: Tensor, sd: Tensor, quantum: Tensor, inverse: Tensor) -> None:
    """The same where the state is the sd."""
    displace(weight, sd, sd, quantum, inverse)


def rounded_update(mean: Tensor, moved: Tensor, state: Tensor, quantum: Tensor, inverse: Tensor) -> Tensor:
    """(3): `moved` on the grid."""
    u = (((_bits(state) * -1640531527) >> 8) & 0xFFFFFF).to(mean.dtype) * 5.9604644775390625e-08
    return ((mean * inverse).round() + ((moved - mean) * inverse + u).floor()) * quantum


def on_grid(weight: Tensor, quantum: Tensor, inverse: Tensor) -> Tensor:
    """The nearest points of a grid."""
    return (weight * inverse).round() * quantum


def snap(weight: Tensor, quantum: Tensor, inverse: Tensor) -> None:
    """Put weights on a grid."""
    weight.copy_(on_grid(weight, quantum, inverse))


def off_grid(weight: Tensor, quantum: Tensor, inverse: Tensor) -> tuple[Largest]:
    """Whether any weight is not on a grid."""
    return (Largest((weight != on_grid(weight, quantum, inverse)).to(weight.dtype)),)


def grid_like(weight: Tensor, quantum: float) -> Grid:
    """The grid of a quantum for the kernels of a weight."""
    return Grid(weight.new_tensor(quantum), weight.new_tensor(1 / quantum))


def _most(like: Tensor) -> float:
    """M/q."""
    return 2.0**52 if like.dtype == torch.float64 else 2.0**23


def quantum_of(level: float, dtype: torch.dtype) -> float:
    """q for a tensor of which L of (4) is known."""
    if not math.isfinite(level):  # weights are lost already, and the optimizer says so
        level = 1.0
    _, exponent = math.frexp(min(max(level, LEAST), MOST))
    return float(2.0 ** (exponent + 1) / _most(torch.empty(0, dtype=dtype)))


class Look(NamedTuple):
    """What is seen of a tensor on its grid, on this process or on all."""

    level: float  # L of (4); of a whole sharded tensor it is known if a tensor of the network is outgrown
    outgrown: bool  # L > M/2
    needed: bool  # L >= M/8


def look_at(quantum: float, level: float, dtype: torch.dtype) -> Look:
    """A tensor of which L is known on the grid of a quantum, which may be 0."""
    reach = quantum * _most(torch.empty(0, dtype=dtype))
    return Look(level, not level <= reach / 2, not level < reach / 8)


def fitted(quantum: float, look: Look, dtype: torch.dtype) -> float:
    """The quantum after a look: (4)."""
    if look.outgrown:
        return max(quantum, quantum_of(look.level, dtype))
    small = quantum * _most(torch.empty(0, dtype=dtype)) <= 4 * LEAST
    return quantum if look.needed or small else quantum / 2


def is_look(updates: int) -> bool:
    """Whether quanta are looked at in the step after so many updates."""
    return updates <= 10 or updates % 8 == 0

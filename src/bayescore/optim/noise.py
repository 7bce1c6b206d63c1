"""Noise as a function of (seed, step, draw, parameter): it is made again where it is needed, never stored.

Every parameter tensor of every draw has a stream of its own, named by a hash of the four numbers (splitmix64
[1], applied once per number), so that
    - a draw is the same on every process of a distributed run and after a checkpoint,
    - a parameter's noise does not depend on which other parameters are trained, but for the rule below,
    - the noise of a block can be made again at the step that needs it.
Draws come in antithetic pairs: draw 2j + 1 is minus draw 2j. Where both draws of a pair see the same data,
what the mini-batch adds to the gradient cancels in their difference, and curvature is left.

Small tensors take theirs from torch's generator, and so do all tensors of small networks, whose updates are
not compiled. Large ones have a counter-based stream, which a compiler can put inside the pass that uses it:
with keys a, b of 32 bits and mix an invertible mixing of 32 bits [2], the i-th number is
    h = mix(mix(i + a) xor b)                                   every bit of i, a, b moves half of h's    (1)
    x = (h + 1/2)/2^31 in (-1, 1),    y = 1 - |x|               y from the integers: exact in the tails   (2)
    eps = x P(z),    z = (y (2 - y))^(1/16)                     x -> Phi^-1((1 + x)/2)                    (3)
P is the polynomial of degree 11 that meets (3) on the range of z to 7e-7 of eps; four square roots make z,
whose powers resolve the tails that x itself cannot. |eps| reaches 6.3. Additions, multiplications and square
roots are all there is: every number is the same whatever the number of threads and the length of a slice.

[1] Steele, Lea & Flood 2014, the finaliser of Java's SplittableRandom.
[2] Two multiplications and three shifts, with the constants of Wellons' hash-prospector ("lowbias32").
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "HASHED",
    "Key",
    "Noise",
    "Placed",
    "drawn",
    "hashed",
    "hashed_normal",
    "is_hashed",
    "key_of",
    "torch_normal",
]

#: weights of a network from which its updates are compiled: it pays within some thousand steps
LARGE = 500_000
#: weights of a tensor in such a network from which it is updated by a compiled pass, with counter-based noise
HASHED = 1 << 16
MASK = (1 << 64) - 1


class Placed(NamedTuple):
    """A draw that is still there: eps = (theta - mean)/sd, with an error of theta's last digit over sd.

    That costs a subtraction and a division; making eps again costs ten times as much.
    """

    draw: Tensor
    mean: Tensor
    difference: bool  # the draw is theta - mean


class Key(NamedTuple):
    """A counter-based stream, as zero-dimensional tensors."""

    a: Tensor
    b: Tensor
    at: Tensor  # the number i of the first element
    sign: Tensor


Noise = Tensor | Key


def hashed(*numbers: int) -> int:
    """A 63-bit number that depends on every one of `numbers` and their order."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state + (number & MASK) + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def is_hashed(network: int, tensor: int) -> bool:
    """Whether the noise of a tensor is counter-based, from the numbers of weights of network and tensor."""
    return network >= LARGE and tensor >= HASHED


def _signed(word: int) -> int:
    """The low 32 bits of `word` as a signed number."""
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def key_of(like: Tensor, name: int, sign: float) -> Key:
    """The stream with the 63-bit name `name`, for tensors of the dtype and device of `like`."""
    words = torch.tensor([_signed(name), _signed(name >> 31), 0], dtype=torch.int32, device=like.device)
    a, b, at = words.unbind()
    return Key(a, b, at, like.new_tensor(sign))


def torch_normal(out: Tensor, name: int, sign: float, rng: torch.Generator) -> None:
    """Fill `out` from torch's generator, seeded with `name`."""
    rng.manual_seed(name)
    out.normal_(generator=rng)
    if sign < 0:
        out.neg_()


def _mix(h: Tensor) -> Tensor:
    """The masks make torch's arithmetic shifts logical ones; products keep their low 32 bits."""
    h = (h ^ ((h >> 16) & 0xFFFF)) * 2146121005
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -2073254261
    return h ^ ((h >> 16) & 0xFFFF)


def _quantile(z: Tensor) -> Tensor:
    """P of (3). The numbers are written out: the compiler takes those for constants."""
    t = z * 2.7066106 - 1.7066106  # to [-1, 1]
    p = 0.00887669476 * t + 0.0115626324
    p = p * t - 0.0337300084
    p = p * t - 0.051603852
    p = p * t + 0.00496443192
    p = p * t + 0.100002391
    p = p * t + 0.0866133311
    p = p * t + 0.106468749
    p = p * t - 0.183667169
    p = p * t + 0.0230864949
    p = p * t - 2.42537817
    return p * t + 3.60611844


def hashed_normal(key: Key, like: Tensor) -> Tensor:
    """Standard normal numbers for the flat tensor `like`: (1) to (3)."""
    i = torch.arange(like.numel(), dtype=torch.int32, device=like.device) + key.at
    h = _mix(_mix(i + key.a) ^ key.b)  # (1)
    x = (h.to(like.dtype) + 0.5) * 4.656612873077393e-10  # (2)
    y = ((2147483647 - ((h >> 31) ^ h)).to(like.dtype) + 0.5) * 4.656612873077393e-10
    z = (y * (2 - y)).sqrt().sqrt().sqrt().sqrt()
    return key.sign * x * _quantile(z)  # (3)


def drawn(noise: Tensor | Key, like: Tensor) -> Tensor:
    """The noise as numbers; a rule calls this where it needs them."""
    return hashed_normal(noise, like) if isinstance(noise, Key) else noise

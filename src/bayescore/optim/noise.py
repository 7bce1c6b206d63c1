"""Noise as a function of (seed, step, draw, parameter): generated again whenever needed, never stored.

Every parameter tensor of every draw has a stream of its own, named by a hash of the four numbers (splitmix64
[1], applied once per number), so that
    - a draw is the same on every process of a distributed run and after a checkpoint, and the number at a
      position of a tensor does not depend on which process holds it (posteriors/shards.py),
    - a parameter's noise does not depend on which other parameters are trained (except that the size of the
      network decides between the two kinds of stream below),
    - the noise of a block can be generated again in the step that needs it.
Draws come in antithetic pairs: the noise of draw 2j + 1 is minus that of draw 2j. If both draws of a pair see
the same data, the mini-batch noise cancels in the difference of their gradients, and curvature is left.

Small tensors, and all tensors of small networks, whose updates are not compiled, take their noise from
torch's generator. Large ones have a counter-based stream, which the compiler can fuse into the kernel that
uses it:
with keys a, b of 32 bits and mix an invertible mixing of 32 bits [2], the i-th number is
    h = mix(mix(i + a) xor b)                                   every bit of i, a, b moves half of h's    (1)
    x = (h + 1/2)/2^31 in (-1, 1),    y = 1 - |x|               y from the integers: exact in the tails   (2)
    w = -log2(y (2 - y)) = -log2(1 - x^2)                       exponent, and degree 6 in the mantissa    (3)
    eps = x A(w)/B(w)                                           x -> Phi^-1((1 + x)/2)                    (4)
A and B are polynomials of degree 5 whose ratio approximates (4) to a relative error of 5e-7; the logarithm
adds as much, rounding in float32 a few units in the last place. |eps| is at most 6.3. There are only
additions, multiplications and one division, so the numbers do not depend on the number of threads or on the
length of a slice.

[1] Steele, Lea & Flood 2014, the finaliser of Java's SplittableRandom.
[2] Two multiplications and three shifts, with the constants of Wellons' hash-prospector ("lowbias32").
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayescore.posteriors.shards import Part

__all__ = [
    "LARGE_NETWORK",
    "LARGE_TENSOR",
    "CounterKey",
    "Noise",
    "counter_key",
    "counter_normal",
    "generator_normal",
    "is_large_network",
    "numbers",
    "stream_name",
    "stream_names",
    "uses_counter",
]

#: smallest number of weights of a network whose updates are compiled: it pays within a few thousand steps
LARGE_NETWORK = 500_000
#: smallest number of weights of a tensor in such a network that has a compiled update and counter-based noise
LARGE_TENSOR = 1 << 16
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio


class CounterKey(NamedTuple):
    """A counter-based stream, as zero-dimensional tensors."""

    a: Tensor
    b: Tensor
    at: Tensor  # i of the first element, or l of (2) in posteriors/shards.py
    sign: Tensor
    block: tuple[Tensor, Tensor, Tensor] | None = None  # start, inner, outer of (2) there


Noise = Tensor | CounterKey


def stream_name(*numbers: int) -> int:
    """A 63-bit number that depends on every one of `numbers` and their order."""
    return functools.reduce(_mixed_in, numbers, GOLDEN) >> 1


def stream_names(numbers: Sequence[int], last: Iterable[int]) -> list[int]:
    """`stream_name(*numbers, one)` for every one of `last`."""
    state = functools.reduce(_mixed_in, numbers, GOLDEN)
    return [_mixed_in(state, one) >> 1 for one in last]


def _mixed_in(state: int, number: int) -> int:
    state = (state + (number & MASK) + GOLDEN) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def is_large_network(size: int) -> bool:
    """Whether a network of so many weights has compiled updates."""
    return size >= LARGE_NETWORK


def uses_counter(network: int, tensor: int) -> bool:
    """Whether the noise of a tensor is counter-based, given the sizes of the network and of the tensor."""
    return is_large_network(network) and tensor >= LARGE_TENSOR


def _signed(word: int) -> int:
    """The low 32 bits of `word` as a signed number."""
    return ((word + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def counter_key(like: Tensor, name: int, sign: float, part: Part | None = None) -> CounterKey:
    """The stream with the 63-bit name `name`, for tensors of the dtype and device of `like`.

    Arguments:
        part: where `like` lies in the whole tensor; None: it is the whole.
    """
    words = [_signed(name), _signed(name >> 31), 0]
    if part is not None:
        words += [_signed(part.start), part.inner, _signed(part.outer)]
    a, b, at, *block = torch.tensor(words, dtype=torch.int32, device=like.device).unbind()
    if part is None:
        return CounterKey(a, b, at, like.new_tensor(sign))
    if part.contiguous:
        return CounterKey(a, b, block[0], like.new_tensor(sign))
    return CounterKey(a, b, at, like.new_tensor(sign), (block[0], block[1], block[2]))


def generator_normal(out: Tensor, name: int, sign: float, rng: torch.Generator) -> None:
    """Fill `out` from torch's generator, seeded with `name`."""
    rng.manual_seed(name)
    out.normal_(generator=rng)
    if sign < 0:
        out.neg_()


def _mix(h: Tensor) -> Tensor:
    """`mix` of (1). The masks make torch's arithmetic shifts logical; products keep their low 32 bits."""
    h = (h ^ ((h >> 16) & 0xFFFF)) * 2146121005
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -2073254261
    return h ^ ((h >> 16) & 0xFFFF)


def _minus_log2(q: Tensor) -> Tensor:
    """(3) for q in (0, 1]. Here and below, coefficients are literals so that the compiler sees constants."""
    double = q.dtype == torch.float64
    digits, one = (
        (52, 0x3FF0000000000000) if double else (23, 0x3F800000)
    )  # of the mantissa; 1.0 as an integer
    bits = q.view(torch.int64 if double else torch.int32)
    t = ((bits & ((1 << digits) - 1)) | one).view(q.dtype) - 1.5  # mantissa in [1, 2), centred
    t2 = t * t
    high = (0.0703767308 - 0.0439289886 * t) + 0.0256910847 * t2
    curved = (0.0381787648 * t - 0.0849630425) + t2 * ((0.320652295 - 0.141718048 * t) + t2 * high)
    return (bits - one).to(q.dtype) * -(2.0**-digits) + curved  # exponent + mantissa - 1, and the rest


def _quantile(x: Tensor, w: Tensor) -> Tensor:
    """(4), as short independent chains of operations, which a processor runs in parallel."""
    w2 = w * w
    a = (0.0461235227 + 0.00433810963 * w) + w2 * (0.000269713189 + 4.69667158e-06 * w)
    b = (0.0161851324 + 0.000925069983 * w) + w2 * (4.19378265e-05 + 1.53806043e-07 * w)
    return x * (((1.25331728 + 0.32638864 * w) + w2 * a) / ((1 + 0.0789697739 * w) + w2 * b))


def counter_normal(key: CounterKey, like: Tensor) -> Tensor:
    """Standard normal numbers for the flat tensor `like`: (1) to (4)."""
    i = torch.arange(like.numel(), dtype=torch.int32, device=like.device) + key.at
    if key.block is not None:
        start, inner, outer = key.block
        i = start + torch.div(i, inner, rounding_mode="floor") * outer + i % inner
    h = _mix(_mix(i + key.a) ^ key.b)  # (1)
    x = (h.to(like.dtype) + 0.5) * 4.656612873077393e-10  # (2)
    y = ((2147483647 - ((h >> 31) ^ h)).to(like.dtype) + 0.5) * 4.656612873077393e-10
    return key.sign * _quantile(x, _minus_log2(y * (2 - y)))


def numbers(noise: Noise, like: Tensor) -> Tensor:
    """The noise as a tensor of numbers; called inside a kernel, where they are needed."""
    return counter_normal(noise, like) if isinstance(noise, CounterKey) else noise

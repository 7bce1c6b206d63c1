"""One pass over memory: an elementwise rule in place, compiled or in slices, with the same numbers.

A rule is a function of flat tensors, which it may change, of noise (optim/noise.py) and of numbers as small
tensors, so that a new learning rate does not compile it again. It returns elementwise terms, or nothing; of
the first two the sums over a parameter tensor are kept, of a third the largest. Compiled, one program serves
every shape, and neither noise nor terms ever reach the memory. Eagerly, a rule runs slice by slice, so that
what it computes on the way stays in the cache.

Compiling takes 10 to 30 seconds, once per machine and rule. A rule is compiled from 500,000 weights on,
where that pays within some thousand steps; small networks and tests never wait for it. If the compiler is
missing or fails, the rule runs eagerly from then on, and the optimizer's status says why.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescore.optim.noise import Key, drawn, is_hashed

__all__ = [
    "Pass",
    "Rule",
    "and_write",
    "decayed",
    "from_draw",
    "keep_heap",
    "of_one_draw",
    "run_in_slices",
]

SLICE = 1 << 15  # weights per slice: what a rule computes on the way then stays in the cache

logger = logging.getLogger(__name__)
Rule = Callable[..., Any]


class Pass:
    """A rule that runs compiled or eagerly, and its totals.

    Arguments:
        rule: a function of flat tensors, noise and small tensors; the first tensor has every weight.
        compiled: True, False, or None to compile from 500,000 weights on.
    """

    def __init__(self, rule: Rule, compiled: bool | None = None) -> None:
        self.rule, self.wish = rule, compiled
        self.status = ""
        self._fast: Rule | None = None
        self._failed = False

    def __call__(self, size: int, segments: Sequence[int], *args: Any) -> Any:
        """Apply the rule; returns the totals of its terms over each parameter tensor, (tensors, terms).

        Arguments:
            size: number of weights of the whole network.
            segments: sizes of the parameter tensors that lie one after another in the flat tensors.
        """
        if len(segments) > 1:
            return _segment_totals(self.rule(*args), segments)
        wanted = is_hashed(size, segments[0]) if self.wish is None else self.wish
        if not wanted or self._failed:
            return run_in_slices(self.rule, *args)
        if self._fast is None:
            self._fast = _compiled(self.rule)
        try:
            result = self._fast(*args)
        except Exception as error:  # the compiler raises what its backends raise; eager needs none of them
            self._failed, self.status = True, f"update eager: compiling failed ({type(error).__name__})"
            logger.warning("the update could not be compiled and runs eagerly: %s", error)
            return run_in_slices(self.rule, *args)
        self.status = "update compiled"
        return result


@functools.cache
def _compiled(rule: Rule) -> Rule:
    """The rule with its totals, compiled once for all optimizers of a process.

    The compiler counts its programs per code object and gives up after a few: every rule has its own.
    """
    counted = _with_totals(rule)
    counted.__code__ = counted.__code__.replace(co_name=f"{rule.__name__}_with_totals")
    fused: dict[str, Any] = {"cpp.enable_floating_point_contract_flag": "fast"}  # multiply-adds on a CPU
    compiled: Rule = torch.compile(counted, dynamic=True, options=fused)
    return compiled


def _with_totals(rule: Rule) -> Rule:
    def counted(*args: Any) -> Any:
        terms = rule(*args)
        return None if terms is None else _totals(terms).unsqueeze(0)

    return counted


def _totals(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack([*(term.sum() for term in terms[:2]), *(term.amax() for term in terms[2:])])


def _segment_totals(terms: Sequence[Tensor] | None, segments: Sequence[int]) -> Tensor | None:
    if terms is None:
        return None
    parts = zip(*(term.split(list(segments)) for term in terms), strict=True)
    return torch.stack([_totals(part) for part in parts])


def run_in_slices(rule: Rule, *args: Any) -> Any:
    """The rule with its totals, slice by slice."""
    counted, size = _with_totals(rule), args[0].numel()
    if size <= SLICE:
        return counted(*args)
    found = [counted(*(_part(a, at, size) for a in args)) for at in range(0, size, SLICE)]
    return None if found[0] is None else _totals(torch.cat(found).unbind(1)).unsqueeze(0)


def _part(a: Any, at: int, size: int) -> Any:
    """The slice of an argument that begins with element `at` of `size`."""
    if isinstance(a, Key):
        return a._replace(at=a.at + at)
    whole = isinstance(a, Tensor) and a.dim() == 1 and a.numel() == size
    return a[at : at + SLICE] if whole else a


@functools.cache
def keep_heap() -> None:
    """Let the C library keep the memory of temporaries, instead of giving it back and taking it again.

    glibc returns the top of its heap to the system whenever some hundred kilobytes of it are free, which an
    eager pass causes all the time; every page then costs a fault. A large block that was freed once raises
    that limit to twice its size. The block itself is never touched, and other libraries do not mind.
    """
    torch.empty(1 << 24, dtype=torch.uint8, device="cpu")


@functools.cache
def and_write(rule: Rule) -> Rule:
    """`rule(mean, ...)` as `rule(weight, mean, ...)`, which also writes the new mean into the module."""

    def writing(weight: Tensor, mean: Tensor, *rest: Any) -> Any:
        terms = rule(mean, *rest)
        weight.copy_(mean)
        return terms

    return writing


@functools.cache
def decayed(rule: Rule) -> Rule:
    """`rule(mean, other, ...)` as `rule(mean, other, towards, share, ...)`: the mean also decays.

    m <- m + move(m) - share (m - towards), the decay of AdamW.
    """

    def decaying(mean: Tensor, other: Tensor, towards: Tensor, share: Tensor, *rest: Any) -> Any:
        decay = share * (mean - towards)
        terms = rule(mean, other, *rest)
        mean.sub_(decay)
        return terms

    return decaying


@functools.cache
def from_draw(rule: Rule, difference: bool) -> Rule:
    """`rule(mean, sd, ..., noise, o)` as `rule(draw, mean, sd, ..., o)`: eps = (theta - mean)/sd.

    The draw is theta, or theta - mean. The new mean takes its place.
    """

    def taking(draw: Tensor, mean: Tensor, sd: Tensor, *rest: Any) -> Any:
        *others, o = rest
        terms = rule(mean, sd, *others, (draw if difference else draw - mean) / sd, o)
        draw.copy_(mean)
        return terms

    return taking


def of_one_draw(rule: Rule) -> Rule:
    """`rule(mean, sd, ..., G, X, e1, e2, o)` as `rule(mean, sd, ..., g, noise, o)`."""

    def single(*args: Any) -> Any:
        *state, g, noise, o = args
        eps = drawn(noise, g)
        return rule(*state, g, eps * g, eps, eps * eps, o)

    return single

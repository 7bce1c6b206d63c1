"""The engine of the network optimizers: which tensors are updated together, and how a rule is applied.

**Buckets.** A network has many tensors of a few hundred weights, and a kernel takes as long for one of them
as for fifty thousand weights. Small tensors of one parameter group therefore share flat state tensors, of
which their own state (`optimizer.state[p]`) holds views; a large tensor has its own flat state. Numbers per
tensor (`statistics`) are the rows of a table.

**Kernels.** A kernel is one pass over memory: an elementwise function of flat tensors that changes them in
place, compiled or in slices, with the same result. It takes noise (optim/noise.py) and options as small
tensors, so that a new learning rate does not recompile it. It returns elementwise terms, or None; each
parameter tensor's totals are kept. Compiled, one
program serves every shape, and neither noise nor terms are written to memory. Eagerly, it runs slice by
slice, so that intermediate results stay in the cache. Compiling takes 10 to 30 seconds, once per machine and
kernel. It is done from 500,000 weights on, where it pays within a few thousand steps; small networks and
tests never wait for it. If the compiler is missing or fails, the kernel runs eagerly from then on, and the
optimizer's status says why.

**Updates.** `update_kernel` turns a pure rule of rules/ into a kernel: it obtains the noise, applies the
rule, decays the mean, and writes the new state and the module's weights.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayescore.optim.noise import CounterKey, Noise, numbers, uses_counter
from bayescore.optim.recovery import decoded, rounded_update
from bayescore.posteriors.shards import local, local_gradient, part_of
from bayescore.rules.draws import Draws
from bayescore.rules.proximal import proximal_step
from bayescore.rules.terms import Largest, Terms

__all__ = [
    "Bucket",
    "Kernel",
    "Member",
    "collect_draw",
    "draw_weights",
    "keep_heap",
    "make_buckets",
    "run_in_slices",
    "update_kernel",
]

SMALL = 1 << 16  # smallest number of weights of a tensor that is a bucket of its own
FULL = 1 << 18  # largest number of weights of a bucket of small tensors
LONGEST = 100  # operations that a kernel does again in a second loop, rather than keep their results
KEPT = 16  # numbers that a bucket keeps as tensors
SLICE = 1 << 17  # weights per slice: results stay in the cache, and torch's threads share the work

logger = logging.getLogger(__name__)


# -- buckets -------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """One trained parameter tensor: its place among all parameters, and its state."""

    number: int  # over all groups, frozen parameters included
    group: dict[str, Any]
    position: int  # within its group
    weight: Tensor
    state: dict[str, Any]

    @property
    def local(self) -> Tensor:
        """This process's part of the weight, or the weight (posteriors/shards.py)."""
        return local(self.weight)

    @property
    def gradient(self) -> Tensor | None:
        """The gradient of that part."""
        return local_gradient(self.weight)

    @property
    def is_large(self) -> bool:
        """Whether the whole tensor has a bucket of its own, however many processes hold it."""
        return self.weight.numel() >= SMALL


class Bucket:
    """Members with their flat state.

    Arguments:
        members: of one group, dtype and device, with state of the same names.

    The state "mean" of a large tensor may be the module's own memory (optim/recovery.py). Of a sharded
    tensor, a bucket knows this process's part.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.group, first = members[0].group, members[0].state
        self.sizes = [m.local.numel() for m in members]
        #: where the members' parts lie in sharded tensors
        self.parts = [part_of(m.weight) for m in members]
        self.sharded = any(part is not None for part in self.parts)
        self.flat: dict[str, Tensor] = {}
        for key in [key for key, value in first.items() if _is_per_weight(members[0], key, value)]:
            self._share(key, [m.state[key] for m in members])
        self.statistics = (
            self._table([m.state["statistics"] for m in members]) if "statistics" in first else None
        )
        #: the members' means, which are views of the flat one
        self.means = [m.state["mean"] for m in members]
        self._statistics = [m.state.get("statistics") for m in members]
        #: the statistics as numbers, for rules that compute with them outside of kernels
        self.rows: list[Any] = [] if self.statistics is None else self.statistics.tolist()
        self.lengths = self.like.new_tensor([float(m.weight.numel()) for m in members])
        self.segments = Segments(self.sizes, self.like.device)
        self._numbers: dict[float, Tensor] = {}
        self._tables: dict[str, tuple[list[tuple[float, ...]], list[Tensor]]] = {}  # see `spread`
        self._weights = [m.local.detach() for m in self.members]
        #: noise of small tensors, kept from the draw to the step that uses it, as (key, noise)
        self.noise: tuple[Any, Tensor] | None = None
        #: whether the module holds a draw that has to be taken back
        self.drawn = False
        #: what the sds of a step are computed from, if they are not kept, as (number of the step, tensors)
        self.widths: tuple[int, Sequence[Tensor]] | None = None

    def _share(self, key: str, tensors: Sequence[Tensor]) -> None:
        if len(tensors) == 1:
            self.flat[key] = tensors[0].view(-1)
            return
        self.flat[key] = torch.cat([t.reshape(-1) for t in tensors])
        for member, part in zip(self.members, self.split(self.flat[key]), strict=True):
            member.state[key] = part

    def _table(self, rows: Sequence[Tensor]) -> Tensor:
        table = torch.stack(tuple(rows))  # a new one: other buckets of these members are current no more
        for member, row in zip(self.members, table, strict=True):
            member.state["statistics"] = row
        return table

    @property
    def weights(self) -> list[Tensor]:
        """The module's own tensors. FSDP2 may put another tensor in the place of a part."""
        return [m.local.detach() for m in self.members] if self.sharded else self._weights

    @property
    def like(self) -> Tensor:
        """A flat tensor of the state's dtype and device."""
        return self.flat["mean"]

    @property
    def whole(self) -> Tensor | None:
        """The module's own weights as a flat tensor; None if there are several or they are not contiguous."""
        if len(self.members) > 1:
            return None
        weight = self.members[0].local
        return weight.detach().view(-1) if weight.is_contiguous() else None

    @property
    def is_large(self) -> bool:
        """Whether this is one large tensor."""
        return self.members[0].is_large

    @property
    def in_place(self) -> bool:
        """Whether the mean is in the module's own memory; no, if this process's part has no elements."""
        if len(self.members) > 1:
            return False
        mean = self.members[0].state["mean"]
        return mean.numel() > 0 and mean.data_ptr() == self.members[0].local.data_ptr()

    @property
    def is_current(self) -> bool:
        """Whether the members' state is still held in this bucket's flat tensors."""
        known = zip(self.members, self.means, self._statistics, strict=True)
        return all(m.state["mean"] is mean and m.state.get("statistics") is row for m, mean, row in known)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat tensor in the members' shapes."""
        parts = flat.split(self.sizes)
        return [part.view(m.local.shape) for part, m in zip(parts, self.members, strict=True)]

    def number(self, value: float) -> Tensor:
        """An option as a zero-dimensional tensor, which is kept: most have the same value in every step."""
        if value not in self._numbers:
            if len(self._numbers) == KEPT:
                self._numbers.clear()
            self._numbers[value] = self.like.new_tensor(value)
        return self._numbers[value]

    def spread(self, name: str, rows: Sequence[Sequence[float]]) -> list[Tensor]:
        """The columns of a table with a row per member: each has a number per weight, or one for all.

        They are written over those of the last table of this name, and only where numbers have changed.
        """
        columns = list(zip(*rows, strict=True))
        if name not in self._tables:
            nothing = self.like.new_empty(0)
            self._tables[name] = [()] * len(columns), [nothing] * len(columns)
        known, found = self._tables[name]
        for i, column in enumerate(columns):
            if column != known[i]:
                known[i], alike = column, column.count(column[0]) == len(column)
                shape = () if alike else self.like.shape
                if found[i].shape != shape:
                    found[i] = self.like.new_empty(shape)
                if alike:
                    found[i].fill_(column[0])
                else:
                    self.segments.fill(found[i], column)
        return found

    def spread_table(self, table: Tensor) -> tuple[Tensor, ...]:
        """The columns of a tensor with a row per member, in the same way."""
        return table[0].unbind() if len(table) == 1 else self.segments.repeat(table.t()).unbind()

    def write_rows(self) -> None:
        """Write the statistics that were computed as numbers back into the members' state."""
        assert self.statistics is not None
        self.statistics.copy_(torch.from_numpy(np.array(self.rows)))

    def gathered(self, tensors: Iterable[Tensor]) -> Tensor:
        """The members' tensors as one flat tensor in the state's dtype, perhaps in `scratch`."""
        parts = list(tensors)
        if len(parts) == 1:
            return parts[0].reshape(-1).to(self.like.dtype)
        torch._foreach_copy_(self.scratch_parts, parts)
        return self.scratch

    @functools.cached_property
    def scratch(self) -> Tensor:
        """A flat tensor for the draw of several members, and then for its gradient."""
        return torch.empty_like(self.like)

    @functools.cached_property
    def scratch_parts(self) -> list[Tensor]:
        return self.split(self.scratch)

    def zeros(self, *keys: str) -> list[Tensor]:
        """This step's running sums of these names as flat tensors, created as zeros."""
        for key in keys:
            if key not in self.flat:
                self.flat[key] = torch.zeros_like(self.like)
                for member, part in zip(self.members, self.split(self.flat[key]), strict=True):
                    member.state[key] = part
        return [self.flat[key] for key in keys]

    def scale_sums(self, scale: float) -> None:
        """Divide the running sums by the scale of the gradients, once per gradient in a term."""
        for key in [k for k in self.flat if k.startswith("sum_") and "g" in k]:
            self.flat[key].div_(scale ** key.count("g"))

    def drop_sums(self) -> None:
        for key in [k for k in self.flat if k.startswith("sum_")]:
            del self.flat[key]


class Segments:
    """The parts of a flat tensor that belong to the members of a bucket.

    On a CPU, numpy repeats and adds up several times faster than torch.

    Arguments:
        sizes: of the parts.
    """

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self.sizes = np.array(sizes)
        self._lengths = torch.tensor(sizes, device=device)
        self._on_cpu = device.type == "cpu"
        self._starts = np.cumsum(self.sizes) - self.sizes
        self._slices = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
        self._empty = not self.sizes.all()

    @functools.cached_property
    def _owners(self) -> Tensor:
        """The part of every weight."""
        numbers = torch.arange(len(self.sizes), device=self._lengths.device)
        return numbers.repeat_interleave(self._lengths)

    def repeat(self, table: Tensor) -> Tensor:
        """The columns of a table (options, parts), each as often as its part has weights."""
        if self._on_cpu:
            return torch.from_numpy(np.repeat(table.numpy(), self.sizes, axis=1))
        return table.contiguous().index_select(1, self._owners)

    def fill(self, out: Tensor, numbers: Sequence[float]) -> None:
        """Write a number per part into a flat tensor, as often as the part has weights."""
        if self._on_cpu:
            values = out.numpy()
            for part, number in zip(self._slices, numbers, strict=True):
                values[part] = number
        else:
            out.copy_(out.new_tensor(numbers).index_select(0, self._owners))

    def totals(self, terms: Terms) -> Tensor:
        """The totals of terms over the parts, (parts, terms)."""
        if self._on_cpu and not self._empty:  # numpy has no total of nothing
            with np.errstate(all="ignore"):
                return torch.from_numpy(np.array([self._total(term) for term in terms]).T)
        pairs = ((t.values, "max") if isinstance(t, Largest) else (t, "sum") for t in terms)
        found = [torch.segment_reduce(t, how, lengths=self._lengths, unsafe=True) for t, how in pairs]
        return torch.stack(found, 1)

    def _total(self, term: Tensor | Largest) -> Any:
        if isinstance(term, Largest):
            return np.maximum.reduceat(term.values.numpy(), self._starts)
        return np.add.reduceat(term.numpy(), self._starts)


def _is_per_weight(member: Member, key: str, value: Any) -> bool:
    return key != "statistics" and isinstance(value, Tensor) and value.shape == member.local.shape


def make_buckets(members: Sequence[Member]) -> list[Bucket]:
    """Buckets of all members: each large tensor alone, small ones together."""
    rows: dict[Any, list[Member]] = {}
    closed: list[list[Member]] = []
    for member in members:
        size, like = member.local.numel(), member.state["mean"]
        if member.is_large:
            closed.append([member])
            continue
        key = (id(member.group), like.dtype, like.device, *sorted(member.state))
        row = rows.setdefault(key, [])
        if row and sum(m.local.numel() for m in row) + size > FULL:
            closed.append(row)
            row = rows[key] = []
        row.append(member)
    return [Bucket(row) for row in (*closed, *rows.values())]


# -- kernels -------------------------------------------------------------------------------------------

Function = Callable[..., Any]


class Kernel:
    """An elementwise function in place, compiled or in slices, and the totals of its terms.

    Arguments:
        function: of flat tensors, noise and small tensors; the first tensor has one number per weight.
        compiled: True, False, or None to compile from 500,000 weights on.
    """

    def __init__(self, function: Function, compiled: bool | None = None) -> None:
        self.function, self.compiled = function, compiled
        self.status = ""
        self._fast: Function | None = None
        self._failed = False

    def __call__(self, size: int, bucket: Bucket, *args: Any) -> Any:
        """Run the function; returns the totals of its terms over each parameter tensor, (tensors, terms).

        Arguments:
            size: number of weights of the whole network.
            bucket: whose flat tensors are among the arguments.
        """
        if len(bucket.sizes) > 1:
            terms = self.function(*args)
            return None if terms is None else bucket.segments.totals(terms)
        wanted = uses_counter(size, bucket.sizes[0]) if self.compiled is None else self.compiled
        if not wanted or self._failed:
            return run_in_slices(self.function, *args)
        if self._fast is None:
            self._fast = _compiled(self.function)
        try:
            result = self._fast(*args)
        except Exception as error:  # a compiler backend may raise anything; running eagerly always works
            self._failed, self.status = True, f"update eager: compiling failed ({type(error).__name__})"
            logger.warning("the update could not be compiled and runs eagerly: %s", error)
            return run_in_slices(self.function, *args)
        self.status = "update compiled"
        return result


@functools.cache
def _compiled(function: Function) -> Function:
    """The function with its totals, compiled once for all optimizers of a process.

    The compiler limits the number of programs per code object, so every kernel gets its own code object.
    """
    counted = _with_totals(function)
    counted.__code__ = counted.__code__.replace(co_name=f"{function.__name__}_with_totals")
    fused: dict[str, Any] = {"cpp.enable_floating_point_contract_flag": "fast"}  # multiply-adds on a CPU
    if getattr(function, "recomputes", False):
        limits = ("realize_opcount_threshold", "realize_reads_threshold", "realize_acc_reads_threshold")
        fused |= dict.fromkeys(limits, LONGEST)
    compiled: Function = torch.compile(counted, dynamic=True, options=fused)
    return compiled


def _with_totals(function: Function) -> Function:
    def counted(*args: Any) -> Any:
        terms = function(*args)
        return None if terms is None else torch.stack([_total(term) for term in terms]).unsqueeze(0)

    return counted


def _total(term: Tensor | Largest) -> Tensor:
    if not isinstance(term, Largest):
        return term.sum()
    return term.values.amax() if term.values.numel() else term.values.new_tensor(-math.inf)  # an empty part


def run_in_slices(function: Function, *args: Any) -> Any:
    """The function with its totals, slice by slice."""
    size = next(a for a in args if isinstance(a, Tensor)).numel()
    if size <= SLICE:
        return _with_totals(function)(*args)
    kinds: list[bool] = []

    def totals(*part: Any) -> Tensor | None:
        terms = function(*part)
        kinds[:] = [] if terms is None else [isinstance(term, Largest) for term in terms]
        return None if terms is None else torch.stack([_total(term) for term in terms])

    found = [totals(*(_part(a, at, size) for a in args)) for at in range(0, size, SLICE)]
    if found[0] is None:
        return None
    columns = torch.stack([row for row in found if row is not None]).unbind(1)
    pairs = zip(columns, kinds, strict=True)
    return torch.stack([column.amax() if largest else column.sum() for column, largest in pairs]).unsqueeze(0)


def _part(a: Any, at: int, size: int) -> Any:
    """The slice of an argument that begins at element `at` of `size`; small tensors are passed whole."""
    if isinstance(a, CounterKey):
        return a._replace(at=a.at + at)
    whole = isinstance(a, Tensor) and a.dim() == 1 and a.numel() == size
    return a[at : at + SLICE] if whole else a


@functools.cache
def keep_heap() -> None:
    """Make the C library keep the memory of temporaries instead of returning it to the system each time.

    glibc returns the top of its heap to the system whenever a few hundred kilobytes of it are free, which
    happens all the time in an eager kernel; every page then costs a fault. Freeing one large block raises
    that limit to twice the block's size. The block itself is never written to, so it costs no memory.
    """
    torch.empty(1 << 24, dtype=torch.uint8, device="cpu")


# -- what runs in a kernel -----------------------------------------------------------------------------


def draw_weights(weight: Tensor, mean: Tensor, sd: Tensor, noise: Noise) -> None:
    """theta = mean + sd * eps, written into the module."""
    weight.copy_(torch.addcmul(mean, sd, numbers(noise, mean)))


def collect_draw(
    sum_g: Tensor, sum_xg: Tensor, sum_e: Tensor, sum_ee: Tensor, g: Tensor, noise: Noise
) -> None:
    """Add a draw to the running sums of a step with several draws."""
    eps = numbers(noise, g)
    sum_g.add_(g)
    sum_xg.addcmul_(eps, g)
    sum_e.add_(eps)
    sum_ee.addcmul_(eps, eps)


@functools.cache
def update_kernel(
    rule: Function,
    states: int,
    given: str,
    decays: bool,
    recovers: int | None = None,
    does: str = "all",
) -> Function:
    """The in-place update of a pure rule.

    The rule is `rule(mean, *other states, prior_mean, draws, options)` and returns the new states and its
    terms (rules/terms.py); with given="as is" it may take anything between its states and the options. The
    update is
        update(weight, mean, *other states, [quantum, inverse,] [towards, share,] prior_mean, *inputs, o)
    where `weight` is the module's own flat tensor, into which the new mean is written, or None.

    Arguments:
        states: how many state tensors the rule has, including the mean; some may be None.
        given: what the inputs are. "noise": a gradient and the noise of its draw. "coded": a gradient; the
            noise is in a state. "sums": the four averages of `Draws`. "as is": what the rule takes.
        decays: the mean also decays, m <- m + move(m) - share (m - towards), as in AdamW.
        recovers: which of the other states has the noise of a draw that can be taken back: the new mean is
            put on the tensor's grid (optim/recovery.py). None: none.
        does: "all"; "terms": computes the terms and changes nothing; "moves": the rest.
    """

    def update(weight: Tensor | None, mean: Tensor, *args: Any) -> Any:
        others, rest, o = args[: states - 1], list(args[states - 1 : -1]), args[-1]
        if recovers is not None:
            quantum, inverse, *rest = rest
        if decays:
            towards, share, *rest = rest
        if given == "as is":
            new, terms = rule(mean, *others, *rest, o)
        else:
            prior_mean, *inputs = rest
            if given == "sums":
                draws = Draws(*inputs)
            elif given == "noise":
                draws = Draws.of_one(inputs[0], numbers(inputs[1], inputs[0]))
            else:
                assert recovers is not None
                draws = Draws.of_one(inputs[0], decoded(others[recovers]))
            new, terms = rule(mean, *others, prior_mean, draws, o)
        if does == "terms":
            return terms
        moved = torch.addcmul(new[0], mean - towards, share, value=-1) if decays else new[0]
        if recovers is not None:
            moved = rounded_update(mean, moved, others[recovers], quantum, inverse)
        for old, value in zip((mean, *others), (moved, *new[1:]), strict=True):
            if old is not None:
                old.copy_(value)
        if weight is not None:
            weight.copy_(moved)
        return terms if does == "all" else None

    # rather than keep its terms in temporary tensors; rules of many steps would take too long to compile
    update.recomputes = rule is proximal_step  # type: ignore[attr-defined]
    name = f"{rule.__name__}_{given.replace(' ', '_')}{'_decaying' if decays else ''}"
    update.__name__ = name if does == "all" else f"{name}_{does}"
    return update

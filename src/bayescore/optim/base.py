"""The base class of the network optimizers: usage, units, draws, steps, checkpoints, status.

    with opt.sample():            # weights theta = mean + sd * eps are written into the module
        loss.backward()           # once or more; `.grad` is the gradient of the mean loss at this draw
    opt.step(); opt.zero_grad()   # the module has held the mean again since the end of the block

Units. The user gives the mean loss l(theta) and N = num_data; tau is the temperature, N(m0, s0^2) the prior.
With c = tau/N the score of the posterior is
    s(theta) = -(1/c) (grad l(theta) + delta (theta - m0)),      delta = c/s0^2                       (1)
and everything is computed in per-datum units, c s, which stay in range for tau from 1 to 1e-6 and any N.

Weight decay. With weight_decay = w, every move of the mean m is combined with a decay to m0, as in AdamW,
    m <- m + move(m) - lr w (m - m0)                                                                  (2)
A prior cannot replace this: the score (1) of a weak prior is negligible beside the data's, and a strong prior
determines the sds.

Averaging. At a large learning rate the mean fluctuates about its fixed point. With average = f > 0 the mean
of the posterior is
    mbar <- mbar + (m - mbar)/max(1, f t)                                                             (3)
after update number t, while the module and training continue with m. In mbar the mean after update s has a
weight that grows like s^(1/f - 1): f = 1 is the plain average; with f = 1/2 the first half of the path has a
quarter of the weight.

State. Tensors are in `state[p]`, in float32 (float64 for float64 weights) even if the weights are bfloat16;
options and counters are in `param_groups`. The module keeps its storage. In a large network the mean of a
large tensor is there alone: its state "mean" is the module's own memory, which holds the draw inside a block,
and draws are taken back exactly (optim/recovery.py). Other weights are written and restored by copying. A
weight that was written by other code since the last step becomes the mean. The gradient of the last block
stays in `.grad`, where clipping and scaling can reach it; the gradients of earlier blocks of the same step
are moved into running sums ("sum_..."). Of a sharded weight (a DTensor), `state[p]` has this process's parts,
as plain tensors; `state_dict()` has them as DTensors, sharded like the weight, and what is summed over a
tensor is summed over all processes (optim/distributed.py).

A subclass defines its rule (rules/), its state and its options:
    _init_state(member, mean)     add tensors to the state of a parameter
    _update(bucket, seen)         the rule and what it is given, usually by `_apply`
    _learn(bucket, totals)        learn from the totals of the rule's terms
"""

from __future__ import annotations

import inspect
import math
import operator
import warnings
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from bayescore.checks import unknown_name
from bayescore.optim.checkpoint import (
    as_sharded,
    check_checkpoint,
    impossible_options,
    possible,
    restored_tensors,
    with_lists,
    with_words,
)
from bayescore.optim.distributed import Processes, check_here, check_processes_agree
from bayescore.optim.engine import (
    Bucket,
    Kernel,
    Member,
    collect_draw,
    draw_weights,
    keep_heap,
    make_buckets,
    run_in_slices,
    update_kernel,
)
from bayescore.optim.gradients import (
    backward_calls,
    check_mean_loss,
    check_update_in_backward,
    finite,
    gradient_scale,
    gradient_version,
    is_used,
    updating_in_backward,
    version,
    warn_foreign,
)
from bayescore.optim.losses import LOSSES, mean_sentence
from bayescore.optim.noise import (
    Noise,
    counter_key,
    generator_normal,
    is_large_network,
    stream_names,
    uses_counter,
)
from bayescore.optim.options import (
    COMMON,
    COUNTERS,
    WHOLE,
    CommonOptions,
    check_group,
    check_own_groups,
    check_prior_names,
    initial_sd,
    prior_tensor,
)
from bayescore.optim.recovery import (
    WIDE,
    Grid,
    Look,
    decoded,
    displace_by_sd,
    fitted,
    grid_like,
    is_look,
    look_at,
    off_grid,
    quantum_of,
    snap,
    uninterrupted,
    write_codes,
)
from bayescore.optim.status import Slope, lagging, slope_of
from bayescore.optim.steep import is_steep
from bayescore.optim.usage import Usage, losses_seen
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.shards import is_sharded, local, reshard, sharded_like, sharded_modules

__all__ = ["BayesianOptimizer", "Move", "Seen", "Told"]

GONE = "the gradient of the last sample() block is gone; call zero_grad() after step(), not before"
STOPPED = 1e-12  # a smaller learning rate in a checkpoint is that of a schedule that has ended, and valid
EARLY, EVERY = 10, 100  # the state is checked after each of the first updates, and then every so many
SUMS = ("sum_g", "sum_xg", "sum_e", "sum_ee")


class Seen(NamedTuple):
    """The gradients of a bucket in one step: that of its only draw, or sums over several draws.

    Arguments:
        g: the gradient of the only draw; None if the bucket holds sums over several.
        noise: of that draw; "coded" if the state has it (optim/recovery.py).
        draws: number of draws in the step.
    """

    g: Tensor | None
    noise: Noise | str | None
    draws: int


class Move(NamedTuple):
    """A rule and what it is given: the update of a bucket before it is made."""

    rule: Callable[..., Any]
    states: Sequence[str]  # that the rule has besides the mean
    given: str  # see `update_kernel`
    args: Sequence[Any]
    tells: bool = True  # whether the rule has terms


Told = list[tuple[Bucket, Tensor]]  # the totals of a rule's terms over a bucket's tensors


class BayesianOptimizer(torch.optim.Optimizer):
    """Base of the network optimizers.

    Arguments:
        params: parameters, named parameters, or groups of them with their own options.
        num_data: size of the training set, N.
        own: the subclass's options, including lr.
        common: those of `CommonOptions`.
        steep_watch: for how many updates the rate is lowered if the loss is steep (optim/steep.py).
    """

    #: the smallest number of draws per step
    least_draws: ClassVar[int] = 1
    #: common options that the method does not have, and why
    lacks: ClassVar[dict[str, str]] = {}
    #: whether a block draws the weights
    perturbs: ClassVar[bool] = True
    #: options that cannot differ between groups of parameters
    whole_options: ClassVar[tuple[str, ...]] = WHOLE
    #: the state from which widths are computed: of a large tensor it has the noise too (optim/recovery.py)
    coded: ClassVar[str] = "sd"
    #: which of the rule's terms are largest values, not sums (rules/terms.py)
    largest_terms: ClassVar[tuple[int, ...]] = ()
    # makes GradScaler pass its scale to step() instead of skipping it: earlier draws can be unscaled too
    _step_supports_amp_scaling = True

    # -- construction and options ------------------------------------------------------------------------

    def __new__(cls, *args: Any, **options: Any) -> Self:
        if args and isinstance(args[0], nn.Module):
            raise TypeError(f"{cls.__name__} got a module; pass its parameters, model.parameters()")
        if args and len(args) < 2 and "num_data" not in options:
            raise TypeError(
                f"{cls.__name__} needs num_data=, the size of the training set, such as "
                "num_data=len(train_set)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        params: Any,
        num_data: int,
        own: dict[str, Any],
        common: CommonOptions,
        steep_watch: int = 0,
    ) -> None:
        for name in common:
            if name not in COMMON:
                raise TypeError(str(unknown_name(f"option of {type(self).__name__}", name, self.options())))
        self._check_lacking(common)
        self._prepare()
        keep_heap()
        given = {
            "num_data": num_data,
            "lr_factor": 1.0,
            "steep_watch": steep_watch,
            "quanta": (),
            **LOSSES,
            **COMMON,
            **common,
            **own,
        }
        super().__init__(params, {**given, "method": type(self).__name__, **dict.fromkeys(COUNTERS, 0)})
        check_prior_names(self.param_groups)

    @classmethod
    def options(cls) -> list[str]:
        """The names of all options, in the order of the constructor."""
        own = inspect.signature(cls).parameters.values()
        shared = [name for name in COMMON if name not in cls.lacks]
        return [p.name for p in own if p.kind is p.KEYWORD_ONLY] + shared

    def _check_lacking(self, given: Mapping[str, Any]) -> None:
        for name in (name for name in self.lacks if name in given and given[name] != COMMON[name]):
            raise ValueError(f"{type(self).__name__} has no {name}: {self.lacks[name]}")

    def _prepare(self) -> None:
        self.usage = Usage()
        self._open = False
        self._compared = False  # with the other processes of a distributed run
        self._processes: Processes | None = None  # that hold sharded weights, as of the last block
        self._modules: weakref.WeakSet[Any] = weakref.WeakSet()  # of FSDP2, that use these weights
        self._told: Told = []  # totals of this update, of which nothing has been learned yet
        self._looks: list[tuple[Member, Look]] = []  # at the grids, in this step
        self._size = 0  # trained weights, as of the last block
        self._counted: int | None = None  # weights, frozen ones included
        self._versions: dict[Tensor, tuple[int, int]] = {}
        self._used: dict[Tensor, tuple[int, int]] = {}  # versions of the gradients of the last step
        self._buckets: list[Bucket] = []
        self._bucketed: list[Tensor] = []  # the weights in the buckets
        self._kernels: dict[Any, Kernel] = {}
        self._generators: dict[torch.device, torch.Generator] = {}
        self._summed = True  # whether the state may have running sums
        self._updated: set[int] = set()  # ids of buckets that were updated during backward
        self._bad = 0  # number of these whose gradient was not finite

    if not TYPE_CHECKING:  # a type checker shall still see names that are not there

        def __getattr__(self, name: str) -> Any:
            remedy = ""
            if name.startswith(("predict", "save", "summary")):
                remedy = "; opt.posterior(model) predicts and can be saved, opt.status says how training went"
            raise AttributeError(f"a {type(self).__name__} has no {name}{remedy}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        check_own_groups(param_group, self.defaults, self.whole_options)
        self._check_lacking(param_group)
        if "lr" in param_group or "init_sd" in param_group:
            param_group = {"steep_watch": 0, **param_group}
        super().add_param_group(param_group)
        self._counted = None
        group = self.param_groups[-1]
        try:
            check_here(group["params"])
            check_group(group)
            self._check(group)
            for p in group["params"]:
                if not p.is_floating_point():
                    raise TypeError(f"weights must be real floating point numbers; got {p.dtype}")
            if group["init_sd"] is None:
                group["init_sd"] = initial_sd(group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _check(self, group: dict[str, Any]) -> None:
        """Raise unless the method's own options make sense."""
        if group["update_in_backward"]:
            check_update_in_backward(group, self.least_draws)

    @property
    def size(self) -> int:
        """Number of trained weights."""
        return sum(p.numel() for group in self.param_groups for p in group["params"] if p.requires_grad)

    @property
    def _head(self) -> dict[str, Any]:
        return self.param_groups[0]

    def _count(self, name: str, change: int) -> None:
        for group in self.param_groups:
            group[name] += change

    def _rate(self, group: dict[str, Any]) -> float:
        """The learning rate, lowered if the loss is steep."""
        return float(group["lr"] * group["lr_factor"])

    def _stride(self, group: dict[str, Any]) -> float:
        """How far a gradient of 1 moves a weight of a group in the first update."""
        return self._rate(group)

    # -- what a method adds ------------------------------------------------------------------------------

    def _init_state(self, member: Member, mean: Tensor) -> None:
        """Add the method's tensors to the state of a parameter."""
        member.state["sd"] = torch.full_like(mean, member.group["init_sd"])
        member.state["statistics"] = mean.new_zeros(4)  # rules/curvature.py

    def _make_state(self, member: Member, mean: Tensor) -> None:
        self._init_state(member, mean)
        if member.group["average"]:
            member.state["average"] = mean.clone()

    def _collect(self, bucket: Bucket, g: Tensor, noise: Noise) -> None:
        """Add a draw to the running sums of a step with several draws."""
        self._run(bucket, collect_draw, *bucket.zeros(*SUMS), g, noise)

    @abstractmethod
    def _update(self, bucket: Bucket, seen: Seen) -> Move:
        """The update of a bucket."""

    def _apply(
        self,
        bucket: Bucket,
        rule: Callable[..., Any],
        states: Sequence[str],
        seen: Seen,
        o: Any,
    ) -> Move:
        """The update by `rule(mean, *states, prior_mean, draws, o)`."""
        if seen.g is None:
            args, given = [bucket.flat[key].div_(seen.draws) for key in SUMS], "sums"
        elif isinstance(seen.noise, str):
            args, given = [seen.g], seen.noise
        else:
            args, given = [seen.g, cast(Tensor, seen.noise)], "noise"
        return Move(rule, states, given, (self._prior_mean(bucket), *args, o))

    def _make(self, bucket: Bucket, move: Move, does: str = "all") -> Any:
        """Apply a rule and the decay (2), and write the new mean into the module, in one pass over memory.

        Arguments:
            does: "all", and returns the totals of the rule's terms; or one half of it: "terms" changes
                nothing, "moves" returns None.
        """
        rule, states, given, args, _ = move
        weight, mean = bucket.whole, bucket.like
        if bucket.in_place:
            weight, mean = None, bucket.members[0].local.detach().view(-1)
        grid: tuple[Any, ...] = ()
        if recovers := self._recovers(bucket):
            grid = self._grid(bucket)
        decay: tuple[Tensor, ...] = ()
        if share := self._rate(bucket.group) * bucket.group["weight_decay"]:
            decay = (self._prior_mean(bucket), bucket.number(share))
        coded = list(states).index(self.coded) if recovers else None
        kernel = update_kernel(rule, 1 + len(states), given, bool(decay), coded, does)
        kept = [bucket.flat.get(key) for key in states]
        return self._run(bucket, kernel, weight, mean, *kept, *grid, *decay, *args)

    def _run(self, bucket: Bucket, function: Callable[..., Any], *args: Any) -> Any:
        """Run a kernel over a bucket; returns the totals of its terms."""
        compiled = bucket.group["compiled"]
        if (function, compiled) not in self._kernels:
            self._kernels[function, compiled] = Kernel(function, compiled)
        return self._kernels[function, compiled](self._size, bucket, *args)

    def _numbers(self, bucket: Bucket, *values: float) -> tuple[Tensor, ...]:
        """Options of a rule as zero-dimensional tensors."""
        like = bucket.like
        return torch.tensor(values, dtype=like.dtype, device=like.device).unbind()

    def _prior_mean(self, bucket: Bucket) -> Tensor:
        """m0 of a bucket: one number per weight, or one for all weights."""
        if "prior_mean" in bucket.flat:
            return bucket.flat["prior_mean"]
        value = bucket.group["prior_mean"]
        return bucket.number(float(value) if isinstance(value, int | float) else 0.0)

    def _measure(self, buckets: Sequence[Bucket], draws: int) -> Told:  # noqa: ARG002
        """What a rule for several draws must know about whole tensors before its update."""
        return []

    def _learn(self, bucket: Bucket, totals: Tensor) -> None:
        """Learn from the totals of the terms, over the whole tensors of a bucket."""

    def _learn_all(self, told: Told) -> None:
        for bucket, totals in told:
            self._learn(bucket, totals)

    def _agree(self, processes: Processes, wrong: bool, told: Told) -> tuple[bool, Told]:
        """What all processes say in a step: whether a gradient is not finite on any, and the totals.

        It is one message (optim/distributed.py), in which the looks at the grids travel too.
        """
        rank = torch.distributed.get_rank()
        rows = [
            (member.number, rank == 0 if part is None else part.counted, row)
            for bucket, totals in told
            for member, part, row in zip(bucket.members, bucket.parts, totals, strict=True)
        ]
        members, looks = [member for member, _ in self._looks], [look for _, look in self._looks]
        wrong, found, looks = processes.agree(wrong, rows, self.largest_terms, looks)
        self._looks = list(zip(members, looks, strict=True))
        totals = iter(found)
        return wrong, [(b, torch.stack([next(totals) for _ in b.members])) for b, _ in told]

    def _after_update(self) -> None:
        """Called after an update, of all buckets unless an exception has ended it."""
        told, self._told = self._told, []
        if told:
            self._learn_all(told)
        self._fit_grids()

    # -- draws that are taken back (optim/recovery.py) ---------------------------------------------------

    def _recovers(self, bucket: Bucket) -> bool:
        """Whether the draws of a bucket are added to the mean and taken back."""
        return self.perturbs and bucket.in_place

    def _quantum(self, member: Member) -> float:
        quanta = member.group["quanta"]
        return float(quanta[member.position]) if member.position < len(quanta) else 0.0

    def _grid(self, bucket: Bucket, sign: int = 1) -> Grid:
        quantum = self._quantum(bucket.members[0])
        return Grid(bucket.number(sign * quantum), bucket.number(1 / quantum))

    def _displace(self, bucket: Bucket, sign: int) -> None:
        """Add the draw that the state has to the mean of a bucket, or take it back."""
        self._run(bucket, displace_by_sd, bucket.whole, bucket.flat[self.coded], *self._grid(bucket, sign))

    def _widest(self, member: Member) -> float:
        """The largest sd of the next draw of this process's part of a tensor."""
        sd = member.state["sd"]
        return float(sd.amax()) if sd.numel() else 0.0

    def _level(self, member: Member, widths: bool = True) -> float:
        """L of (4) in optim/recovery.py, of this process's part of a tensor; or of its mean only."""
        weight = member.local.detach()
        if not weight.numel() or not self._is_in_place(member):
            return 0.0
        level = max(abs(float(extreme)) for extreme in weight.aminmax())
        return max(level, WIDE * self._widest(member)) if widths else level

    def _settle(self, member: Member) -> None:
        """Put weights that are new, or that other code has written, on a grid."""
        weight, quantum = member.local.detach().view(-1), self._quantum(member)
        off = not quantum or bool(run_in_slices(off_grid, weight, *grid_like(weight, quantum)))
        here = [self._level(member, False), self._level(member), float(off)]
        found = torch.tensor(here, dtype=torch.float64)
        if (processes := Processes.of([member.weight])) is not None:
            found = processes.largest(found)
        level, with_widths, off = found.tolist()
        if off or look_at(quantum, level, weight.dtype).outgrown:
            self._looks = [(m, look) for m, look in self._looks if m.weight is not member.weight]
            self._regrid(member, quantum_of(with_widths, weight.dtype))

    def _regrid(self, member: Member, quantum: float) -> None:
        """Give a tensor another quantum, and put its mean on the grid."""
        group = member.group
        quanta = list(group["quanta"]) or [0.0] * len(group["params"])
        quanta[member.position] = quantum
        group["quanta"] = tuple(quanta)
        if self._is_in_place(member):
            weight = member.local.detach().view(-1)
            run_in_slices(snap, weight, *grid_like(weight, quantum))
            self._versions[member.weight] = version(member.weight)

    def _look_at_grids(self, members: Sequence[Member]) -> None:
        """Before the first draw of a step in which that is due: do the grids suit this process's parts?"""
        if not self.perturbs or self._head["taken"]:
            return
        due = is_look(self._head["updates"])
        large = [m for m in members if m.is_large and self._quantum(m)] if due else []
        self._looks = [(m, look_at(self._quantum(m), self._level(m), m.state["mean"].dtype)) for m in large]

    def _fit_grids(self) -> None:
        """After the update of a step in which the grids were looked at: change those that do not suit."""
        looks, self._looks = self._looks, []
        for member, look in looks:
            old, dtype = self._quantum(member), member.state["mean"].dtype
            if (new := fitted(old, look, dtype)) != old:
                self._regrid(member, new)

    # -- parameters and their state ----------------------------------------------------------------------

    def _members(self, frozen: bool = False, empty: bool = False) -> Iterator[Member]:
        """The trained tensors; with `frozen`, also those that were trained before they were frozen; with
        `empty`, also those without elements, which have nothing to train but a place in a checkpoint."""
        number = -1
        state, versions = self.state, self._versions
        for group in self.param_groups:
            for position, p in enumerate(group["params"]):
                number += 1
                if (p.numel() or empty) and (p.requires_grad or (frozen and "mean" in state[p])):
                    member = Member(number, group, position, p, state[p])
                    if not self._open and versions.get(p) != version(p):
                        self._synchronise(member)
                    yield member

    def _drop_replaced(self) -> None:
        """Drop the state of tensors in whose place a wrapper has put others, as accelerate does for FSDP2."""
        weights = {id(p) for group in self.param_groups for p in group["params"]}
        for p in [p for p in self.state if id(p) not in weights]:
            del self.state[p]

    @torch.inference_mode(False)
    @torch.no_grad()
    def _synchronise(self, member: Member) -> None:
        """Create the state of a tensor, or take over weights that other code has written since."""
        p, state = member.weight, member.state
        here = member.local.detach()
        value = here.to(torch.float64 if p.dtype == torch.float64 else torch.float32)
        in_place = self._is_in_place(member)
        if "mean" not in state:
            if not possible("mean", value):
                raise ValueError(
                    f"a parameter of the shape {tuple(p.shape)} holds numbers that are not finite before its "
                    "first update; initialise it, or load other weights"
                )
            state["mean"] = here if in_place else value.clone(memory_format=torch.contiguous_format)
            prior = prior_tensor(member.group, member.position, state["mean"])
            if prior is not None:
                state["prior_mean"] = prior
            self._make_state(member, state["mean"])
        elif in_place:
            state["mean"] = here
        else:
            same = here == state["mean"].to(p.dtype)
            new = torch.where(same, state["mean"], value)
            if "average" in state:  # shift it with the mean, so that restoring the weights restores it too
                state["average"].add_(new - state["mean"])
            state["mean"].copy_(new)
        if in_place and self.perturbs:
            self._settle(member)
        self._versions[p] = version(p)

    def _is_in_place(self, member: Member) -> bool:
        """Whether the state "mean" of a tensor is the module's own memory."""
        here = member.local
        wide = here.dtype in (torch.float32, torch.float64)
        averaged = member.group["average"] or "average" in member.state  # which needs the mean of before
        saves = member.is_large and is_large_network(self._all_weights)
        return saves and wide and here.is_contiguous() and not averaged

    @property
    def _all_weights(self) -> int:
        """Number of weights, frozen ones included."""
        if self._counted is None:
            self._counted = sum(p.numel() for group in self.param_groups for p in group["params"])
        return self._counted

    def _gathered(self, members: list[Member]) -> list[Bucket]:
        """The members in buckets; the buckets of the last call if they are still current."""
        weights = [m.weight for m in members]
        same = len(weights) == len(self._bucketed) and all(map(operator.is_, weights, self._bucketed))
        if not same or not all(bucket.is_current for bucket in self._buckets):
            self._buckets, self._bucketed = make_buckets(members), weights
        return self._buckets

    # -- noise -------------------------------------------------------------------------------------------

    def noise(self, bucket: Bucket, draw: int) -> Noise:
        """eps of a bucket in draw number `draw` of the present step."""
        return self._noise(bucket, self._head["step"], draw)

    def _noise(self, bucket: Bucket, step: int, draw: int) -> Noise:
        like, seed = bucket.like, bucket.group["seed"]
        key = (seed, step, draw)
        if bucket.noise is not None and bucket.noise[0] == key:
            return bucket.noise[1]
        pair, sign = draw // 2, 1.0 - 2.0 * (draw % 2)
        names = stream_names((seed, step, pair), [m.number for m in bucket.members])
        counter = uses_counter(self._size, bucket.members[0].weight.numel())  # that of the only large one
        if bucket.is_large and counter:
            return counter_key(like, names[0], sign, bucket.parts[0])
        if like.device not in self._generators:
            self._generators[like.device] = torch.Generator(device=like.device)
        eps, rng = torch.empty_like(like), self._generators[like.device]
        parts = eps.split_with_sizes(bucket.sizes)
        for numbers, name, part in zip(parts, names, bucket.parts, strict=True):
            if part is None:
                generator_normal(numbers, name, sign, rng)
            else:  # a small tensor, or one of a small network
                whole = like.new_empty(part.shape)
                generator_normal(whole, name, sign, rng)
                numbers.copy_(part.cut(whole).reshape(-1))
        bucket.noise = (key, eps)
        return eps

    def _present_noise(self, bucket: Bucket) -> Noise | str:
        """The noise of the only draw of this step, or where it is (`Seen.noise`)."""
        return "coded" if self._recovers(bucket) else self.noise(bucket, 0)

    # -- the block ---------------------------------------------------------------------------------------

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Write a draw of the weights into the module for the length of the block."""
        if self._open:
            raise RuntimeError("sample() was entered inside sample(); close the first block before the next")
        for group in self.param_groups:
            check_here(group["params"])  # again: a module can be sharded after its optimizer was made
        self._processes = Processes.of(p for group in self.param_groups for p in group["params"])
        first = not self._compared
        if first:
            self._drop_replaced()
            check_processes_agree(self.param_groups)
            self._compared = True
        self._reshard()
        if self._head["taken"] > self._head["collected"]:
            self._collect_last()
        with self._processes.raising_together() if first and self._processes else nullcontext():
            members = list(self._members())
        buckets = self._gathered(members)
        self._size = self.size
        self._look_at_grids(members)
        weights = [member.weight for member in members]
        warn_foreign(weights, self._used)
        for weight in weights:
            weight.grad = None
        counting = any(member.group["accumulate"] > 1 for member in members)
        self._open = True
        try:
            with torch.no_grad():
                for bucket in buckets:
                    self._write_draw(bucket)
            torch.clear_autocast_cache()  # it holds low-precision copies of weights that have just changed
            counted: AbstractContextManager[Mapping[int, int]] = nullcontext({})
            if counting:  # FSDP2 may add up gradients before a weight sees them
                counted = backward_calls(weights) if self._processes is None else losses_seen()
            self._updated.clear()
            self._bad = 0
            updating = self._head["update_in_backward"]
            with (
                self._in_backward(buckets) if updating else nullcontext(),
                counted as calls,
                nullcontext() if self._processes is None else self._finding_modules(),
                self.usage.block(self._head),
            ):
                yield
        except BaseException:
            for weight in weights:
                weight.grad = None
            self._leave(buckets)
            raise
        self._leave(buckets)
        self._check_gradients(members, max(calls.values(), default=1))

    @contextmanager
    def _finding_modules(self) -> Iterator[None]:
        """Find the FSDP2 modules that run in the block, and let them gather the weights that were drawn."""
        if self._modules:
            yield
            return
        weights = {id(p) for group in self.param_groups for p in group["params"]}

        def look(module: nn.Module, _: Any) -> None:
            if sharded_modules([module]) and module not in self._modules:
                reshard(module)
                if any(id(p) in weights for p in module.parameters()):
                    self._modules.update(sharded_modules(module.modules()))

        with nn.modules.module.register_module_forward_pre_hook(look):
            yield

    def _reshard(self) -> None:
        """Let FSDP2 modules forget the weights that they have gathered: their parts are written."""
        if self._modules:  # asking is faster than going through an empty WeakSet
            for module in self._modules:
                module.reshard()

    def _write_draw(self, bucket: Bucket) -> None:
        noise = self.noise(bucket, bucket.group["taken"])
        if self._recovers(bucket):
            self._run(bucket, write_codes, bucket.flat[self.coded], noise)
            bucket.noise = None
            with uninterrupted():
                self._displace(bucket, 1)
                bucket.drawn = True
                self._note_versions(bucket)
            return
        whole = bucket.whole
        theta = bucket.scratch if whole is None else whole
        self._draw(bucket, theta, noise)
        if whole is None:
            torch._foreach_copy_(bucket.weights, bucket.scratch_parts)

    def _draw(self, bucket: Bucket, theta: Tensor, noise: Noise) -> None:
        """Write a draw of a bucket's weights into a flat tensor."""
        self._run(bucket, draw_weights, theta, bucket.flat["mean"], bucket.flat["sd"], noise)

    @torch.no_grad()
    def _leave(self, buckets: list[Bucket]) -> None:
        """End a block: the module holds the mean again, also if Ctrl-C comes in between."""
        self._reshard()
        try:
            self._restore_all(buckets)
        except KeyboardInterrupt:
            self._restore_all(buckets)  # what has been restored stays as it is
            raise

    def _restore_all(self, buckets: list[Bucket]) -> None:
        for bucket in buckets:
            if id(bucket) not in self._updated:
                self._restore(bucket)
        torch.clear_autocast_cache()
        self._open = False

    def _restore(self, bucket: Bucket) -> None:
        """Write the mean of a bucket back into the module, or take the draw back."""
        if not self._recovers(bucket):
            self._write_mean(bucket)
        elif bucket.drawn:
            weight = bucket.members[0].weight
            with uninterrupted():
                untouched = self._versions.get(weight) == version(weight)
                self._displace(bucket, -1)
                bucket.drawn = False
                if untouched:  # otherwise other code has written it inside the block, perhaps off its grid
                    self._note_versions(bucket)

    def _write_mean(self, bucket: Bucket) -> None:
        torch._foreach_copy_(bucket.weights, bucket.means)
        self._note_versions(bucket)

    def _note_versions(self, bucket: Bucket) -> None:
        self._versions.update((m.weight, version(m.weight)) for m in bucket.members)

    def _check_gradients(self, members: list[Member], calls: int) -> None:
        """Check the block's gradients; with `accumulate` above 1, average them over its backward calls."""
        reached = [(m, g) for m in members if (g := m.weight.grad) is not None]
        if not reached:
            raise RuntimeError(
                "no gradient reached any parameter inside sample(); call loss.backward() inside the block "
                "(for a forward pass with drawn weights use opt.posterior(model).sample_())"
            )
        for member, g in reached:
            if g.layout != torch.strided:
                raise TypeError(
                    "a gradient is sparse, and the posterior is over all weights; use Embedding(sparse=False)"
                )
            if member.group["accumulate"] > 1:
                g.div_(min(member.group["accumulate"], calls))
        self._count("taken", 1)

    @torch.no_grad()
    def _collect_last(self) -> None:
        """Move the last block's gradient from `.grad` into the sums."""
        draw = self._head["taken"] - 1
        if self._head["update_in_backward"]:
            raise RuntimeError(
                "update_in_backward=True makes one draw per step; call step() before the next sample()"
            )
        self._summed = True
        reached = [m for m in self._members() if m.weight.grad is not None]
        if not reached:
            raise RuntimeError(GONE)  # on all processes: a sharded gradient is there on all, or on none
        for bucket in self._gathered(reached):
            coded = self._recovers(bucket)
            noise = decoded(bucket.flat[self.coded]) if coded else self.noise(bucket, draw)
            self._collect(bucket, self._gradient(bucket), noise)
            for member in bucket.members:
                member.weight.grad = None
        self._count("collected", 1)

    # -- the step ----------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the posterior from the draws since the last step.

        With a closure: make `draws` draws, call it inside each (it runs forward and backward), then step.
        Returns what the closure returned last.
        """
        if self._open:
            raise RuntimeError("step() was called inside sample(); close the block first")
        loss = None
        if closure is not None:
            try:
                for _ in range(self._head["draws"]):
                    with self.sample(), torch.enable_grad():
                        loss = closure()
                        check_mean_loss(loss)
            except BaseException:
                self._forget()  # draws of one batch do not belong to the next
                raise
        draws = self._head["taken"]
        if not draws and self._is_dry_run():
            list(self._members(empty=True))  # makes the state
            return loss
        if draws < self.least_draws:
            for group in self.param_groups:
                check_here(group["params"])
            raise RuntimeError(
                f"{type(self).__name__} needs {self.least_draws} draw(s) per step and there were {draws}; "
                "use `with opt.sample(): loss.backward()` that many times before opt.step(), "
                "or opt.step(closure); zero_grad() before step() throws draws away"
            )
        with torch.no_grad():
            try:
                moved = self._finish(draws)
            finally:
                self._forget()
                for group in self.param_groups:
                    group["last_draws"] = draws
            if moved:
                self._after_update()
                self._average()
                if self._head["updates"] <= EARLY or self._head["updates"] % EVERY == 0:
                    with self._processes.raising_together() if self._processes else nullcontext():
                        self._check_state()
        self.usage.end_step(self.param_groups, draws)
        return loss

    def _is_dry_run(self) -> bool:
        """Whether this step only asks for the state: no state yet, rates and gradients of zero.

        That is how torch.distributed.checkpoint makes the state of an optimizer that it is about to load.
        """
        if self.state or any(group["lr"] != 0 for group in self.param_groups):
            return False
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.requires_grad]
        return all(g is not None and not local(g).any() for g in gradients)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard gradients, and, outside of a block, the draws since the last step too."""
        if set_to_none:
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad = None
        else:
            super().zero_grad(set_to_none)
        if self._head["taken"] and not self._open:
            self._forget()

    def _finish(self, draws: int) -> bool:
        """Update from all draws of the step; returns whether the weights have moved."""
        if self._head["update_in_backward"]:
            return self._finish_backward()
        members = [m for m in self._members() if m.weight.grad is not None or "sum_g" in m.state]
        if not any(m.weight.grad is not None for m in members):
            raise RuntimeError(GONE)
        scale = gradient_scale(self, draws)
        buckets = self._gathered(members)
        if draws == 1:
            parts = [self._gradient(bucket) for bucket in buckets]
        else:
            parts = [g for m in members if (g := m.gradient) is not None]
            parts += [m.state["sum_g"] for m in members if "sum_g" in m.state]
        wrong, processes = scale is None or not finite(parts), self._processes
        if wrong and processes is None:
            self._skip()
            return False
        by = 1.0 if scale is None else scale
        if draws > 1:
            self._collect_last()
            buckets = self._gathered(members)
            for bucket in buckets:
                bucket.scale_sums(by)
        moves: dict[int, Move] = {}
        measured, self._told = self._measure(buckets, draws) if draws > 1 else [], []
        if processes is not None:
            if not measured:
                self._count("updates", 1)  # which the options of a rule depend on
                moves = {
                    i: self._update(b, self._seen(b, draws, by, parts, i)) for i, b in enumerate(buckets)
                }
                self._count("updates", -1)
                telling = [(b, moves[i]) for i, b in enumerate(buckets) if moves[i].tells]
                self._told = [(bucket, self._make(bucket, move, "terms")) for bucket, move in telling]
            wrong, agreed = self._agree(processes, wrong, measured or self._told)
            measured, self._told = (agreed, []) if measured else ([], agreed)
            if wrong:
                self._skip()
                return False
        watched = any(group["updates"] < group["steep_watch"] for group in self.param_groups)
        divisor = by if draws == 1 else float(draws)
        if watched and is_steep(self.param_groups, members, list(self._members()), divisor, self._stride):
            return False
        self._count("updates", 1)
        self._count("skipped_in_a_row", -self._head["skipped_in_a_row"])
        if measured:
            self._learn_all(measured)
        for i, bucket in enumerate(buckets):
            if i in moves:
                self._make(bucket, moves.pop(i), "moves")
            else:
                self._move(bucket, self._seen(bucket, draws, by, parts, i))
            self._finish_bucket(bucket)
        self._reshard()
        torch.clear_autocast_cache()
        return True

    def _move(self, bucket: Bucket, seen: Seen) -> None:
        """Update a bucket, and keep what the rule tells."""
        move = self._update(bucket, seen)
        totals = self._make(bucket, move)
        if move.tells:
            self._told.append((bucket, totals))

    def _gradient(self, bucket: Bucket) -> Tensor:
        return bucket.gathered(g for m in bucket.members if (g := m.gradient) is not None)

    def _seen(self, bucket: Bucket, draws: int, scale: float, gradients: Sequence[Tensor], i: int) -> Seen:
        """What bucket number i has seen in this step; with one draw, its gradient."""
        if draws == 1:
            g = gradients[i]
            return Seen(g if scale == 1.0 else g / scale, self._present_noise(bucket), 1)
        return Seen(None, None, draws)

    def _finish_bucket(self, bucket: Bucket) -> None:
        """After an update: state and module hold the mean."""
        if bucket.whole is None:
            self._write_mean(bucket)
        else:
            self._note_versions(bucket)

    def _forget(self) -> None:
        """Discard the draws of this step, used or not, and count the step; the next has new noise."""
        for bucket in self._buckets:
            bucket.noise = None
        if self._summed:
            for bucket in self._buckets:
                bucket.drop_sums()
            for state in self.state.values():
                for key in [k for k in state if k.startswith("sum_")]:
                    del state[key]
            self._summed = False
        for group in self.param_groups:
            group["taken"] = group["collected"] = 0
        weights = (p for group in self.param_groups for p in group["params"])
        self._used = {p: gradient_version(g) for p in weights if (g := p.grad) is not None}
        self._count("step", 1)

    def _average(self) -> None:
        """Update the average (3) of every tensor, also of one that is frozen or had no gradient."""
        for group in self.param_groups:
            share = 1 / max(1.0, group["average"] * group["updates"])
            for state in filter(None, map(self.state.get, group["params"])):
                if "average" in state:  # if the option was set to 0 during the run, share is 1
                    state["average"].lerp_(state["mean"], share)
                elif group["average"] and "mean" in state:  # the option was set during the run
                    state["mean"] = state["mean"].clone()  # so far it may be the module's own memory
                    state["average"] = state["mean"].clone()

    def _check_state(self) -> None:
        """Raise if finite gradients have driven the posterior out of the range of its numbers."""
        given = " and ".join(name for name in ("prior_sd", "init_sd") if name not in self.lacks)
        widths = f", or give {given} nearer to the size of the weights" if given else ""
        for group in self.param_groups:
            for p in group["params"]:
                state = {"weights": local(p).detach(), **self.state[p]} if p in self.state else {}
                lost = (what for what, value in state.items() if not possible(what, value))
                for what in (what for what in lost if not what.startswith("sum_")):  # sums are gradients
                    raise FloatingPointError(
                        f"{what} of a parameter of the shape {tuple(p.shape)} left the range of numbers that "
                        f"float32 can square by update {group['updates']}, from finite gradients: "
                        f"lower lr ({group['lr']:g}) or temperature ({group['temperature']:g}){widths}; this "
                        "state is lost, and the last checkpoint is good"
                    )

    def _skip(self, count: int = 1) -> None:
        """Count an update that is left out because gradients are not finite; warn the first time."""
        self._check_state()  # which may be why they are not finite
        self._count("skipped", count)
        self._count("skipped_in_a_row", 1)
        head = self._head
        if head["skipped"] == count:
            warnings.warn(
                f"a gradient was not finite at step {head['step']}: this update was left out, "
                "and so will be others (opt.status counts them)",
                RuntimeWarning,
                stacklevel=4,
            )
        if head["skipped_in_a_row"] >= head["max_skips"]:
            raise FloatingPointError(
                f"{head['skipped_in_a_row']} updates in a row had gradients that were not finite; "
                f"lower lr{'' if 'init_sd' in self.lacks else ' or init_sd'}, or check the data"
            )

    # -- the update during backward ----------------------------------------------------------------------

    @contextmanager
    def _in_backward(self, buckets: list[Bucket]) -> Iterator[None]:
        """With update_in_backward, update large tensors as soon as their gradients are complete."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError(
                "update_in_backward=True would use gradients before the other processes' are added; "
                "leave it out in distributed training"
            )
        self._count("updates", 1)
        try:
            with updating_in_backward(buckets, self._update_now):
                yield
        except BaseException:
            if self._updated:
                self._after_update()
            else:
                self._count("updates", -1)
            raise

    def _update_now(self, bucket: Bucket, *gradients: Tensor) -> None:
        self._updated.add(id(bucket))
        self._restore(bucket)
        if finite(gradients):
            self._move(bucket, Seen(bucket.gathered(gradients), self._present_noise(bucket), 1))
        else:
            self._bad += 1
        self._finish_bucket(bucket)

    def _finish_backward(self) -> bool:
        """The step with update_in_backward: update the small tensors, and count updates and skips."""
        for bucket in list(self._gathered(list(self._members()))):
            rows = [(m, m.weight.grad) for m in bucket.members]
            here = [(m, g) for m, g in rows if g is not None and not is_used(g)]
            if here:
                whole = bucket if len(here) == len(rows) else Bucket([m for m, _ in here])
                self._update_now(whole, *(g for _, g in here))
        if not self._updated:
            raise RuntimeError(GONE)
        moved = self._bad < len(self._updated)
        if not moved:
            self._count("updates", -1)
        if self._bad:
            self._skip(self._bad)
        else:
            self._count("skipped_in_a_row", -self._head["skipped_in_a_row"])
        return moved

    # -- posterior and checkpoints -----------------------------------------------------------------------

    def posterior(self, model: nn.Module | None = None, likelihood: Any = "categorical") -> Posterior:
        """The current posterior over the weights of `model`; later steps do not change it."""
        if model is None:
            raise TypeError("posterior() needs the module whose weights these are: opt.posterior(model)")
        if self._open:
            raise RuntimeError("posterior() was called inside sample(); close the block first")
        reshard(model)
        members = {m.weight: m for m in self._members(frozen=True)}
        self._check_state()
        names = {name: members[p] for name, p in model.named_parameters() if p in members}
        if len(names) != len(members):
            raise ValueError(
                f"the optimizer trains {len(members)} tensors and the model holds {len(names)} of them; "
                "pass the model whose parameters the optimizer was given"
            )
        return self._posterior(model, names, likelihood)

    def _sd(self, member: Member) -> Tensor:
        """A copy of the sds of a tensor's weights, or of this process's part of them."""
        return cast(Tensor, member.state["sd"]).clone()

    def _posterior(self, model: nn.Module, members: dict[str, Member], likelihood: Any) -> Posterior:
        mean = {name: m.state.get("average", m.state["mean"]).clone() for name, m in members.items()}
        mean = {name: sharded_like(mean[name], m.weight) for name, m in members.items()}
        sd = {name: sharded_like(self._sd(m), m.weight) for name, m in members.items()}
        return GaussianPosterior(model, mean, sd, likelihood=likelihood)

    def state_dict(self) -> dict[str, Any]:
        if self._open or self._head["taken"]:
            raise RuntimeError("state_dict() in the middle of a step: call step() first, then save")
        self._drop_replaced()
        list(self._members(empty=True))  # makes the state
        self._check_state()
        found = super().state_dict()
        for (key, value), p in zip(found["state"].items(), self.state, strict=True):
            if is_sharded(p):
                found["state"][key] = as_sharded(value, p)
        for group in found["param_groups"]:
            if isinstance(group["prior_mean"], dict):
                group["prior_mean"] = "given"  # every trained tensor has its own in its state
        found["param_groups"] = [with_words(group) for group in found["param_groups"]]
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method and the same parameters, bitwise."""
        if self._open:
            raise RuntimeError("load_state_dict() was called inside sample(); close the block first")
        method, state_dict = type(self).__name__, with_lists(state_dict, self.defaults)
        processes = Processes.of(p for group in self.param_groups for p in group["params"])
        with processes.raising_together() if processes else nullcontext():
            check_checkpoint(state_dict, self.param_groups, method, self._check_saved, self._initial_state)
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, old in zip(self.param_groups, before, strict=True):
            if group["prior_mean"] == "given" and isinstance(old["prior_mean"], dict):
                group["prior_mean"] = old["prior_mean"]
            if "param_names" in old:
                group["param_names"] = old[
                    "param_names"
                ]  # wrappers may have renamed this module's parameters
        for p, tensors in restored_tensors(state_dict, self.param_groups):
            self.state[p].update(tensors)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "mean" in self.state[p]:
                        local(p).copy_(self.state[p]["mean"])
        self._versions.clear()
        self._reshard()

    def _check_saved(self, saved: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise unless the options of a checkpoint's group are valid for a group."""
        lr = saved["lr"]
        stopped = isinstance(lr, float | int) and abs(lr) < STOPPED
        asked = {**saved, "params": group["params"], "lr": STOPPED if stopped else lr}
        check_group(asked)
        self._check(asked)
        if saved["taken"] or saved["collected"]:
            raise ValueError("it was written in the middle of a step")

    def _initial_state(self, group: dict[str, Any], saved: dict[str, Any], j: int) -> dict[str, Tensor]:
        """The initial state of parameter j of a group under a checkpoint's options, on the meta device."""
        options = {name: saved.get(name, value) for name, value in group.items() if name != "params"}
        p = group["params"][j]
        mean = torch.empty(p.shape, dtype=p.dtype, device="meta")
        member = Member(0, options, j, p, {"mean": mean})
        try:
            self._make_state(member, mean)
        except (TypeError, ValueError, RuntimeError) as error:
            raise impossible_options(error) from error
        if isinstance(options["prior_mean"], str):
            member.state["prior_mean"] = mean
        return member.state

    # -- status ------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """One sentence: whether the mean has arrived, the updates made and left out, and the sds."""
        head = self._head
        parts = [self.mean_status, f"{head['updates']} updates of {self.size} weights"]
        if head["skipped"]:
            parts.append(f"{head['skipped']} left out because a gradient was not finite")
        if head["lr_factor"] < 1:
            parts.append(f"rate lowered {1 / head['lr_factor']:.3g}-fold for a steep loss (is it a mean?)")
        kernels = sorted({kernel.status for kernel in self._kernels.values() if kernel.status})
        return "; ".join(part for part in (*parts, self._precision_status(), *kernels) if part)

    @property
    def mean_status(self) -> str:
        """Whether the loss still falls (optim/losses.py); empty if no loss was seen."""
        return mean_sentence(self._head["losses"], self._head["loss_lrs"], *self._mean_scales())

    def _mean_scales(self) -> tuple[float, float]:
        """The last two arguments of `mean_sentence`, where they are known."""
        return math.inf, 0.0

    def _precision_status(self) -> str:
        """Whether the standard deviations have been learned."""
        return ""

    def _measured(self) -> list[Slope]:
        """The slope statistics of the tensors that have had a gradient."""
        rows = []
        for m in (m for m in self._members() if m.state["statistics"][3] > 0):
            row, power = slope_of(m.state["statistics"], m.weight.numel()), self._power(m.group)
            sds = (m.group["init_sd"], m.group["prior_sd"])
            rows.append(
                row._replace(lagging=lagging(m.state["sd"], *sds, row.forgotten, power)) if power else row
            )
        return rows

    def _power(self, group: dict[str, Any]) -> int:  # noqa: ARG002
        """k of (1) in optim/status.py: the power of the precision that moves linearly; 0 if none does."""
        return 0

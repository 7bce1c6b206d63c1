"""Wrong uses of a network optimizer that torch lets pass, noticed from the loss at its backward call.

**How.** Inside a `sample()` block of a watched step, `torch.autograd.backward` (which `Tensor.backward`
calls) is replaced by a function that looks at the loss first. A loss knows how it was made: its autograd
graph names torch's loss functions and holds their inputs, their targets and the factors of the loss.
Nothing is seen of a loss that was made inside a compiled function; it is treated like one that raises no
doubt. (A TorchFunctionMode would see the calls themselves, but a compiled module is compiled once more when
a mode is active.) Tensors that a hook would compute again, as in checkpointed parts of a network, are not
read. What goes wrong here is logged and ends the watch; it never reaches the training loop.

**When.** The loss is read in the first 4 steps and then in every 100th; its value is taken in the steps that
optim/losses.py records; rows are compared as said below. In all other steps there is only the question
whether to watch.

**What is noticed**, each with one warning per optimizer:
    - a sum over the batch instead of a mean, or the mean times the number of rows or of data
    - softmax before cross_entropy, or sigmoid before binary_cross_entropy_with_logits
    - targets of binary_cross_entropy_with_logits outside of [0, 1]
    - residuals above 10, from targets with a mean or an sd above 10; targets with an sd below 0.01
    - the loss divided by k in each of the k blocks of a step, which averages over blocks
    - `batch_size` unlike the number of data over which the loss is a mean, by more than a factor of 2
    - `num_data` below the number of data in one batch, or far from the number in an epoch
and, as an error instead of torch's IndexError, labels that are no class.

**The length of an epoch** is found from rows of the first batches: where a trained weight meets data, the
graph holds the data, and the rows' fingerprints are looked for in later batches. If every row comes once per
epoch, in any order, and an epoch has K steps, then a row comes again after K to 2K steps (after K, without
shuffling), and a few less if it is not of the first batch. So with d the steps after which 16 rows came again
and A the number of first batches from which rows are taken, if
    8 <= min d,  max d <= 2.2 min d + A     then     max d / 2 <= K <= min d + A                         (1)
and otherwise nothing is concluded: random augmentation, sampling with replacement and duplicates in the data
scatter d far more. Of the first batches as many rows are taken that 48 of them are met again in an epoch.
Rows are compared in the first 64 steps, and then in every k-th, with k the number of rows in a batch divided
by 32, from 1 to 8; until (1) is decided, at most 1000 times. If no row has come again in the first 64 steps,
more rows of these are looked for, in as few steps as then suffice, up to every 8th: so an epoch may have some
thousand steps. `num_data` is far from an epoch if it is below a third of the least number of data that (1)
allows, or above ten times the largest.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from bayescore.optim.distributed import data_parallel_size
from bayescore.optim.losses import is_recorded, record_loss

__all__ = ["Usage", "losses_seen"]

FIRST, EVERY = 4, 100  # the loss is read in the first steps, and then every so many
SURE = 3  # readings that must agree where one batch could mislead
NODES = 20_000  # of a graph that are visited in search of the data
HEAD = 200  # of a graph that are visited in search of loss functions
LARGE, SMALL = 10.0, 0.01  # sds of targets that are not standardised
FEW = 8  # numbers from which an sd, or a factor equal to the number of rows, means something
NEEDED, SEEN, SHORTEST = 16, 48, 8  # of (1): rows that must come again, rows sought in an epoch, steps of one
TIMES, EACH, ROWS, RAREST = 1000, 64, 32, 8  # when rows are compared, see above
COLUMNS = 256  # numbers of a row that make its fingerprint
TOO_SMALL, TOO_LARGE = 3, 10  # factors by which num_data is far from an epoch
UNSEEN = 10  # steps in a row without a loss after which the watch is over
EXACT = 1e-6  # relative error of a factor
HALF = 0.5  # the factor of a square in a Gaussian's loss; a smaller one may divide by the number of data
NONE, MEAN, SUM = 0, 1, 2  # torch's numbers for reduction=

#: torch's loss functions by the nodes of the graph that they leave
CLASSES = (
    "NllLossBackward0",
    "NllLoss2DBackward0",
    "BinaryCrossEntropyBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
)
LOSSES = (*CLASSES, "MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0")
#: what makes a loss of residuals by hand
SQUARE, SIZE = "PowBackward0", "AbsBackward0"
#: whole reductions: the mean and the sum of all numbers of a tensor
REDUCTIONS = {"MeanBackward0": MEAN, "SumBackward0": SUM}
#: operations that change shapes and kinds of numbers, or keep numbers in a range
PASSED = ("View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "Clamp")
#: nodes where a weight meets data: which of their inputs the data are, and the name under which it is saved
INPUTS = {
    "AddmmBackward0": (1, "mat1"),
    "MmBackward0": (0, "self"),
    "BmmBackward0": (0, "self"),
    "ConvolutionBackward0": (0, "input"),
    "NativeBatchNormBackward0": (0, "input"),
    "NativeLayerNormBackward0": (0, "input"),
    "EmbeddingBackward0": (None, "indices"),
}

STANDARDISE = "standardise the targets (subtract the mean, divide by the sd), and undo it in predictions"

logger = logging.getLogger(__name__)


# -- reading a loss --------------------------------------------------------------------------------------


class Term(NamedTuple):
    """One loss function in a loss.

    Arguments:
        node: of the graph.
        factor: of this term in the loss.
        size: the number of data over which the loss is a mean; None if that is unknown.
        rows: of the batch.
        summed: whether it is a sum over the batch.
        target: what the network is to predict; None if that is unknown.
        divided: whether it is a sum that was divided by `size`.
    """

    node: Any
    factor: float
    size: int | None
    rows: int
    summed: bool
    target: Tensor | None
    divided: bool = False

    @property
    def name(self) -> str:
        return str(self.node.name())


def saved(node: Any, name: str) -> Any:
    """A tensor that a node holds for the backward pass; None if there is none, or a hook would make it."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", None) is not None:
        return None
    return getattr(node, f"_saved_{name}")


def kind(node: Any) -> str:
    """The operation of a node: "Mul" for MulBackward0 and MulBackward1."""
    return str(node.name().split("Backward")[0])


def number(node: Any) -> float | None:
    """The number by which a node multiplies; None if it does not, or by a tensor."""
    if kind(node) not in ("Mul", "Div") or any(n is not None for n, _ in node.next_functions[1:]):
        return None
    if not hasattr(node, "_raw_saved_other"):
        other = getattr(node, "_saved_other", None)
    else:
        other = saved(node, "other")
        plain = other is not None and not other.dim() and other.dtype in (torch.int64, torch.float64)
        other = other.item() if plain else None
    if not isinstance(other, int | float):
        return None
    return float(other) if kind(node) == "Mul" else 1 / other


def unscaled(loss: Tensor) -> tuple[Any, float]:
    """The root of a loss's graph and the factor of a GradScaler, which is a tensor of one number."""
    node: Any = loss.grad_fn
    if node.name() == "MulBackward0" and number(node) is None and node.next_functions[1][0] is None:
        other = saved(node, "other")
        if other is not None and not other.dim() and float(other) >= 2:
            return node.next_functions[0][0], float(other)
    return node, 1.0


def read(root: Any) -> tuple[float, list[Term]]:
    """The number by which a whole loss was multiplied, and the loss functions in it."""
    factor, node = 1.0, root
    while (share := number(node)) is not None:
        factor, node = factor * share, node.next_functions[0][0]
    terms: list[Term] = []
    top, todo, seen = (node, factor), [(node, factor, NONE, 1)], 0
    while todo and seen < HEAD:
        node, weight, reduced, over = todo.pop()
        seen += 1
        name, what, below = node.name(), kind(node), [n for n, _ in node.next_functions]
        if name in LOSSES or name in (SQUARE, SIZE):
            terms += _term(node, weight, reduced, over)
        elif what in ("Add", "Sub"):
            signs = (weight, -weight if what == "Sub" else weight)
            todo += [(n, sign, reduced, over) for n, sign in zip(below, signs, strict=False) if n is not None]
        elif (share := number(node)) is not None:
            todo.append((below[0], weight * share, reduced, over))
        elif name in REDUCTIONS and reduced == NONE:
            over = int(node._saved_self_sym_numel) if name == "MeanBackward0" else 1
            todo.append((below[0], weight, REDUCTIONS[name], over))
        elif reduced != NONE and _is_over_variance(node):
            todo.append((below[0], weight, reduced, over))
        elif what == "Neg":
            todo.append((below[0], -weight, reduced, over))
        elif name == "SumBackward1" or what in PASSED:
            todo.append((below[0], weight, reduced, over))
    return factor, terms or _of_rows(*top, root)


def _of_rows(node: Any, factor: float, root: Any) -> list[Term]:
    """A loss made by no known function: the mean or the sum of a tensor with one row per datum."""
    while node is not None and (kind(node) == "Neg" or number(node) is not None):
        factor *= number(node) or -1.0
        node = node.next_functions[0][0]
    if node is None or node.name() not in REDUCTIONS:
        return []
    data, shape = find_data(root), list(node._saved_self_sym_sizes)
    if data is None or not shape or shape[0] != len(data[1]):
        return []
    each, below = math.prod(shape[1:]), node.next_functions[0][0]
    while below is not None:
        if (share := number(below)) is not None:
            factor *= share
        elif below.name() in ("SumBackward1", "MeanBackward1"):
            size = len(below._saved_self_sym_sizes)
            if any(dim % 2**64 in (0, 2**64 - size) for dim in below._saved_dim):
                return []
        elif kind(below) not in ("Neg", *PASSED):
            break
        below = below.next_functions[0][0]
    if below is None or kind(below) in ("Stack", "Cat") or _is_weighted(below):
        return []
    if node.name() == "MeanBackward0":
        return [Term(node, factor, shape[0] if each == 1 else None, shape[0], False, None)]
    return [Term(node, factor, None, shape[0], shape[0] >= FEW and HALF <= abs(factor) <= 1, None)]


def _is_weighted(node: Any) -> bool:
    """Whether a node multiplies or divides by data: the weights of a mean, perhaps."""
    return kind(node) in ("Mul", "Div") and any(n is None for n, _ in node.next_functions)


def _is_over_variance(node: Any) -> bool:
    """Whether a node divides a square by numbers of rows, not by one number."""
    below = node.next_functions[0][0] if kind(node) == "Div" else None
    if below is None or below.name() != SQUARE:
        return False
    other = saved(node, "other")
    return other is not None and other.numel() >= FEW


def _term(node: Any, factor: float, reduced: int, over: int) -> list[Term]:
    """A loss function at a node, reduced by itself, or by a mean or sum above it.

    A mean over pixels or tokens counts these. One over several outputs of a datum, or one that was multiplied
    by the numbers of a row, counts rows.
    """
    residual = node.name() in (SQUARE, SIZE)
    target = saved(node, "self" if residual else "target")
    if target is None or not target.dim() or (residual and not _is_residual(node)):
        return []
    inner = NONE if residual else node._saved_reduction
    ignored = getattr(node, "_saved_ignore_index", None)
    terms = target.numel() if ignored is None else int((target != ignored).sum())
    rows, each = len(target), target[0].numel() if len(target) else 0
    outputs = residual or node.name() not in CLASSES
    outputs = outputs or (kind(node).startswith("Binary") and target.dim() < 3)
    summed = rows > 1 and (inner == SUM or (inner == NONE and reduced == SUM))
    size: int | None = None
    divided = summed and 0 < abs(factor) < HALF
    if inner == MEAN and reduced == NONE:
        size = rows if outputs or (each > 1 and abs(factor) == each) else terms
    elif inner == NONE and reduced == MEAN:
        size = over
    elif divided:
        size = round(1 / abs(factor))
    undivided = abs(abs(factor) - 1) < EXACT or (rows >= FEW and HALF <= abs(factor) <= 1)
    whole = summed and undivided and reduced != MEAN
    return [Term(node, factor, size, rows, whole, None if residual else target, divided)]


def _is_residual(node: Any) -> bool:
    """Whether this is the square or size of a difference from data, perhaps divided by an sd."""
    below = node.next_functions[0][0]
    if below is not None and kind(below) == "Div":
        below = below.next_functions[0][0]
    if getattr(node, "_saved_exponent", 2) != 2 or below is None or kind(below) != "Sub":
        return False
    return any(n is None for n, _ in below.next_functions)


def find_data(root: Any) -> tuple[list[int], Tensor] | None:
    """The largest tensor of data that the graph holds, and the way to it from the root."""
    best: tuple[list[int], Tensor] | None = None
    ways: dict[Any, tuple[Any, int]] = {}
    todo, known = [root], {root}
    while todo and len(known) < NODES:
        node = todo.pop()
        if (data := _data_at(node)) is not None and (best is None or data.numel() > best[1].numel()):
            way, at = [], node
            while at is not root:
                at, branch = ways[at]
                way.append(branch)
            best = way[::-1], data
        for branch, (below, _) in enumerate(node.next_functions):
            if below is not None and below not in known:
                known.add(below)
                ways[below] = (node, branch)
                todo.append(below)
    return best


def follow(root: Any, way: Iterable[int]) -> Tensor | None:
    """The data at the end of a way; None if the graph has changed."""
    node = root
    for branch in way:
        if node is None or branch >= len(node.next_functions):
            return None
        node = node.next_functions[branch][0]
    return None if node is None else _data_at(node)


def _data_at(node: Any) -> Tensor | None:
    which, name = INPUTS.get(node.name(), (None, ""))
    if not name or (which is not None and node.next_functions[which][0] is not None):
        return None
    data: Tensor | None = saved(node, name)
    return data if data is not None and data.dim() and not data.requires_grad else None


def fingerprints(data: Tensor) -> list[int]:
    """One whole number per row, equal for equal rows."""
    rows = data.flatten(1) if data.dim() > 1 else data.unsqueeze(1)
    rows = rows[:, :: max(1, rows.shape[1] // COLUMNS)].contiguous()
    if rows.is_floating_point():
        rows = rows.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()])
    return (rows.to(torch.int64) * _factors()[: rows.shape[1]].to(rows.device)).sum(1).tolist()  # modulo 2^64


@functools.cache
def _factors() -> Tensor:
    """Whole numbers that make a fingerprint: different rows have the same with a probability of 2^-63."""
    return torch.randint(-(2**62), 2**62, (2 * COLUMNS,), generator=torch.Generator().manual_seed(0))


# -- the length of an epoch ------------------------------------------------------------------------------


class Epoch:
    """The search for the number of steps in an epoch (1)."""

    def __init__(self) -> None:
        self.open = True  # whether rows are still compared
        self.steps: tuple[float, float] | None = None  # least and largest length, in steps
        self._way: list[int] | None = None  # to the data
        self._known: dict[int, int] = {}  # the steps of rows that are looked for, by their fingerprints
        self._again: dict[int, int] = {}  # steps after which they came again
        self._spare: dict[int, int] = {}  # further rows of the first steps, if epochs are long
        self._begin, self._first, self._every, self._times = 0, 1, 1, 0
        self._more = 0  # first batches from which spare rows are taken

    def is_compared(self, step: int) -> bool:
        """Whether rows are compared in this step."""
        after = step - self._begin
        return self.open and (self._way is None or after < EACH or after % self._every == 0)

    def compare(self, root: Any, step: int) -> None:
        """Compare the rows of a batch with those of the first batches."""
        rows = self._fingerprints(root, step)
        after = step - self._begin
        for row in self._known.keys() & set(rows):
            self._again.setdefault(row, step - self._known[row])
        if after < self._first:
            wanted = list(dict.fromkeys(rows))[: -(-SEEN * self._every // self._first)]
            self._known |= dict.fromkeys(wanted, step)
            self.open = len(set(rows)) >= 0.9 * len(rows) > 0
        if after < self._more:
            self._spare |= dict.fromkeys(rows[: -(-SEEN * RAREST // self._more)], step)
        if after == EACH - 1 and not self._again:
            self._known = self._spare | self._known
            self._first = max(self._first, self._more)
            self._every = max(self._every, min(len(self._known) // SEEN, RAREST))
        self._times += 1
        self.open = self.open and self._times < TIMES
        if self._again:
            least, most = min(self._again.values()), max(self._again.values())
            if least < SHORTEST or most > 2.2 * least + self._first:
                self.open = False
            elif len(self._again) >= NEEDED:
                ends = (least, least) if least == most else (most / 2, least + self._first)
                self.open, self.steps = False, ends

    def _fingerprints(self, root: Any, step: int) -> list[int]:
        if self._way is not None:
            data = follow(root, self._way)
            return [] if data is None else fingerprints(data)
        found = find_data(root)
        if found is None:
            self.open = False
            return []
        self._way, data = found
        self._begin, self._every = step, min(max(1, len(data) // ROWS), RAREST)
        self._first = max(self._every, -(-SEEN // len(data)))
        self._more = min(max(RAREST, -(-SEEN * RAREST // len(data))), EACH // 2)
        self.open = self._first < EACH
        return fingerprints(data)


# -- the watch -------------------------------------------------------------------------------------------


class Loss(NamedTuple):
    """What is kept of a loss after its backward call.

    Arguments:
        value: of the loss.
        factor: by which the whole loss was multiplied.
        size: the number of data over which it is a mean; None if unknown, or not the same in all terms.
        classes: whether one of its terms is a loss of classes.
        divided: whether it is a sum that was divided by `size`.
    """

    value: float
    factor: float = 1.0
    size: int | None = None
    classes: bool = False
    divided: bool = False


class Usage:
    """Watches the blocks of one optimizer."""

    def __init__(self) -> None:
        self._epoch = Epoch()
        self._blocks: list[list[Loss]] = []  # the losses of every block of the present step
        self._recording = self._reading = False  # in the present step
        self._readings = 0  # steps so far whose losses were read
        self._unseen = 0  # steps in a row without a loss
        self._doubts: dict[str, tuple[set[int], str]] = {}  # the readings that agree, and the sentence
        self._sentences: list[str] = []  # to be said at the end of the step
        self._said: set[str] = set()
        self._sizes: list[int] = []  # of the readings: data over which the loss is a mean
        self._rows: int | None = None  # of a batch whose loss is a mean over more numbers than rows
        self._over = False  # the watch

    @contextmanager
    def block(self, group: dict[str, Any]) -> Iterator[None]:
        """Around the user's code inside a `sample()` block."""
        try:
            step = group["step"]
            self._recording = is_recorded(group)
            self._reading = step < FIRST or step % EVERY == 0
            comparing = self._epoch.is_compared(step) and not self._blocks
            if self._over or not (self._recording or self._reading or comparing):
                yield
                return
            losses: list[Loss] = []
            self._blocks.append(losses)

            def look(loss: Tensor) -> None:
                root, scale = unscaled(loss)
                seen = Loss(float(loss.detach()) / scale)
                if comparing and not losses:
                    self._epoch.compare(root, step)
                if self._reading:
                    factor, terms = read(root)
                    self._judge_terms(terms, root, group["num_data"])
                    sizes = {term.size for term in terms}
                    size = sizes.pop() if len(sizes) == 1 else None
                    classes = any(term.name in CLASSES for term in terms)
                    seen = Loss(seen.value, factor, size, classes, all(term.divided for term in terms))
                losses.append(seen)

            with seeing_backward(lambda loss: self._guarded(look, loss)):
                yield
        except IndexError as error:
            better = label_error(error)
            if better is None:
                raise
            raise better from error

    def end_step(self, groups: Sequence[dict[str, Any]], draws: int) -> None:
        """After a step of `draws` blocks: record its loss, and say what was noticed."""
        blocks, self._blocks = self._blocks[-draws:], []
        if blocks:
            self._guarded(self._judge, groups, blocks, draws)
        self._emit()

    def end_epoch(self, groups: Sequence[dict[str, Any]], *steps: float) -> None:
        """After an epoch of known length, or lengths between which it may be: compare num_data with it."""
        self._epoch.open = False
        self._guarded(self._judge_epoch, groups[0], min(steps), max(steps))
        self._emit()

    def _guarded(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function; if it fails, the watch is over."""
        if self._over:
            return
        try:
            with torch.no_grad():
                function(*args)
        except Exception as error:
            logger.debug("the watch of losses is over: %r", error)
            self._over = True

    def _judge(self, groups: Sequence[dict[str, Any]], blocks: list[list[Loss]], draws: int) -> None:
        """After a watched step."""
        group, seen = groups[0], [losses for losses in blocks if losses]
        self._unseen = 0 if seen else self._unseen + 1
        self._over = self._unseen > UNSEEN
        if not seen:
            return
        parts = group["accumulate"]
        if self._recording:
            values = [sum(x.value for x in losses) / min(parts, len(losses)) for losses in seen]
            record_loss(groups, sum(values) / len(values))
        if self._reading:
            self._readings += 1
            self._judge_blocks(seen, draws)
            self._judge_sizes(group, seen[0])
            if self._readings == SURE:
                for what, (agreeing, sentence) in self._doubts.items():
                    told = what == "batch_size" and "num_data" in self._said  # of the same cause
                    if len(agreeing) == SURE and not told:
                        self._say(what, sentence)
        if self._epoch.steps is not None:
            self._judge_epoch(group, *self._epoch.steps)
            self._epoch.steps = None

    def _judge_terms(self, terms: list[Term], root: Any, num_data: int) -> None:
        """Before a backward call, when the graph still holds its tensors."""
        for term in terms:
            self._judge_sum(term, num_data)
            self._judge_probabilities(term)
            self._judge_outcomes(term)
        if len(terms) == 1:
            self._judge_targets(terms[0])
            if not self._readings:
                self._rows = rows_of(terms[0], root)

    def _judge_sum(self, term: Term, num_data: int) -> None:
        each = 1 if term.target is None else term.target[0].numel()
        sizes = {term.size, term.rows, num_data} - {None, each}
        times = any(n is not None and n >= FEW and abs(abs(term.factor) - n) < EXACT * n for n in sizes)
        if term.summed or times:
            how = "" if term.summed else f" (a mean, times {abs(term.factor):g})"
            self._say(
                "sum",
                f"the loss is a sum over the batch{how}; give the mean: the number of data enters through "
                "num_data",
            )

    def _judge_probabilities(self, term: Term) -> None:
        below = passed(term.node.next_functions[0][0])
        if kind(term.node) in ("NllLoss", "NllLoss2D") and below is not None and kind(below) == "LogSoftmax":
            below = passed(below.next_functions[0][0])
            if below is not None and kind(below) == "Softmax":
                self._say(
                    "probabilities",
                    "the inputs of cross_entropy are probabilities, and it applies softmax itself; give it "
                    "the network's outputs before softmax",
                )
        twice = kind(term.node) == "BinaryCrossEntropyWithLogits"
        if twice and below is not None and kind(below) == "Sigmoid":
            self._say(
                "probabilities",
                "the inputs of binary_cross_entropy_with_logits are probabilities, and it applies sigmoid "
                "itself; give it the network's outputs before sigmoid",
            )

    def _judge_outcomes(self, term: Term) -> None:
        """Notice outcomes that are neither 0 nor 1 nor between; a weight may leave such rows out."""
        if kind(term.node) != "BinaryCrossEntropyWithLogits" or term.node._saved_weight is not None:
            return
        if term.target is not None and term.target.numel():
            least, most = (float(end) for end in term.target.aminmax())
            if least < 0 or most > 1:
                self._say(
                    "outcomes",
                    "the targets of binary_cross_entropy_with_logits must be 0 or 1, or between; they run "
                    f"from {least:g} to {most:g}: number the two outcomes 0 and 1",
                )

    def _judge_targets(self, term: Term) -> None:
        """Doubt targets that are not standardised."""
        output = saved(term.node, "self")
        if output is None or term.name in CLASSES or not 0.25 <= abs(term.factor) <= 4:
            return
        residual = output.detach().double() - (0 if term.target is None else term.target.detach())
        below = term.node.next_functions[0][0]
        if term.target is None and kind(below) == "Div":  # by the noise's sd
            sd = saved(below, "other")
            if sd is None:
                return
            residual = residual * sd.detach()
        size = float(residual.square().mean().sqrt())
        if residual.numel() < FEW:
            return
        if term.target is None:
            if size > LARGE:
                self._doubt("targets", f"the residuals are about {size:.3g}; {STANDARDISE}")
            return
        target = term.target.detach().double()
        mean, sd = float(target.mean()), float(target.std())
        if 0 < sd < SMALL or (max(abs(mean), sd) > LARGE and size > LARGE and sd > 0):
            self._doubt("targets", f"the targets have the mean {mean:.3g} and the sd {sd:.3g}; {STANDARDISE}")

    def _judge_blocks(self, blocks: list[list[Loss]], draws: int) -> None:
        """Notice a loss that is divided by the number of blocks of its step."""
        losses = [found[0] for found in blocks if len(found) == 1]
        divided = all(abs(x.factor * draws - 1) < EXACT for x in losses)
        if draws < 2 or len(losses) != draws or not divided:
            return
        if draws > 2 or all(x.classes for x in losses):  # half a square is that of a Gaussian
            self._say(
                "blocks",
                f"the loss is divided by {draws} in each of the {draws} sample() blocks of a step, and "
                f"step() averages over blocks: 1/{draws} of the gradient is left; do not divide, or make "
                f"the {draws} backward calls in one block, with accumulate={draws}",
            )

    def _judge_sizes(self, group: dict[str, Any], losses: list[Loss]) -> None:
        """Compare batch_size and num_data with the data of one batch."""
        known = [x.size for x in losses if x.size is not None]
        if not known or len(known) < len(losses):
            return
        parts = group["accumulate"] > 1 or all(abs(x.factor) < 1 and not x.divided for x in losses)
        self._sizes.append(sum(known) if parts else max(known))
        if max(known) > group["num_data"]:
            self._say_num_data(group, f"one batch has {max(known)}")
        expected, size = group.get("batch_size"), self._sizes[-1]
        if expected is not None and not expected / 2 <= size <= 2 * expected:
            self._doubt(
                "batch_size",
                f"batch_size is {expected}, and the loss of a step is a mean over {size} data; give "
                f"batch_size={size}, or leave it out",
            )

    def _judge_epoch(self, group: dict[str, Any], least: float, most: float) -> None:
        """Compare num_data with an epoch of between `least` and `most` steps."""
        if not self._sizes:
            return
        processes = data_parallel_size(group["params"])
        if processes is None:
            return
        size = sum(self._sizes) / len(self._sizes) * processes
        if group["num_data"] * TOO_SMALL < least * size or group["num_data"] > TOO_LARGE * most * size:
            ends = [f"{round(n * size)}" for n in (least, most)]
            self._say_num_data(group, f"an epoch has about {ends[0] if least == most else ' to '.join(ends)}")

    def _say_num_data(self, group: dict[str, Any], seen: str) -> None:
        given = f"num_data is {group['num_data']}, and {seen}"
        if self._rows is None:
            self._say(
                "num_data",
                f"{given}; num_data is the number of data in the training set, len(dataset), not the number "
                "of batches, len(loader)",
            )
        else:
            self._say(
                "num_data",
                f"{given} numbers over which the loss is a mean, several of every row; num_data counts these "
                "(all pixels or tokens of the training set), unless the loss is a mean over rows of the sum "
                "over a row's numbers",
            )

    def _doubt(self, what: str, sentence: str) -> None:
        """Say a sentence if the first readings agree about it: a single batch could mislead."""
        if self._readings <= SURE:
            self._doubts.setdefault(what, (set(), sentence))[0].add(self._readings)

    def _say(self, what: str, sentence: str) -> None:
        """Say a sentence at the end of the step, once per optimizer."""
        if what not in self._said:
            self._said.add(what)
            self._sentences.append(sentence)

    def _emit(self) -> None:
        sentences, self._sentences = self._sentences, []
        for sentence in sentences:
            warnings.warn(sentence, UserWarning, stacklevel=5)


def passed(node: Any) -> Any:
    """The first node from this one on that changes values."""
    while node is not None and kind(node) in PASSED:
        node = node.next_functions[0][0]
    return node


def rows_of(term: Term, root: Any) -> int | None:
    """The rows of a batch, if the loss is a mean over several numbers of each."""
    if term.target is None or term.size is None:
        return None
    if term.target.dim() > 1:
        return term.rows if term.rows < term.size else None
    found = find_data(root)
    if found is None or found[1].is_floating_point() or found[1].dim() != 2:
        return None
    rows, length = found[1].shape  # of tokens
    return rows if length > 1 and term.rows in (rows * length, rows * (length - 1)) else None


def label_error(error: IndexError) -> ValueError | None:
    """A sentence about labels that are no class, if that is what an error of torch's is about."""
    trace = error.__traceback__
    while trace is not None:
        code, found = trace.tb_frame.f_code, trace.tb_frame.f_locals
        if code.co_filename == F.__file__ and code.co_name in ("cross_entropy", "nll_loss"):
            outputs, labels = found.get("input"), found.get("target")
            if not isinstance(outputs, Tensor) or not isinstance(labels, Tensor) or not labels.numel():
                return None
            classes = outputs.shape[min(1, outputs.dim() - 1)]
            labels = labels[labels != found.get("ignore_index", -100)]
            least, most = int(labels.min()), int(labels.max())
            if least >= 0 and most < classes:
                return None
            return ValueError(
                f"class labels must be from 0 to {classes - 1}, one for each of the {classes} outputs of the "
                f"network; they run from {least} to {most}: number the labels from 0, or give the network "
                f"more outputs"
            )
        trace = trace.tb_next
    return None


# -- seeing backward calls -------------------------------------------------------------------------------

Look = Callable[[Tensor], None]
_lock = threading.Lock()
_lookers: dict[int, list[Look]] = {}  # by thread
_inside = threading.local()  # of a backward call: checkpointed parts of a network make more of them
_replaced: list[tuple[Any, Any]] = []  # the function in place of torch's, and torch's


@contextmanager
def seeing_backward(look: Look) -> Iterator[None]:
    """Call `look(loss)` before every backward call of this thread."""
    me = threading.get_ident()
    with _lock:
        if not _lookers:
            _replaced.append((_showing(torch.autograd.backward), torch.autograd.backward))
            torch.autograd.backward = _replaced[-1][0]
        _lookers.setdefault(me, []).append(look)
    try:
        yield
    finally:
        with _lock:
            _lookers[me].remove(look)
            if not _lookers[me]:
                del _lookers[me]
            if not _lookers:
                ours, original = _replaced.pop()
                if torch.autograd.backward is ours:  # unless other code has replaced it since
                    torch.autograd.backward = original


@contextmanager
def losses_seen() -> Iterator[Counter[int]]:
    """Count the losses of the backward calls of this thread, under the number 0."""
    seen: Counter[int] = Counter()
    with seeing_backward(lambda _: seen.update((0,))):
        yield seen


@functools.cache
def _showing(original: Callable[..., Any]) -> Callable[..., Any]:
    """A backward function that first shows the losses to the lookers of its thread."""

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **options: Any) -> Any:
        if getattr(_inside, "open", False):
            return original(tensors, *args, **options)
        given = tensors if isinstance(tensors, list | tuple) else (tensors,)
        losses = [x for x in given if isinstance(x, Tensor) and x.numel() == 1 and x.grad_fn is not None]
        for look in tuple(_lookers.get(threading.get_ident(), ())):
            for loss in losses:
                look(loss)
        _inside.open = True
        try:
            return original(tensors, *args, **options)
        finally:
            _inside.open = False

    return backward

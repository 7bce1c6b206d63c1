"""`bench predict`: what a prediction from S draws costs, against S times a forward pass and a draw of noise.

With f the time of a forward pass, d that of drawing the weights and t(S) that of a prediction from S draws,
the cost of one more draw and its overhead are
    b = (t(S_max) - t(1)) / (S_max - 1),       overhead = b - f - d                                      (1)
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from bayescore.nn import GaussianPosterior
from bayescore_lab.bench.choices import Network
from bayescore_lab.bench.networks import Workload
from bayescore_lab.bench.results import Part, Row
from bayescore_lab.bench.step import TimeUp
from bayescore_lab.bench.steppers import OurOptimizer
from bayescore_lab.bench.timing import Notify, StepClock, seconds_of
from bayescore_lab.methods import network_optimizer

__all__ = ["predict_parts"]

FORWARD, DRAW = "forward pass", "draw of the weights"


def predict_parts(
    net: Network, batch: int, repeats: int, samples: Sequence[int], deadline: float, notify: Notify
) -> Iterator[Part]:
    """Measure in turns; yields the part after every round."""
    if net.shape is None:
        raise ValueError(f"{net.name} has no forward pass; predictions need a network that has one")
    posterior, x = _posterior(net, batch)
    arms: dict[str, Callable[[], object]] = {
        FORWARD: partial(_forward, posterior, x),
        DRAW: lambda: posterior.draw(0, 0),
    }
    arms |= {f"S = {s}": partial(posterior.predict, x, draws=s) for s in sorted(samples)}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for name in (FORWARD, DRAW, next(reversed(arms))):
        notify(f"{net.name}: warming up, {name}")
        _check(deadline)
        arms[name]()
    for i in range(repeats):
        for name in list(arms)[:: 1 if i % 2 == 0 else -1]:
            notify(f"{net.name}: {name}, round {i + 1} of {repeats}")
            _check(deadline)
            times[name].append(seconds_of(arms[name]))
        yield _part(net, batch, times)


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeUp


def _posterior(net: Network, batch: int) -> tuple[GaussianPosterior, torch.Tensor]:
    """The posterior after one step; the optimizer is gone by then."""
    work = Workload(net, batch)
    optimizer = network_optimizer("proximal", work.model.parameters(), work.num_data)
    OurOptimizer(work, optimizer).step(StepClock())
    posterior = optimizer.posterior(work.model)
    assert isinstance(posterior, GaussianPosterior)
    return posterior, work.x


@torch.no_grad()
def _forward(posterior: GaussianPosterior, x: torch.Tensor) -> object:
    posterior.model.eval()
    return posterior.model(x)


def _part(net: Network, batch: int, times: dict[str, list[float]]) -> Part:
    medians = {name: statistics.median(values) for name, values in times.items()}
    floor = medians[FORWARD] + medians[DRAW]
    rows = [Row("alone", name, tuple(times[name]), numbers={"size": 1}) for name in (FORWARD, DRAW)]
    counts = {name: int(name.removeprefix("S = ")) for name in times if name not in (FORWARD, DRAW)}
    for name, count in counts.items():
        numbers = {"size": count, "seconds_per_sample": medians[name] / count}
        numbers["overhead_per_sample"] = medians[name] / count - floor
        rows.append(Row(name, "predict", tuple(times[name]), numbers=numbers))
    notes = [f"batch {batch}, {torch.get_num_threads()} threads, float32; the model is in eval mode"]
    first, last = next(iter(counts)), next(reversed(counts))
    if counts[last] > counts[first]:
        slope = (medians[last] - medians[first]) / (counts[last] - counts[first])
        notes.append(
            f"one more sample costs {1e3 * slope:.3g} ms: {slope / floor:.2f} x a forward pass and a draw of "
            f"the weights ({1e3 * floor:.3g} ms)"
        )
    return Part(
        name=f"predict {net.name}",
        title=f"posterior.predict of {net.title}",
        kind="curve",
        config={"size": "samples", "net": net.name, "batch": batch, "threads": torch.get_num_threads()},
        rows=tuple(rows),
        notes=tuple(notes),
    )

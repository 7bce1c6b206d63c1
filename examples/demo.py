"""The demonstration: the default beside AdamW, and a mixture of posteriors where there are no data.

    python examples/demo.py        # prints tables, writes demo/demo.png and demo/gap.png

Two tasks of scikit-learn, five seeds each; a seed decides the data, the initial weights and the order of the
batches. Four networks with the same learning rate, epochs and cosine schedule:

    AdamW                   all rows
    stopped early           AdamW; a fifth of the rows is held out and chooses the epoch
    temperature-scaled      AdamW; the same fifth is held out and chooses a temperature of the logits
    ProximalScore           all rows, its defaults

The eights and nines are never shown in training. The last part is a regression with a gap in the data: one
posterior, and a mixture of five with a fifth of the epochs each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayescore.nn as bnn
from bayescore.data import images, split
from bayescore.metrics import evaluate
from bayescore.models import mlp
from bayescore.optim import ProximalScore
from bayescore.plotting import draw_reliability
from bayescore.plotting.style import figure_style, looks, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "NETWORKS",
    "TASKS",
    "Curve",
    "Score",
    "demonstrate",
    "gap_curves",
    "main",
    "make_table",
    "picture",
]

SEEDS, BATCH, DRAWS = 5, 32, 50
HIDDEN = (50, 50)
HELD_OUT = 0.2  # of the training rows, for stopping and scaling
KNOWN = 8  # classes 0 to 7; 8 and 9 are unseen
OURS = "ProximalScore"
NETWORKS = ("AdamW", "stopped early", "temperature-scaled", OURS)
GAP_EPOCHS, GAP_LR, MEMBERS = 200, 3e-3, 5  # so that a fifth of the epochs is enough to follow the data
PLACE, GAP_PLACE = Path("demo/demo.png"), Path("demo/gap.png")
COLUMNS: dict[str, tuple[Callable[[dict[str, float]], float], str]] = {
    "accuracy %": (lambda s: 100 * (1 - s["error"]), ".1f"),
    "NLL": (lambda s: s["nll"], ".3f"),
    "ECE %": (lambda s: 100 * s["ece"], ".1f"),
    "OOD AUROC": (lambda s: s["auroc_entropy"], ".3f"),
}


@dataclass(frozen=True)
class Rows:
    """Rows to learn from, to test with, and, where there are any, of unseen classes."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    unseen: Tensor | None = None

    @property
    def classes(self) -> int:
        return int(self.y_test.max()) + 1


@dataclass(frozen=True)
class Task:
    """A classification, and how long it is trained."""

    rows: Callable[[int], Rows]
    lr: float
    epochs: int


def moons(seed: int) -> Rows:
    """Two half circles that overlap: 100 points to learn from, 1,000 to test with."""
    from sklearn.datasets import make_moons

    x, y = make_moons(1100, noise=0.3, random_state=seed)
    points, labels = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    return Rows(points[:100], labels[:100], points[100:], labels[100:])


def digits(seed: int) -> Rows:
    """200 images of the digits 0 to 7 to learn from; the same test images for every seed."""
    train, test = images("digits", "train"), images("digits", "test")
    known, seen = split(train[train.y < KNOWN], 200, seed=seed).train, test[test.y < KNOWN]
    return Rows(known.x, known.y, seen.x, seen.y, test[test.y >= KNOWN].x)


TASKS = {
    "two moons, 100 points": Task(moons, 1e-2, 100),
    "digits 0 to 7, 200 images": Task(digits, 1e-3, 100),
}


@dataclass(frozen=True)
class Score:
    """A network on one seed's test rows."""

    probs: Tensor
    labels: Tensor
    scores: dict[str, float]
    seconds: float


Scores = Mapping[str, Mapping[str, Sequence[Score]]]


def demonstrate(
    seeds: int = SEEDS, epochs: int | None = None, say: Callable[[str], None] = print
) -> dict[str, dict[str, list[Score]]]:
    """Train all networks on all tasks and seeds: scores by task and network; `say` tells what was done."""
    found: dict[str, dict[str, list[Score]]] = {}
    for name, task in TASKS.items():
        found[name] = {network: [] for network in NETWORKS}
        for seed in range(seeds):
            began = time.perf_counter()
            for network, score in _networks(task, seed, epochs or task.epochs).items():
                found[name][network].append(score)
            say(f"{name}: seed {seed + 1} of {seeds}, {time.perf_counter() - began:.1f} s")
    return found


def _networks(task: Task, seed: int, epochs: int) -> dict[str, Score]:
    """The four networks on one seed."""
    rows = task.rows(seed)
    held = round(HELD_OUT * len(rows.x))

    def fresh() -> nn.Module:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return mlp(rows.x[0].numel(), HIDDEN, rows.classes)

    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=task.lr)

    found = {}
    model = fresh()
    seconds = _train(model, plain(model), rows.x, rows.y, epochs, seed)
    found["AdamW"] = _score(bnn.PointPosterior(model), rows, seconds)

    model = fresh()
    best = Best(model, rows.x[:held], rows.y[:held])
    seconds = _train(model, plain(model), rows.x[held:], rows.y[held:], epochs, seed, best.look)
    found["stopped early"] = _score(best.posterior, rows, seconds)
    scaled = bnn.PointPosterior(model).scaled([(rows.x[:held], rows.y[:held])])
    # from a few held-out rows a network must not learn to be more certain: the temperature only softens
    softened = bnn.PointPosterior(model, temperature=max(1.0, scaled.temperature))
    found["temperature-scaled"] = _score(softened, rows, seconds)

    model = fresh()
    opt = ProximalScore(model.parameters(), num_data=len(rows.x), lr=task.lr)
    seconds = _train(model, opt, rows.x, rows.y, epochs, seed)
    found[OURS] = _score(opt.posterior(model), rows, seconds)
    return found


class Best:
    """The weights of the epoch with the lowest loss on held-out rows."""

    def __init__(self, model: nn.Module, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y, self.loss = model, x, y, float("inf")

    def look(self) -> None:
        with torch.no_grad():
            loss = float(F.cross_entropy(self.model(self.x), self.y))
        if loss < self.loss:
            self.loss, self.posterior = loss, bnn.PointPosterior(self.model)


def _train(
    model: nn.Module,
    opt: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    epochs: int,
    seed: int,
    after_epoch: Callable[[], None] = lambda: None,
) -> float:
    """The loop that all networks share; returns its seconds."""
    rng, began = torch.Generator().manual_seed(seed), time.perf_counter()
    loader = DataLoader(TensorDataset(x, y), BATCH, shuffle=True, generator=rng)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(loader))
    for _ in range(epochs):
        for xb, yb in loader:
            with opt.sample() if isinstance(opt, ProximalScore) else nullcontext():
                F.cross_entropy(model(xb), yb).backward()
            opt.step()
            opt.zero_grad()
            schedule.step()
        after_epoch()
    return time.perf_counter() - began


def _score(posterior: bnn.Posterior, rows: Rows, seconds: float) -> Score:
    prediction = posterior.predict(rows.x_test, DRAWS)
    unseen = None if rows.unseen is None else posterior.predict(rows.unseen, DRAWS)
    return Score(prediction.probs, rows.y_test, evaluate(prediction, rows.y_test, unseen), seconds)


# -- the gap ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Predictions of a regression on a grid: the mean, and its sd from not knowing the weights."""

    mean: Tensor
    sd: Tensor
    seconds: float


def gap_data() -> tuple[Tensor, Tensor]:
    """A sine with noise, 120 points, none of them between -1 and 1."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, generator=rng) * 2 + 1
    x = torch.where(torch.rand(120, 1, generator=rng) < 0.5, -x, x)
    return x, torch.sin(1.5 * x) + 0.1 * torch.randn(120, 1, generator=rng)


def grid() -> Tensor:
    return torch.linspace(-5, 5, 201).unsqueeze(1)


def gap_curves(epochs: int = GAP_EPOCHS) -> dict[str, Curve]:
    """One posterior, and the mixture of five posteriors with a fifth of the epochs each."""
    loader = DataLoader(TensorDataset(*gap_data()), BATCH, shuffle=True)
    like = bnn.likelihoods.Gaussian("learned")

    def run(members: int) -> Curve:
        fit = bnn.fit_ensemble(
            lambda: mlp(1, HIDDEN, 1),
            loader,
            like,
            "proximal",
            members=members,
            epochs=max(1, epochs // members),
            lr=GAP_LR,
            progress=False,
        )
        prediction = fit.predict(grid(), 20 * MEMBERS)
        return Curve(prediction.mean.flatten(), prediction.epistemic_std.flatten(), fit.seconds)

    return {"one posterior": run(1), f"mixture of {MEMBERS} short ones": run(MEMBERS)}


# -- tables, sentences and pictures ----------------------------------------------------------------------


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the half-width of its 95 % interval."""
    from scipy.stats import t

    numbers = torch.tensor(values, dtype=torch.float64)
    error = float(numbers.std()) / len(numbers) ** 0.5
    return float(numbers.mean()), float(t.ppf(0.975, len(numbers) - 1)) * error


def make_table(networks: Mapping[str, Sequence[Score]]) -> Table:
    """Scores, mean and 95 % interval over the seeds, and the seconds of training."""
    scores = {name: [one.scores for one in found] for name, found in networks.items()}
    unseen = "auroc_entropy" in scores[OURS][0]
    columns = {name: rest for name, rest in COLUMNS.items() if unseen or name != "OOD AUROC"}
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1))
    table.add_column("network", no_wrap=True)
    for column in (*columns, "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, found in networks.items():
        cells = []
        for value, form in columns.values():
            mean, half = interval([value(one) for one in scores[name]])
            cells.append(f"{mean:{form}}±{half:{form}}")
        seconds, _ = interval([one.seconds for one in found])
        table.add_row(name, *cells, f"{seconds:.1f} s")
    return table


def differences(networks: Mapping[str, Sequence[Score]]) -> list[str]:
    """Ours against each other network, seed by seed: a sentence on the NLL, and one on unseen digits."""
    said = []
    for key, name, sign in (("nll", "NLL", -1), ("auroc_entropy", "OOD AUROC", 1)):
        if key not in networks[OURS][0].scores:
            continue
        ours = [one.scores[key] for one in networks[OURS]]
        for other in NETWORKS[:-1]:
            theirs = [one.scores[key] for one in networks[other]]
            mean, half = interval([a - b for a, b in zip(ours, theirs, strict=True)])
            word = "no difference beyond the spread of the seeds"
            if abs(mean) > half:
                word = "better" if sign * mean > 0 else "worse"
            said.append(f"{name} of {OURS} minus {other}: {mean:+.3f}±{half:.3f}, {word}")
    return said


def picture(found: Scores, curves: Mapping[str, Curve]) -> Figure:
    """Reliability diagrams of the first task, all seeds together, above the two curves with a gap."""
    with figure_style():
        figure = new_figure(8.8, 6.0)
        above, below = figure.subfigures(2, 1, height_ratios=(1.0, 1.05))  # type: ignore[misc]
        name, networks = next(iter(found.items()))
        above.suptitle(f"Confidence, and how often it was right: {name}, {len(networks[OURS])} seeds")
        panels = above.subplots(1, len(networks), sharey=True)
        for axes, (network, scores) in zip(panels, networks.items(), strict=True):
            probs, labels = torch.cat([s.probs for s in scores]), torch.cat([s.labels for s in scores])
            draw_reliability(axes, probs, labels, bins=10, colour=looks(networks)[network].colour)
            nll, _ = interval([s.scores["nll"] for s in scores])
            axes.set_title(network)
            axes.text(0.04, 0.77, f"NLL {nll:.3f}", transform=axes.transAxes, va="top")
            axes.set(xlabel="confidence", xlim=(0.45, 1.02))
            axes.set_aspect("auto")
        panels[0].set_ylabel("accuracy")
        _draw_gap(below, curves)
    return figure


def gap_picture(curves: Mapping[str, Curve]) -> Figure:
    """The two curves alone."""
    with figure_style():
        figure = new_figure(8.8, 3.1)
        _draw_gap(figure, curves)
    return figure


def _draw_gap(figure: Any, curves: Mapping[str, Curve]) -> None:
    (x, y), points = gap_data(), grid().flatten().numpy()
    figure.suptitle(
        "A gap in the data, and the same number of steps: the curve, and two standard deviations of it"
    )
    for axes, (name, curve) in zip(figure.subplots(1, len(curves), sharey=True), curves.items(), strict=True):
        mean, sd = curve.mean.numpy(), curve.sd.numpy()
        axes.fill_between(points, mean - 2 * sd, mean + 2 * sd, color="#0072B2", alpha=0.25, linewidth=0)
        axes.plot(points, mean, color="#0072B2")
        axes.plot(points, torch.sin(1.5 * grid()).flatten().numpy(), color="#888888", linestyle=(0, (4, 2)))
        axes.plot(x.flatten().numpy(), y.flatten().numpy(), "k.", markersize=2.5)
        axes.set_title(name)
        axes.set(xlim=(-5, 5), ylim=(-4, 4), xlabel="input")


def main() -> None:
    """Train, print the tables and what they say, write the pictures."""
    torch.set_num_threads(1)  # of no use to networks this small
    out = Console(soft_wrap=True, highlight=False)
    began = time.perf_counter()
    out.print(f"Four networks, {len(TASKS)} tasks of scikit-learn, {SEEDS} seeds; about a minute ...")
    found = demonstrate(say=out.print)
    curves = gap_curves()
    for name, networks in found.items():
        out.print(f"\n[bold]{name}[/bold]: mean ± 95 % interval over the seeds")
        out.print(make_table(networks))
        for sentence in differences(networks):
            out.print(f"  {sentence}")
    out.print(
        "\nLower is better for NLL and ECE (top label, 15 bins). OOD AUROC: how well the entropy tells the"
        "\neights and nines, never seen, from the other digits. The stopped and the scaled network learn from"
        "\nfour fifths of the rows, because they need the rest. The first task was chosen because its classes"
        "\noverlap, so that a plain network overfits; in the second they do not."
        "\n\nThe sd of a curve fitted to data with a gap, by as many steps:"
    )
    points = grid().flatten()
    gap, seen, beyond = points.abs() < 0.5, (points.abs() > 1) & (points.abs() < 3), points.abs() > 4
    for name, curve in curves.items():
        inside, beside, outside = (float(curve.sd[part].mean()) for part in (gap, seen, beyond))
        out.print(
            f"  {name}: sd {inside:.3f} in the gap, {beside:.3f} at the data, {outside:.3f} far beyond them, "
            f"{curve.seconds:.1f} s"
        )
    PLACE.parent.mkdir(exist_ok=True)
    picture(found, curves).savefig(PLACE, dpi=110)
    gap_picture(curves).savefig(GAP_PLACE, dpi=110)
    out.print(f"\nwrote {PLACE} and {GAP_PLACE} after {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

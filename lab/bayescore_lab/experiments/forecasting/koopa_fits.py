"""How a run of the forecasting experiments is executed: train a Koopa network, and test it.

The protocol is the benchmark's: batches of 32, at most 10 epochs, the rate halved after every epoch from the
second on, patience 3, the best epoch by the squared error on validation. Windows are indexed in one tensor
of rows. The likelihood of a window of S steps and C channels is the paper's, exp(-MSE/tau), which is a
Gaussian with noise 1 at the temperature tau S C/2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.data import SeriesSplit, Windows, series, split_series
from bayescore.families import DiagonalGaussian, Family, LowRankGaussian, PlanarFlow, ZukoFlow
from bayescore.metrics import fit_noise, forecast_mse, mixture_nll
from bayescore.models import Koopa
from bayescore.nn import Ensemble, NetworkFit, Posterior, fit
from bayescore.posteriors.likelihoods import Gaussian
from bayescore.rng import generator
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.forecasting.koopa_arms import (
    ENSEMBLE,
    FEW,
    MANY,
    MEMBERS,
    VANILLA,
    data_name,
)
from bayescore_lab.experiments.forecasting.measures import Forecasts, Noise, Sums

__all__ = [
    "WindowBatches",
    "assess",
    "benchmark",
    "execute",
    "execute_trials",
    "learn",
    "network",
    "start_family",
]

CHUNK = 500  # windows in one forward pass of a test
NOISE_WINDOWS = 600  # of validation, evenly spaced, to fit the noise on
COSTLY_WINDOWS = 48  # of test, evenly spaced, for what costs most
EPOCH_WINDOWS = 2700  # of validation, evenly spaced, to choose the epoch by
TEST_SEED = 1


class WindowBatches:
    """Batches of windows in memory, shuffled from torch's global stream if `shuffle`; the last may be small.

    Arguments:
        most: no more than so many windows, evenly spaced.
    """

    def __init__(
        self, windows: Windows, batch_size: int, *, shuffle: bool = False, most: int | None = None
    ) -> None:
        step = 1 if most is None else -(-len(windows) // most)
        self.dataset = range(0, len(windows), step)
        self.windows, self.batch_size, self.shuffle = windows, batch_size, shuffle

    def __len__(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        index = torch.as_tensor(self.dataset)
        if self.shuffle:
            index = index[torch.randperm(len(index))]
        for rows in index.split(self.batch_size):
            x, y = self.windows.batch(rows)
            yield x.contiguous(), y.contiguous()


@cache
def benchmark(data: str) -> SeriesSplit:
    """A benchmark set as the protocol cuts it."""
    name = data_name(data)
    return split_series(series(name), *((48, 24) if name == "ILI" else (96, 48)))


def network(data: str, seed: int, sizes: Mapping[str, Any]) -> Koopa:
    """The network of a data set; a seed gives every method the same initial weights."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(generator(seed, purpose="koopa").initial_seed())
        model = Koopa.for_dataset(data_name(data), **sizes)
    model.learn_frequencies(WindowBatches(benchmark(data).train, CHUNK))
    return model


def start_family(kind: str, model: nn.Module, options: Mapping[str, Any], seed: int) -> Family:
    """q0 over all weights: around the network's own, or N(0, I) for the flow as printed."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().double()
    D, around = len(weights), {"mean": weights, "scale": options.get("init_sd", 1.0)}
    if kind == "planar-as-printed":
        return PlanarFlow.init(D, affine=False, seed=seed)
    if kind == "planar":
        return PlanarFlow.init(D, layers=options.get("layers", 1), seed=seed, **around)
    if kind == "realnvp":
        size = {"transforms": options.get("transforms", 2), "hidden": options.get("hidden", (16,))}
        return ZukoFlow.init(D, seed=seed, **size, **around)
    if kind == "low-rank":
        return LowRankGaussian.init(D, options.get("rank", 10), **around)
    return DiagonalGaussian.init(D, **around)


def learn(run: Run, member: int = 0) -> NetworkFit:
    """Train the network of a run with its method and options."""
    c, seed = run.config, run.seed + 1000 * member
    data, model = benchmark(c["data"]), network(c["data"], seed, c["sizes"])
    options = dict(c["options"])
    if "tau" in options:
        options["temperature"] = options.pop("tau") * model.horizon * model.channels / 2
    if "family" in c:
        size = {key: options.pop(key) for key in ("layers", "transforms", "hidden", "rank") if key in options}
        around = size | {"init_sd": options.pop("init_sd", 1.0)}
        options["family"] = start_family(c["family"], model, around, seed)
    if c["kind"] in ("plain", "dropout"):
        options.setdefault("prior_sd", math.inf)
    return fit(
        model,
        WindowBatches(data.train, 32, shuffle=True),
        Gaussian(1.0),
        c["kind"],
        epochs=c["epochs"],
        validation=WindowBatches(data.validation, CHUNK, most=EPOCH_WINDOWS),
        validate_by="mse",
        patience=3,
        schedule="halving",
        seed=seed,
        progress=False,
        **options,
    )


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train what the runs of a group need and test it; an ensemble's first member is the plain network."""
    members: list[NetworkFit] = []
    for run in runs:
        began = time.process_time()
        try:
            if run.method in (VANILLA, ENSEMBLE):
                wanted = MEMBERS if run.method == ENSEMBLE else 1
                while len(members) < wanted:
                    members.append(learn(run, len(members)))
                found, trained = members[0], members[:wanted]
                posterior = Ensemble([one.posterior for one in trained]) if wanted > 1 else found.posterior
            else:
                found = learn(run)
                posterior, trained = found.posterior, [found]
        except FloatingPointError:
            yield RunOutcome(run, {}, 0, ended="diverged")
            continue
        cpu = time.process_time() - began
        yield _outcome(run, posterior, trained, cpu)


def execute_trials(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Train with the settings of each trial; validation is all that is looked at."""
    for run in runs:
        try:
            found = learn(run)
        except FloatingPointError:
            yield RunOutcome(run, {}, 0, ended="diverged")
            continue
        windows = _spread(benchmark(run.config["data"]).validation, found.posterior, FEW)
        sd = float(fit_noise(windows.draws, windows.y))
        metrics = {
            "validation_mse": forecast_mse(windows.draws, windows.y),
            "validation_nll": float(mixture_nll(windows.draws, windows.y, sd).mean()),
            "noise": sd,
            "epoch": found.best_epoch,
        }
        ended = "ok" if math.isfinite(metrics["validation_nll"]) else "diverged"
        yield RunOutcome(run, metrics, _steps(run, [found]), _trace(found), ended=ended)


def _outcome(run: Run, posterior: Posterior, trained: Sequence[NetworkFit], cpu: float) -> RunOutcome:
    found = trained[0]
    metrics = {
        "epoch": found.best_epoch,
        "validation_mse": found.history[found.best_epoch - 1]["validation_mse"],
        "training_seconds": sum(one.seconds for one in trained),
        "training_cpu_seconds": cpu,
    }
    metrics |= assess(run, posterior)
    ended = "ok" if math.isfinite(metrics["nll"]) else "diverged"
    return RunOutcome(run, metrics, _steps(run, trained), _trace(found), ended=ended)


def _steps(run: Run, trained: Sequence[NetworkFit]) -> int:
    data = benchmark(run.config["data"])
    return sum(len(one.history) for one in trained) * len(WindowBatches(data.train, 32))


def _trace(found: NetworkFit) -> dict[str, list[float]]:
    names = ("epoch", "loss", "validation_mse", "seconds")
    return {name: [row[name] for row in found.history] for name in names}


def _spread(windows: Windows, posterior: Posterior, draws: int, most: int = NOISE_WINDOWS) -> Forecasts:
    """The forecasts for at most so many windows, evenly spaced."""
    ((x, y),) = WindowBatches(windows, most, most=most)
    return _forecasts(x, y, posterior, draws)


def _forecasts(x: Tensor, y: Tensor, posterior: Posterior, draws: int) -> Forecasts:
    return Forecasts(x, y, posterior.predict(x, draws, seed=TEST_SEED).outputs)


@torch.no_grad()
def assess(run: Run, posterior: Posterior) -> dict[str, float]:
    """The measures of a posterior on the test windows, with the paper's 5 draws and with 30."""
    data = benchmark(run.config["data"])
    noise = Noise.of(_spread(data.validation, posterior, MANY), FEW)
    sums = Sums(noise, FEW)
    for x, y in WindowBatches(data.test, CHUNK):
        sums.add(_forecasts(x, y, posterior, MANY))
    sums.add_costly(_spread(data.test, posterior, MANY, COSTLY_WINDOWS))
    sums.add_test_noise(_spread(data.test, posterior, FEW))
    return sums.means() | {"noise": noise.few, "noise_30": noise.many}

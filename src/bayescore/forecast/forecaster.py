"""A forecaster: a Bayesian network for a user's series, from fitting to a folder that another process reads.

    forecaster = bs.forecast.Forecaster(horizon=48).fit("load.csv")
    forecast = forecaster.predict()                    # the 48 steps after the last row
    low, high = forecast.interval(0.8)
    forecaster.save("model")

The last rows validate: they choose the epoch and calibrate the intervals (calibration.py). Training is that
of `bs.nn.fit`, with the benchmark's protocol: at most 10 epochs, the learning rate halved after every epoch
from the second on, an end after three epochs without a better squared error on validation, and the best epoch
kept. An epoch of a short series goes over its windows several times, for 25 updates at least: else the rate
is halved before anything is learned.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

from bayescore.checks import KnownKeywords, check_count, unknown_name
from bayescore.data.dates import Dates, Frequency
from bayescore.data.regular import RegularSeries, regular_series
from bayescore.data.time_series import Series, as_series, read_series
from bayescore.data.windows import Scaler, SeriesSplit, Windows, split_series
from bayescore.forecast.backtesting import Backtest, score
from bayescore.forecast.calibration import CALIBRATIONS, Calibration, calibrate
from bayescore.forecast.prediction import LEVELS, Forecast
from bayescore.io import read_tensors, refusing_damage, write_tensors
from bayescore.model_folder import WEIGHTS, ModelDescription, SavedModel, read_model, write_model
from bayescore.models import Koopa
from bayescore.nn.training import EnsembleFit, NetworkFit, fit, fit_ensemble
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.likelihoods import Gaussian
from bayescore.rng import generator

__all__ = ["METHODS", "NETWORKS", "Forecaster"]

NETWORKS: dict[str, Callable[..., nn.Module]] = {"koopa": Koopa}
METHODS = ("proximal", "plain", "advi", "descent", "dropout", "ensemble")
FILE, FORMAT = "forecast.safetensors", "bayescore-forecast-1"
AT_ONCE = 256  # windows of a forward pass
LEAST_UPDATES = 25  # of an epoch: the learning rate is halved after each
MOST_WINDOWS = 1000  # of validation that calibrate: neighbouring ones overlap and say nearly the same


@dataclass(frozen=True)
class _Fitted:
    """What a forecaster has learned."""

    posterior: Posterior
    scaler: Scaler
    calibration: Calibration
    columns: tuple[str, ...]
    frequency: Frequency | None
    month_end: bool
    tail: Series  # the last rows of the series: the context of the next forecast
    still: Tensor  # (C,), the columns that never changed, which are forecast as they are
    metrics: dict[str, float]
    status: str
    notes: tuple[str, ...]


@dataclass
class Forecaster(KnownKeywords):
    """A network that forecasts the next `horizon` steps of one or more series, with intervals.

    Arguments:
        model: "koopa", or a function from (channels, context, horizon) to a module of your own, from windows
            (B, context, channels) to (B, horizon, channels).
        horizon: steps to forecast.
        context: steps that the network sees; by default twice the horizon.
        method: "proximal", "advi", "descent" (the paper's inner loop), "plain" (one network), "dropout" or
            "ensemble".
        calibration: "conformal": intervals that hold on the validation rows, step by step; "noise": a noise
            fitted there for every step and column; "single": one noise for all, as in the benchmark.
        validation: the share of the rows, from the end, that validates.
        epochs, patience, batch_size: of the training.
        members: networks of an ensemble.
        max_gap: missing rows or values in a row that are filled in; by default a quarter of the context.
        network: further arguments of the network, such as {"hidden": 128}.
        options: further options of the method, such as {"lr": 3e-4}.
        seed: of the initial weights, the order of the windows and the noise.
        device: where to train and predict, such as "cuda".
    """

    model: str | Callable[..., nn.Module] = "koopa"
    horizon: int = 48
    context: int | None = None
    method: str = "proximal"
    calibration: str = "conformal"
    validation: float = 0.2
    epochs: int = 10
    patience: int | None = 3
    batch_size: int = 32
    members: int = 5
    max_gap: int | None = None
    network: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    device: str = "cpu"

    _elsewhere: ClassVar[str] = (
        "options of the method go into options={...}, and those of the network into network={...}"
    )

    def __post_init__(self) -> None:
        self._fitted: _Fitted | None = None

    # -- training ----------------------------------------------------------------------------------------

    def fit(
        self,
        data: Any,
        *,
        date: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Train on a pandas data frame, an array (n, C), a CSV file, or a `bs.data.Series`.

        Arguments:
            date: the column of dates, if it is not called "date".
            checkpoint: a file written after every epoch, from which a killed run continues.
            progress: show a progress bar; by default if standard error is a terminal.
        """
        self._check()
        regular = regular_series(as_series(data, date), self._max_gap())
        split = self._split(regular.series)
        trained = self._train(split, len(regular.series.columns), checkpoint, progress)
        still = regular.series.values.amax(0) == regular.series.values.amin(0)
        batches = list(self._outputs(trained.posterior, still, _thinned(split.validation, MOST_WINDOWS)))
        outputs = torch.cat([batch[0] for batch in batches], 1)
        x, y = (torch.cat([batch[i] for batch in batches]) for i in (1, 2))
        calibration = calibrate(self.calibration, outputs, x, y)
        scores = score([(outputs, x, y)], calibration, split.scaler, regular.series.columns, LEVELS)
        self._fitted = _Fitted(
            trained.posterior,
            split.scaler,
            calibration,
            regular.series.columns,
            regular.frequency,
            regular.month_end,
            regular.series.take(slice(-self._context(), None)),
            still,
            {f"validation_{name}": value for name, value in scores.metrics().items()},
            trained.status,
            regular.notes,
        )
        return self

    def _train(
        self,
        split: SeriesSplit,
        channels: int,
        checkpoint: str | os.PathLike[str] | None,
        progress: bool | None,
    ) -> NetworkFit | EnsembleFit:
        """`bs.nn.fit` or `bs.nn.fit_ensemble` with the protocol of the benchmark."""

        def make() -> nn.Module:
            module = self._build(channels)
            learn = getattr(module, "learn_frequencies", None)
            if learn is not None:
                learn(DataLoader(split.train, AT_ONCE))
            return module.to(self.device)

        rng = torch.Generator().manual_seed(generator(self.seed, purpose="windows").initial_seed())
        windows = len(split.train)
        batch_size = min(self.batch_size, windows)
        repeats = -(-LEAST_UPDATES * batch_size // windows)
        order = RandomSampler(split.train, num_samples=repeats * windows, generator=rng)
        loader = DataLoader(split.train, batch_size, sampler=order, generator=rng)
        common: dict[str, Any] = {
            "epochs": self.epochs,
            "validation": DataLoader(split.validation, AT_ONCE),
            "patience": self.patience,
            "validate_by": "mse",
            "schedule": "halving",
            "seed": self.seed,
            "checkpoint": checkpoint,
            "progress": progress,
            **self.options,
        }
        likelihood = Gaussian("learned")
        if self.method == "ensemble":
            return fit_ensemble(make, loader, likelihood, members=self.members, **common)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(generator(self.seed, purpose="forecaster").initial_seed())
            module = make()
        return fit(module, loader, likelihood, self.method, **common)

    def _check(self) -> None:
        for name in ("horizon", "epochs", "batch_size", "members"):
            check_count(name, getattr(self, name))
        check_count("context", self._context(), least=2)
        if not 0 < self.validation < 1:
            raise ValueError(f"validation is a share of the rows, between 0 and 1; got {self.validation}")
        if self.method not in METHODS:
            raise unknown_name("method of a forecaster", self.method, METHODS)
        if self.calibration not in CALIBRATIONS:
            raise unknown_name("calibration", self.calibration, CALIBRATIONS)
        if isinstance(self.model, str) and self.model not in NETWORKS:
            raise unknown_name("network", self.model, NETWORKS)
        if not isinstance(self.model, str) and not callable(self.model):
            raise TypeError(
                "model must be a name or a function that makes the network; "
                f"got {self.model!r}: other settings are keywords, such as horizon={self.model!r}"
            )

    def _context(self) -> int:
        return 2 * self.horizon if self.context is None else self.context

    def _max_gap(self) -> int:
        return self._context() // 4 if self.max_gap is None else self.max_gap

    def _build(self, channels: int) -> nn.Module:
        make = NETWORKS[self.model] if isinstance(self.model, str) else self.model
        return make(channels, self._context(), self.horizon, **self.network)

    def _rebuilt(self, channels: int, folder: Path) -> nn.Module:
        """The network of a saved model, if its sizes are those of the saved weights."""
        with torch.device("meta"):  # without memory
            planned = sum(p.numel() * p.element_size() for p in self._build(channels).parameters())
        if planned > (folder / WEIGHTS).stat().st_size:
            raise ValueError(
                f"its network would have {planned:,} bytes of weights, more than {WEIGHTS} holds"
            )
        return self._build(channels)

    def _split(self, series: Series) -> SeriesSplit:
        """Training and validation windows: the last rows validate, at least a horizon of them."""
        n, context = len(series), self._context()
        validation = max(self.horizon, int(self.validation * n))
        need = context + self.horizon + validation
        if n < need:
            raise ValueError(
                f"{series.name} has too few rows: {n}, and training on context + horizon = {context} + "
                f"{self.horizon} and validating on {validation} needs {need}; give more rows, or a shorter "
                "horizon or context"
            )
        return split_series(series, context, self.horizon, (n - validation, validation, 0))

    # -- forecasts ---------------------------------------------------------------------------------------

    def predict(
        self, data: Any = None, *, draws: int = 30, seed: int = 0, date: str | None = None
    ) -> Forecast:
        """Forecast the steps after the last row.

        Arguments:
            data: rows of the same columns and frequency, `context` of them at least; by default the last rows
                that it was fitted on.
            draws: draws of the weights.
        """
        fitted = self._require_fit()
        regular = RegularSeries(fitted.tail, fitted.frequency, fitted.month_end, ())
        if data is not None:
            regular = self._new(data, date)
        last = regular.series.take(slice(-self._context(), None))
        x = fitted.scaler.standardise(last.values)[None].to(self.device)
        outputs = _draws(fitted.posterior, fitted.still, x, draws, seed)
        if not bool(outputs.isfinite().all()):
            raise ValueError(_out_of_reach(last, x[0].cpu()))
        dates = None
        if last.dates is not None and fitted.frequency is not None:
            dates = fitted.frequency.steps_from(last.dates[-1], self.horizon, fitted.month_end)
        restored = fitted.scaler.restore(outputs[:, 0].cpu())
        return Forecast(
            fitted.columns,
            dates,
            restored,
            last.values,
            last.dates,
            outputs,
            x,
            fitted.scaler,
            fitted.calibration,
        )

    def backtest(
        self,
        data: Any,
        *,
        stride: int = 1,
        levels: tuple[float, ...] = LEVELS,
        draws: int = 30,
        seed: int = 0,
        date: str | None = None,
    ) -> Backtest:
        """Forecast from many origins in later data, and compare with what came.

        Arguments:
            data: rows of the same columns and frequency. Rows with dates on which the forecaster was fitted
                serve as context only, so that the whole series can be given.
            stride: rows between two origins.
            levels: of the intervals.
        """
        check_count("stride", stride)
        fitted = self._require_fit()
        series = self._new(data, date).series
        context, first = self._context(), self._context()
        if series.dates is not None and fitted.tail.dates is not None:
            first = max(first, int(np.searchsorted(series.dates, fitted.tail.dates[-1], side="right")))
        rows = fitted.scaler.standardise(series.values)[first - context :]
        windows = Windows(rows, context, self.horizon)
        if not len(windows):
            raise ValueError(
                f"{series.name} has {max(0, len(series) - first)} rows after those that the forecaster was "
                f"fitted on, and a backtest needs horizon = {self.horizon}; fit it on fewer rows, or give "
                "later ones"
            )
        chosen = torch.arange(0, len(windows), stride)
        return score(
            self._outputs(fitted.posterior, fitted.still, (windows, chosen), draws, seed),
            fitted.calibration,
            fitted.scaler,
            fitted.columns,
            levels,
        )

    def _outputs(
        self,
        posterior: Posterior,
        still: Tensor,
        chosen: tuple[Windows, Tensor],
        draws: int = 30,
        seed: int = 0,
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Forecasts (S, n, H, C), contexts and futures of the chosen windows, in batches."""
        windows, index = chosen
        for part in index.split(AT_ONCE):
            x, y = (half.to(self.device) for half in windows.batch(part))
            yield _draws(posterior, still, x, draws, seed), x, y

    def _new(self, data: Any, date: str | None) -> RegularSeries:
        """New rows as the network takes them: the same columns, on the same frequency."""
        fitted = self._require_fit()
        if isinstance(data, str | os.PathLike):  # as the file it was fitted on was read
            reading = fitted.tail.reading | ({} if date is None else {"date": date})
            data = read_series(data, columns=fitted.columns, **reading)
        series = as_series(data, date)
        missing = [column for column in fitted.columns if column not in series.columns]
        if missing:
            raise ValueError(
                f"{series.name} has no column {missing[0]!r}; the forecaster was fitted on "
                f"{', '.join(fitted.columns)}"
            )
        series = series.choose(fitted.columns)
        if (series.dates is None) != (fitted.frequency is None):
            given, wanted = ("without", "with") if series.dates is None else ("with", "without")
            raise ValueError(
                f"{series.name} comes {given} dates, and the forecaster was fitted on a series {wanted}"
            )
        regular = regular_series(series, self._max_gap(), fitted.frequency)
        if len(regular.series) < self._context():
            raise ValueError(
                f"{series.name} has {len(regular.series)} rows, and the forecaster looks at the last "
                f"{self._context()}; give more rows"
            )
        return regular

    # -- what it knows -----------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """How training went."""
        return self._require_fit().status

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to the series, in sentences."""
        return self._require_fit().notes

    @property
    def metrics(self) -> dict[str, float]:
        """Scores on the validation rows, which also chose the epoch and calibrated the intervals."""
        return self._require_fit().metrics

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the series."""
        return self._require_fit().columns

    @property
    def frequency(self) -> Frequency | None:
        """How far apart rows are, or None for a series without dates."""
        return self._require_fit().frequency

    @property
    def posterior(self) -> Posterior:
        """The posterior over the network's weights."""
        return self._require_fit().posterior

    def _require_fit(self) -> _Fitted:
        if self._fitted is None:
            raise RuntimeError(
                "the forecaster has not been fitted; call fit(data), or Forecaster.load(folder)"
            )
        return self._fitted

    # -- folder ------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the forecaster into a folder (docs/forecasting.md says what is in it)."""
        fitted = self._require_fit()
        if not isinstance(self.model, str):
            raise TypeError(
                "a network of your own cannot be rebuilt from a folder; save its posterior "
                "(forecaster.posterior.save)"
            )
        settings = {
            name: getattr(self, name)
            for name in ("method", "validation", "epochs", "patience", "batch_size", "members", "seed")
        }
        frequency = fitted.frequency
        preprocessing: dict[str, Any] = {
            "context": self._context(),
            "horizon": self.horizon,
            "calibration": self.calibration,
            "max_gap": self._max_gap(),
            "frequency": None if frequency is None else {"kind": frequency.kind, "count": frequency.count},
            "month_end": fitted.month_end,
            "still": fitted.still.tolist(),
            "reading": fitted.tail.reading,
            "notes": list(fitted.notes),
            "status": fitted.status,
        }
        description = ModelDescription(
            "forecast",
            self.model,
            {**self.network},
            preprocessing,
            list(fitted.columns),
            {
                **settings,
                **{name: v for name, v in self.options.items() if isinstance(v, bool | int | float | str)},
            },
            fitted.metrics,
        )
        tensors = {f"calibration.{name}": value for name, value in fitted.calibration.tensors().items()}
        tensors |= {"mean": fitted.scaler.mean, "sd": fitted.scaler.sd, "tail": fitted.tail.values}
        if fitted.tail.dates is not None:
            tensors["dates"] = torch.from_numpy(fitted.tail.dates.astype(np.int64))
        saved = write_model(folder, description, fitted.posterior)
        write_tensors(saved.folder / FILE, {"format": FORMAT, "weights_sha256": saved.sha256}, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], device: str = "cpu") -> Forecaster:
        """The forecaster in a folder."""
        return cls.from_saved(read_model(folder), device)

    @classmethod
    def from_saved(cls, saved: SavedModel, device: str = "cpu") -> Forecaster:
        """The forecaster of a model's folder that has been read."""
        known = saved.description
        if known.kind != "forecast":
            raise ValueError(f"{saved.folder} holds a model of the kind {known.kind!r}, not a forecaster")
        path = saved.folder / FILE
        if not path.is_file():
            raise FileNotFoundError(f"the forecaster in {saved.folder} is not whole: {FILE} is missing")
        with refusing_damage(saved.folder, "forecaster"):
            given = known.preprocessing
            header, tensors = read_tensors(path, FORMAT)
            if header["weights_sha256"] != saved.sha256:
                raise ValueError(f"{FILE} belongs to other weights; take an undamaged copy")
            found = cls(
                known.network,
                given["horizon"],
                given["context"],
                calibration=given["calibration"],
                max_gap=given["max_gap"],
                network=known.arguments,
                device=device,
                **{
                    name: known.settings[name]
                    for name in ("method", "validation", "epochs", "patience", "batch_size")
                },
                **{name: known.settings[name] for name in ("members", "seed")},
            )
            found._check()
            columns = tuple(known.outputs)
            frequency = None if given["frequency"] is None else Frequency(**given["frequency"])
            dates: Dates | None = None
            if frequency is not None:
                dates = tensors["dates"].numpy().astype("datetime64[s]")
            scaler = Scaler(tensors["mean"], tensors["sd"])
            tail = Series(tensors["tail"], columns, dates, "the saved series", reading=dict(given["reading"]))
            still = torch.tensor(given["still"], dtype=torch.bool)
            _check_rows(scaler, tail, still, found._context(), len(columns))
            parts = {name.removeprefix("calibration."): value for name, value in tensors.items()}
            calibration = Calibration.rebuild(found.calibration, parts, found.horizon, len(columns))
            module = found._rebuilt(len(columns), saved.folder)
        posterior = saved.posterior(module.to(device))
        with refusing_damage(saved.folder, "forecaster"):
            found._fitted = _Fitted(
                posterior,
                scaler,
                calibration,
                columns,
                frequency,
                bool(given["month_end"]),
                tail,
                still,
                known.metrics,
                str(given["status"]),
                tuple(given["notes"]),
            )
        return found


def _check_rows(scaler: Scaler, tail: Series, still: Tensor, context: int, columns: int) -> None:
    """Raise unless saved numbers have the sizes that belong together."""
    shapes = {"mean": scaler.mean.shape == (columns,), "sd": scaler.sd.shape == (columns,)}
    shapes["still"] = still.shape == (columns,)
    shapes["tail"] = tail.values.shape == (context, columns)
    shapes["dates"] = tail.dates is None or tail.dates.shape == (context,)
    for name, fits in shapes.items():
        if not fits:
            raise ValueError(f"its tensor {name!r} does not fit {columns} columns and a context of {context}")
    values = torch.cat([scaler.mean, scaler.sd, tail.values.flatten()])
    if not bool(values.isfinite().all()) or not bool((scaler.sd > 0).all()):
        raise ValueError("its scaler or its last rows are not finite")


def _draws(posterior: Posterior, still: Tensor, x: Tensor, draws: int, seed: int) -> Tensor:
    """Forecasts (S, n, H, C) under drawn weights, of contexts (n, L, C); `still` columns stay as they are."""
    prediction = posterior.predict(x, draws, seed=seed)
    outputs: Tensor = prediction.likelihood.mean(prediction.outputs)
    return torch.where(still.to(x.device), x[:, -1:], outputs)


def _out_of_reach(context: Series, z: Tensor) -> str:
    """What to say of a context (L, C) of which no finite forecast can be made."""
    row, column = divmod(int(z.abs().nan_to_num(math.inf).argmax()), z.shape[1])
    return (
        f"{context.name}: {context.label(row)} has {float(context.values[row, column]):g} in column "
        f"{context.columns[column]!r}, too far from the rows that the forecaster was fitted on; correct it"
    )


def _thinned(windows: Windows, most: int) -> tuple[Windows, Tensor]:
    """At most so many windows, evenly spaced."""
    count = len(windows)
    return windows, torch.arange(0, count, max(1, -(-count // most)))

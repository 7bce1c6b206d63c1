"""A forecaster, from series to intervals: what it learns, says, refuses and saves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bayescore as bs
from bayescore.data import Series
from bayescore.forecast import Forecaster
from bayescore.forecast.calibration import LEVELS, Calibration, calibrate, window_scale
from bayescore.forecast.forecaster import METHODS
from toy_series import hourly, small, write_csv


def after(series: Series, rows: int) -> Series:
    return series.take(slice(-rows, None))


def test_it_learns_the_rhythm_of_a_series(fitted):
    assert fitted.metrics["validation_mse"] < 0.4  # 1 is the variance of the series
    forecast = fitted.predict()
    assert forecast.mean.shape == (6, 2)
    assert forecast.columns == ("load", "price")
    assert str(forecast.dates[0]) == "2024-01-26T00:00:00"
    truth = 50 + 10 * torch.sin(2 * torch.pi * torch.arange(600, 606, dtype=torch.float64) / 12)
    assert float((forecast.mean[:, 0] - truth).abs().mean()) < 5


def test_quantiles_are_ordered_and_intervals_are_pairs_of_them(fitted):
    forecast = fitted.predict()
    quantiles = torch.stack([forecast.quantile(q) for q in (0.001, 0.02, 0.1, 0.4, 0.5, 0.7, 0.975, 0.999)])
    assert bool((quantiles.diff(dim=0) >= 0).all())
    assert torch.allclose(forecast.quantile(0.5), forecast.mean, atol=1e-5)
    low, high = forecast.interval(0.9)
    assert torch.equal(low, forecast.quantile(0.05))
    assert torch.allclose(high, forecast.quantile(0.95))
    with pytest.raises(ValueError, match="level must lie"):
        forecast.interval(1.0)
    with pytest.raises(ValueError, match="q must lie"):
        forecast.quantile(0.0)


def test_draws_differ_and_their_mean_is_the_forecast(fitted):
    forecast = fitted.predict(draws=7)
    assert forecast.draws.shape == (7, 6, 2)
    assert float(forecast.draws.std(0).max()) > 0
    assert torch.equal(forecast.draws.mean(0), forecast.mean)
    assert torch.equal(fitted.predict(draws=7).mean, forecast.mean)
    assert not torch.equal(fitted.predict(draws=7, seed=1).mean, forecast.mean)


def test_a_forecast_does_not_depend_on_rows_before_its_context(fitted):
    new = hourly(200, seed=5)
    whole, part = fitted.predict(new), fitted.predict(after(new, 24))
    assert torch.equal(whole.mean, part.mean)
    assert np.array_equal(whole.dates, part.dates)


def test_calibrated_intervals_hold_on_later_rows(fitted):
    series = hourly(1000)
    result = fitted.backtest(series)
    assert result.origins == 1000 - 600 - 6 + 1
    for level, coverage in result.coverage.items():
        assert abs(coverage - level) < 0.07
        assert result.coverage_by_step[level].shape == (6,)
    assert result.width[0.5] < result.width[0.8] < result.width[0.95]
    assert result.crps < result.mae
    assert result.mse == pytest.approx(float(result.mse_by_step.mean()))
    assert result.mae_by_column["load"] > 5 * result.mae_by_column["price"]
    assert fitted.backtest(series, stride=10).origins == 40
    assert set(result.metrics()) >= {"mse", "mae", "nll", "crps", "coverage_80", "width_95"}


def test_a_backtest_of_rows_it_was_fitted_on_is_refused(fitted):
    with pytest.raises(ValueError, match="has 0 rows after those that the forecaster was fitted on"):
        fitted.backtest(hourly(600))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_fitted_saved_and_loaded(method, tmp_path):
    forecaster = small(method=method, epochs=1, members=2).fit(hourly(200), progress=False)
    forecast = forecaster.predict(draws=4)
    forecaster.save(tmp_path / "model")
    loaded = Forecaster.load(tmp_path / "model")
    again = loaded.predict(draws=4)
    assert torch.equal(forecast.mean, again.mean)
    assert torch.equal(forecast.quantile(0.9), again.quantile(0.9))
    assert np.array_equal(forecast.dates, again.dates)
    assert loaded.metrics == forecaster.metrics
    assert (loaded.columns, loaded.frequency) == (("load", "price"), forecaster.frequency)
    assert bool(forecast.quantile(0.9).isfinite().all())
    assert loaded.method == method


@pytest.mark.parametrize("calibration", ["noise", "single"])
def test_other_calibrations_give_mixtures(calibration, tmp_path):
    forecaster = small(calibration=calibration).fit(hourly(300), progress=False)
    low, high = forecaster.predict().interval(0.8)
    assert bool((low < high).all())
    result = forecaster.backtest(hourly(500, seed=0))
    assert 0.6 < result.coverage[0.8] < 0.95
    forecaster.save(tmp_path)
    assert torch.equal(Forecaster.load(tmp_path).predict().interval(0.8)[0], low)


def test_frames_arrays_and_files_are_the_same_series(tmp_path):
    series = hourly(200)
    path = write_csv(tmp_path / "data.csv", series)
    by_file = small(epochs=1).fit(path).predict()
    by_series = small(epochs=1).fit(bs.data.read_series(path)).predict()
    by_array = small(epochs=1).fit(bs.data.read_series(path).values.numpy()).predict()
    assert torch.equal(by_file.mean, by_series.mean)
    assert torch.equal(by_file.mean, by_array.mean)
    assert by_array.dates is None
    assert by_array.rows()[0]["column"] == "0"
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_csv(path, parse_dates=["date"])
    assert torch.equal(small(epochs=1).fit(frame).predict().mean, by_file.mean)


def test_rows_of_a_forecast_are_a_table(fitted):
    rows = fitted.predict().rows(levels=(0.8,))
    assert len(rows) == 12
    assert list(rows[0]) == ["step", "date", "column", "mean", "80 % low", "80 % high"]
    assert rows[0]["80 % low"] < rows[0]["mean"] < rows[0]["80 % high"]


def test_a_network_of_ones_own_is_trained_but_not_saved(tmp_path):
    class Last(nn.Module):
        def __init__(self, channels: int, context: int, horizon: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(horizon, 1))

        def forward(self, x):
            return x[:, -1:] * self.weight

    forecaster = small(model=Last, network={}, epochs=1).fit(hourly(200))
    assert forecaster.predict().mean.shape == (6, 2)
    with pytest.raises(TypeError, match="network of your own"):
        forecaster.save(tmp_path)


@pytest.mark.parametrize("value", [7.0, 0.0, -1e6])
def test_a_constant_column_is_forecast_as_it_is(value, tmp_path):
    series = hourly(200)
    values = series.values.clone()
    values[:, 1] = value
    forecaster = small(epochs=1).fit(replace(series, values=values))
    assert forecaster.notes == ("column 'price' never changed: the forecast there does not either",)
    forecaster.save(tmp_path / "model")
    for one in (forecaster, Forecaster.load(tmp_path / "model")):
        forecast = one.predict()
        low, high = forecast.interval(0.95)
        for end in (forecast.mean, low, high):
            assert torch.equal(end[:, 1], torch.full((6,), value, dtype=torch.float64))
        assert bool((high[:, 0] > low[:, 0]).all())
    later = replace(series, values=values + 1.0)
    assert torch.equal(forecaster.predict(later).mean[:, 1], torch.full((6,), value + 1, dtype=torch.float64))


def test_short_gaps_are_filled_and_noted():
    series = hourly(200)
    values = series.values.clone()
    values[50:53, 0] = torch.nan
    forecaster = small(epochs=1).fit(replace(series, values=values))
    assert "3 missing values of 'load'" in forecaster.notes[0]


def test_too_few_rows_are_refused_with_the_number_that_is_needed():
    with pytest.raises(ValueError, match=r"too few rows: 34, and .* 24 \+ 6 and validating on 6 needs 36"):
        small().fit(hourly(34))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "proxmal"}, "did you mean 'proximal'"),
        ({"calibration": "none"}, "choose from conformal, noise, single"),
        ({"model": "kopa"}, "did you mean 'koopa'"),
        ({"validation": 1.0}, "between 0 and 1"),
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"network": {"hidden": 0}}, "hidden must be at least 1"),
    ],
)
def test_impossible_settings_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        small(**changes).fit(hourly(100))


def test_new_rows_must_be_of_the_same_kind(fitted):
    new = hourly(60)
    with pytest.raises(ValueError, match="no column 'price'; the forecaster was fitted on load, price"):
        fitted.predict(new.choose(["load"]))
    with pytest.raises(ValueError, match="20 rows, and the forecaster looks at the last 24"):
        fitted.predict(after(new, 20))
    with pytest.raises(ValueError, match="comes without dates"):
        fitted.predict(replace(new, dates=None))
    assert new.dates is not None
    with pytest.raises(ValueError, match="rows 1 day apart where rows 1 hour apart are needed"):
        fitted.predict(replace(new, dates=new.dates[0] + np.arange(60) * np.timedelta64(1, "D")))
    swapped = fitted.predict(new.choose(["price", "load"]))
    assert torch.equal(swapped.mean, fitted.predict(new).mean)


def test_an_unfitted_forecaster_says_so(tmp_path):
    with pytest.raises(RuntimeError, match="has not been fitted"):
        small().predict()
    with pytest.raises(RuntimeError, match="has not been fitted"):
        small().save(tmp_path)


def test_a_folder_of_another_forecaster_is_refused_by_its_parts(tmp_path, fitted):
    fitted.save(tmp_path / "one")
    small(epochs=1).fit(hourly(200)).save(tmp_path / "two")
    (tmp_path / "one" / "forecast.safetensors").write_bytes(
        (tmp_path / "two" / "forecast.safetensors").read_bytes()
    )
    with pytest.raises(ValueError, match=r"not a readable forecaster.*belongs to other weights"):
        Forecaster.load(tmp_path / "one")
    (tmp_path / "one" / "forecast.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"forecast.safetensors is missing"):
        Forecaster.load(tmp_path / "one")


def test_conformal_intervals_hold_exactly_where_they_were_calibrated():
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(199, 12, 2, generator=rng)
    outputs = torch.randn(5, 199, 3, 2, generator=rng)
    y = 3 * torch.randn(199, 3, 2, generator=rng)
    found = calibrate("conformal", outputs, x, y)
    for level in LEVELS[1:-2]:
        low, high = found.interval(level, outputs, x)
        inside = ((y >= low) & (y <= high)).float().mean(0)
        # the window that is the end of its own interval may be rounded to either side of it
        assert torch.allclose(inside, torch.full((3, 2), round(200 * level) / 199), atol=1.01 / 199)


def test_the_scale_of_a_window_is_used_where_errors_follow_it():
    rng = torch.Generator().manual_seed(0)
    sizes = torch.rand(400, 1, 1, generator=rng) * 5 + 0.1
    x = sizes * torch.randn(400, 50, 1, generator=rng)
    outputs = torch.zeros(1, 400, 3, 1)
    noise = torch.randn(400, 3, 1, generator=rng)
    assert calibrate("noise", outputs, x, sizes * noise).power == 1
    assert calibrate("noise", outputs, x, noise).power == 0
    assert calibrate("noise", outputs, x, sizes * noise).noise.mean() == pytest.approx(1, abs=0.1)
    assert torch.equal(window_scale(x, 0.0), torch.ones(400, 1, 1))


def test_a_level_beyond_the_table_widens_like_a_normal():
    found = Calibration("conformal", torch.ones(1, 1), 0.0, torch.tensor(LEVELS).view(-1, 1, 1) * 3)
    x, outputs = torch.randn(1, 4, 1), torch.zeros(1, 1, 1, 1)
    inner, outer = (found.interval(level, outputs, x)[1] for level in (0.99, 0.999))
    assert float(outer / inner) == pytest.approx(3.2905 / 2.5758, rel=1e-3)


def test_the_expected_error_has_the_spread_over_draws_and_the_noise():
    rng = torch.Generator().manual_seed(0)
    outputs = torch.randn(6, 9, 3, 2, generator=rng, dtype=torch.float64)
    x, y = torch.randn(9, 5, 2, generator=rng), torch.randn(9, 3, 2, generator=rng, dtype=torch.float64)
    found = calibrate("conformal", outputs, x.double(), y)
    u = (outputs.var(0, correction=0) + found.sd(x.double()).square()).sqrt()
    centre, place = outputs.mean(0), LEVELS.index(0.8)
    low, high = found.interval(0.8, outputs, x.double())
    assert torch.allclose(centre - found.table[place] * u, low, atol=1e-12)
    assert torch.allclose(centre + found.table[place] * u, high, atol=1e-12)


def test_rows_too_far_away_to_forecast_from_are_named(fitted):
    series = hourly(600)
    values = series.values.clone()
    values[590, 1] = 1e60
    with pytest.raises(ValueError, match=r"row 591 \(.*\) has 1e\+60 in column 'price', too far"):
        fitted.predict(replace(series, values=values))


def test_a_short_series_is_learned_in_as_many_epochs_as_a_long_one():
    t = np.arange(300)
    rng = np.random.default_rng(1)
    values = np.stack([20 + 5 * np.sin(t / 4), 40 + 10 * np.sin(t / 4)], 1) + rng.normal(0, 0.3, (300, 2))
    sizes = {"hidden": 32, "dynamic_dim": 32}
    forecaster = Forecaster(horizon=12, network=sizes).fit(values[:160], progress=False)
    assert forecaster.backtest(values[136:]).mse < 0.1  # 0.8 with one pass over the 93 windows per epoch


def test_a_series_of_a_few_windows_is_trained_in_smaller_batches(recwarn):
    small(epochs=1).fit(hourly(42), progress=False)
    assert not recwarn.list

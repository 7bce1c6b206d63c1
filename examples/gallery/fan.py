"""A forecast that says how sure it is

Four weeks of an hourly load, and the next two days: the median, and bands of 50, 80 and 95 %, calibrated on
rows that the network did not learn from. These two days were kept back: the dashed line is what came.
"""

import numpy as np
import pandas as pd

import bayescore as bs

rng = np.random.default_rng(0)
hours = pd.date_range("2024-01-01", periods=30 * 24, freq="h")
daily, weekly = np.sin(2 * np.pi * hours.hour / 24), 0.6 * (hours.dayofweek < 5)
noise = 0.5 * rng.normal(size=len(hours))
series = pd.DataFrame({"load": 10 + 2 * daily + 2 * weekly + noise}, index=hours)

forecaster = bs.forecast.Forecaster(horizon=48, context=96, epochs=3, network={"hidden": 32}, seed=0)
forecaster.fit(series[:-48], progress=False)
forecast = forecaster.predict()
low, high = (end[:, 0].numpy() for end in forecast.interval(0.8))
came = series["load"].to_numpy()[-48:]
print(f"{100 * np.mean((low <= came) & (came <= high)):.0f} % of the next 48 hours lie in the 80 % band")
figure = bs.plotting.plot_forecast(forecast, truth=bs.data.as_series(series))

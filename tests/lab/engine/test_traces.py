"""Quantiles of traces over seeds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from toy_tools import make_record

from bayescore_lab.engine import Records, quantile_trace
from bayescore_lab.engine.traces import log_spaced, quantiles


def traced(*curves) -> Records:
    return Records(
        replace(make_record(str(seed)), seed=seed, trace={"score_calls": list(x), "kl": list(y)})
        for seed, (x, y) in enumerate(curves)
    )


def test_quantiles_are_numpys_where_all_is_finite():
    table = np.random.default_rng(0).standard_normal((7, 5))
    assert quantiles(table, (0.1, 0.5, 0.9)) == pytest.approx(np.quantile(table, [0.1, 0.5, 0.9], axis=0))


def test_a_run_that_broke_down_raises_the_upper_quantiles_and_is_not_left_out():
    table = np.array([[1.0], [2.0], [3.0], [math.nan]])
    low, middle, high = quantiles(table, (0.0, 0.5, 0.9))[:, 0]
    assert (low, middle, high) == (1.0, 2.5, math.inf)
    assert quantiles(np.array([[math.inf], [math.inf]]), (0.5,))[0, 0] == math.inf


def test_runs_on_different_grids_meet_as_staircases():
    trace = quantile_trace(traced(([1, 4], [8.0, 2.0]), ([2, 3, 4], [6.0, 5.0, 4.0])), "kl")
    assert trace.x.tolist() == [2, 3, 4]
    assert trace.level(0.5).tolist() == [7.0, 6.5, 3.0]
    assert trace.n == 2


def test_a_run_that_stopped_keeps_its_last_value():
    trace = quantile_trace(traced(([1, 2], [3.0, 1.0]), ([1, 2, 3], [3.0, 1.0, 1.0])), "kl")
    assert trace.level(0.9).tolist() == [3.0, 1.0, 1.0]


def test_long_traces_are_thinned_on_a_logarithmic_scale():
    x = np.arange(100_000, dtype=float)
    chosen = log_spaced(x, 200)
    assert chosen.size <= 200
    assert (chosen[0], chosen[1], chosen[-1]) == (0.0, 1.0, 99_999.0)
    assert np.isin(chosen, x).all()
    steps = np.diff(np.log(chosen[chosen > 1000]))
    assert steps.max() < 1.5 * steps.min()


def test_records_without_the_trace_have_no_quantiles():
    assert quantile_trace(traced(([1], [1.0])), "absent") is None
    assert quantile_trace(Records([]), "kl") is None

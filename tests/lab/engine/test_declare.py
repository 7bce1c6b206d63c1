"""Declarations, grids and the registry: what is refused, and with which words."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from toy_experiment import EXPERIMENT

from bayescore_lab.engine import Profile, Run, find_experiments, plan
from bayescore_lab.engine.plans import pick

AREA = """
from dataclasses import replace
from toy_experiment import EXPERIMENT as TOY
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An empty package of experiments; write modules into its area."""
    area = tmp_path / "evidence_package" / "area"
    area.mkdir(parents=True)
    for folder in (area, area.parent):
        (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield area
    for name in [name for name in sys.modules if name.startswith("evidence_package")]:
        del sys.modules[name]


def test_one_file_in_an_area_is_all_an_experiment_needs(package):
    (package / "first.py").write_text(AREA + "EXPERIMENT = replace(TOY, id='first')")
    (package / "more.py").write_text(AREA + "EXPERIMENTS = [replace(TOY, id=f'no-{i}') for i in (2, 1)]")
    (package / "helper.py").write_text("from evidence_package.area.first import EXPERIMENT")
    (package.parent / "engine.py").write_text("raise ImportError('only areas are searched')")
    assert list(find_experiments("evidence_package")) == ["first", "no-1", "no-2"]


def test_two_experiments_of_one_name_are_refused(package):
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(AREA + "EXPERIMENT = replace(TOY, id='same')")
    with pytest.raises(ValueError, match=r"two experiments are called 'same': in .*one and in .*two"):
        find_experiments("evidence_package")


def test_a_declaration_of_the_wrong_kind_is_named(package):
    (package / "wrong.py").write_text("EXPERIMENT = 3")
    with pytest.raises(TypeError, match=r"area\.wrong declares a int; expected an Experiment"):
        find_experiments("evidence_package")


def test_an_unknown_id_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"no experiment called 'gausian'; did you mean 'gaussian'"):
        pick({"gaussian": EXPERIMENT, "mixture-order5": EXPERIMENT}, "gausian")


@pytest.mark.parametrize("bad", ["", "list", "Upper", "a--b", "a/b", "../a"])
def test_an_id_must_make_a_folder_and_a_word(bad):
    with pytest.raises(ValueError, match="an experiment's id"):
        replace(EXPERIMENT, id=bad)


def test_every_experiment_has_a_quick_and_a_paper_profile():
    with pytest.raises(ValueError, match=r"'toy' lacks the profile paper; it has quick"):
        replace(EXPERIMENT, profiles={"quick": Profile(1, 1)})


def test_settings_must_be_json():
    profiles = {"quick": Profile(1, 1, {"f": print}), "paper": Profile(1, 1)}
    with pytest.raises(TypeError, match=r"settings of profile 'quick' of 'toy'\['f'\] is a builtin"):
        replace(EXPERIMENT, profiles=profiles)


def test_a_grid_is_the_profile_with_its_seeds_and_methods():
    grid = plan(EXPERIMENT, "quick")
    assert len(grid.runs) == 3 * 8
    assert plan(EXPERIMENT, "quick", seeds=2, methods=["GSM", "Ours"]).methods == ("Ours", "GSM")
    assert grid.command == "bayescore reproduce toy --profile quick"
    small = plan(EXPERIMENT, "paper", seeds=2, methods=["Ours"])
    assert small.command == "bayescore reproduce toy --profile paper --seeds 2 --methods Ours"


def test_grids_of_different_settings_share_no_run_and_more_seeds_keep_all_runs():
    quick, paper = plan(EXPERIMENT, "quick"), plan(EXPERIMENT, "paper")
    assert not quick.runs.keys() & paper.runs.keys()
    assert plan(EXPERIMENT, "quick", seeds=3).runs.keys() < quick.runs.keys()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"profile": "papper"}, "did you mean 'paper'"),
        ({"methods": ["Our"]}, "did you mean 'Ours'"),
        ({"seeds": 0}, "the number of seeds must be from 1 to 10,000; got 0"),
    ],
)
def test_bad_wishes_are_refused_with_advice(words, message):
    with pytest.raises(ValueError, match=message):
        plan(EXPERIMENT, **words)


def test_a_run_listed_twice_is_refused():
    twice = replace(EXPERIMENT, runs=lambda settings, seeds, methods: [Run("Ours", 0), Run("Ours", 0)])
    with pytest.raises(ValueError, match="lists the run of Ours with seed 0 twice"):
        plan(twice)

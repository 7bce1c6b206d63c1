"""`bayescore predict`: a model's kind decides who reads the new data; mistakes are one sentence."""

from __future__ import annotations

import csv

import pytest
from torch import nn

from bayescore.cli import main
from bayescore.cli.predict import PREDICTORS
from bayescore.model_folder import KINDS, ModelDescription, write_model
from bayescore.nn import PointPosterior


def predict_lines(saved, new, draws, seed):
    """A kind of model for this test: the length of every line."""
    lines = new.read_text().splitlines()
    return [{"line": line, "length": len(line), "share": len(line) / (draws + seed)} for line in lines]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PREDICTORS, "text", f"{__name__}:predict_lines")
    write_model(tmp_path / "model", ModelDescription("text", "tiny"), PointPosterior(nn.Linear(1, 2)))
    monkeypatch.chdir(tmp_path)

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(["predict", *words])
        return ended.value.code, capsys.readouterr()

    return call


def test_the_kind_of_the_model_reads_the_new_data(run, tmp_path):
    (tmp_path / "new.txt").write_text('a[b]\nlonger, "line"\n')
    code, said = run("model", "new.txt", "--output", "said.csv", "--draws", "3", "--seed", "1")
    assert code == 0
    assert "a[b]" in said.out
    assert "wrote said.csv" in said.out
    rows = list(csv.DictReader((tmp_path / "said.csv").read_text().splitlines()))
    assert rows[0] == {"line": "a[b]", "length": "4", "share": "1.0"}
    assert rows[1]["line"] == 'longer, "line"'


def test_a_long_table_is_cut_on_the_terminal_and_whole_in_the_file(run, tmp_path):
    (tmp_path / "new.txt").write_text("x\n" * 50)
    code, said = run("model", "new.txt", "--output", "said.csv")
    assert code == 0
    assert "30 more rows; --output predictions.csv keeps all" in said.out
    assert len((tmp_path / "said.csv").read_text().splitlines()) == 51
    assert run("model", "new.txt", "--quiet")[1].out == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "new.txt"], "there is no folder nowhere"),
        (["model", "nowhere.txt"], "nowhere.txt: No such file"),
        (["model", "new.txt", "--draws", "0"], "--draws must be at least 1; got 0"),
        (["model", "new.txt", "--seed", "-1"], "--seed must be a whole number from 0"),
        (["model", "new.txt", "--output", "said.txt"], "--output must end in .csv; got 'said.txt'"),
    ],
)
def test_a_mistake_is_one_sentence(run, words, sentence):
    code, said = run(*words)
    assert code == 2
    assert sentence in said.err
    assert said.err.count("\n") == 1


def test_a_kind_without_a_predictor_is_named(run, tmp_path, monkeypatch):
    monkeypatch.delitem(PREDICTORS, "text")
    code, said = run("model", "new.txt")
    assert (code, "cannot predict with a model of the kind 'text'" in said.err) == (2, True)


def test_every_predictor_is_of_a_kind_that_exists():
    assert set(PREDICTORS) <= set(KINDS)

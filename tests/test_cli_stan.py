"""The command on Stan programs and PosteriorDB folders: what it prints, writes and refuses.

All fits share one program, compiled once and kept in the cache.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import zipfile
from pathlib import Path

import arviz
import pytest
import torch

from bayescore.cli import main

PROGRAM = Path(__file__).parent / "targets" / "stan" / "everything.stan"
DATA = {"N": 12, "y": [1.2, 0.7, 2.9, 1.4, 0.2, 2.1, 1.7, 0.9, 1.1, 2.4, 0.5, 1.6], "mood": 0}

needs_stan = [
    pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]


def stan(test):
    for mark in needs_stan:
        test = mark(test)
    return test


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with the program and its data."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(PROGRAM, tmp_path / "everything.stan")
    for mood in range(5):
        (tmp_path / f"data{mood}.json").write_text(json.dumps({**DATA, "mood": mood}))

    def call(line: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as leaving:
            main(line.split())
        printed = capsys.readouterr()
        return leaving.value.code, printed.out, printed.err

    return call


@pytest.fixture
def folder(tmp_path):
    """A small PosteriorDB folder: an autoregression, which is written in torch, with reference draws."""
    place = tmp_path / "posteriordb"
    rng = torch.Generator().manual_seed(0)
    y = [0.0]
    for e in torch.randn(60, generator=rng).tolist():
        y.append(0.5 * y[-1] + e)
    description = {
        "name": "mine-arK",
        "model_name": "arK",
        "data_name": "mine",
        "reference_posterior_name": "mine-arK",
    }
    draws = {
        "alpha": torch.randn(200, generator=rng).mul(0.13),
        "beta[1]": torch.randn(200, generator=rng).mul(0.12).add(0.5),
        "sigma": torch.randn(200, generator=rng).mul(0.1).exp(),
    }
    files = {
        "posteriors/mine-arK.json": description,
        "data/mine.json": {"K": 1, "T": 61, "y": y},
    }
    for name, content in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(json.dumps(content))
    (place / "reference_draws").mkdir()
    with zipfile.ZipFile(place / "reference_draws" / "mine-arK.json.zip", "w") as archive:
        archive.writestr("mine-arK.json", json.dumps([{k: v.tolist() for k, v in draws.items()}]))
    return place


# -- fits ----------------------------------------------------------------------------------------


@stan
@pytest.mark.filterwarnings("ignore:Estimated shape parameter of Pareto")  # LOO of twelve data
def test_a_program_with_its_data_gives_a_diagnosed_fit_in_arviz(run, tmp_path):
    line = "fit everything.stan --data data0.json --family full --method bam --draws 32 --steps 60"
    code, out, _ = run(f"{line} --output fit.nc --output-draws 400 --plot marginals.png")
    assert code == 0
    for words in ("BaM, FullGaussian, everything.stan in 21 dimensions", "ELBO", "±", "k-hat", "verdict"):
        assert words in out
    for column in ("mean", "sd", "5%", "50%", "95%"):
        assert column in out
    assert " mu " in out
    assert "a[2,1]" in out
    data = arviz.from_netcdf("fit.nc")
    assert data.posterior["a"].shape == (1, 400, 2, 3)
    assert (data.posterior["sigma"] > 0).all()
    assert arviz.loo(data, pointwise=True).loo_i.shape == (12,)
    assert (tmp_path / "marginals.png").read_bytes().startswith(b"\x89PNG")


@stan
def test_the_default_is_automatic_and_says_what_it_did(run):
    code, out, _ = run("fit everything.stan --data data0.json --output fit.nc --resample")
    assert code == 0
    assert "auto:" in out
    assert "found a mode" in out
    assert "of which" in out


@stan
def test_an_improper_program_is_not_trusted(run):
    code, out, _ = run("fit everything.stan --data data1.json --steps 20")
    assert code == 0
    assert "do not trust this approximation: the log density is linear in mu" in out


@stan
def test_noise_keeps_the_names_of_the_program(run):
    code, out, _ = run("fit everything.stan --data data0.json --noise 0.1 --steps 40")
    assert code in (0, 1)
    assert "sigma" in out


def test_a_posterior_of_a_folder_is_fitted_and_compared(run, folder):
    code, out, _ = run("fit posteriordb:mine-arK --data-folder posteriordb --output fit.nc --plot m.svg")
    assert code == 0
    assert "reference   mean error" in out
    assert "beta[1]" in out
    assert set(arviz.from_netcdf("fit.nc").posterior.data_vars) == {"alpha", "beta", "sigma"}


def test_the_folder_may_come_from_the_environment(run, folder, monkeypatch):
    monkeypatch.setenv("BAYESCORE_DATA", str(folder.parent))
    assert run("fit posteriordb:mine-arK -q") == (0, "", "")


# -- mistakes ------------------------------------------------------------------------------------


def test_files_that_are_not_there_are_named(run, monkeypatch):
    monkeypatch.delenv("BAYESCORE_DATA", raising=False)
    for line, words in {
        "fit nowhere.stan": "no Stan program at nowhere.stan",
        "fit everything.stan --data nowhere.json": "there is no data file at nowhere.json",
        "fit posteriordb:arK-arK": "no PosteriorDB folder is known",
        "fit posteriordb:arK-arK --data-folder nowhere": "nowhere is not a PosteriorDB folder",
    }.items():
        code, out, err = run(line)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


def test_data_that_are_not_json_are_told_with_the_place(run, tmp_path):
    (tmp_path / "bad.json").write_text('{"N": 3,\n "y": [1, }')
    code, _, err = run("fit everything.stan --data bad.json")
    assert code == 2
    assert "bad.json is not readable JSON" in err
    assert "line 2" in err
    (tmp_path / "list.json").write_text("[1, 2]")
    assert "must hold a JSON object" in run("fit everything.stan --data list.json")[2]


def test_an_unknown_posterior_is_answered_with_the_nearest(run, folder):
    assert "did you mean 'mine-arK'" in run("fit posteriordb:mine-ark --data-folder posteriordb")[2]


@stan
def test_a_syntax_error_is_shown_in_the_compilers_own_lines(run, tmp_path):
    (tmp_path / "wrong.stan").write_text("parameters { real x; }\nmodel { x ~ normal(0, 1) }\n")
    code, out, err = run("fit wrong.stan")
    assert (code, out) == (2, "")
    assert err.startswith("error: wrong.stan is not a program that the Stan compiler accepts:\n")
    assert "line 2, column 25" in err
    assert "     2:  model { x ~ normal(0, 1) }\n" in err
    assert err.count("^") == 1


@stan
@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"N": 3, "mood": 0}, "missing: y"),
        ({"N": 3, "y": [1.0], "mood": 0}, "dims declared=(3); dims found=(1)"),
        ({"N": 3, "y": [1.0, 2.0, 3.0], "mood": 9}, "less than or equal to 4"),
    ],
)
def test_data_that_do_not_match_are_told_in_stans_own_words(run, tmp_path, data, words):
    (tmp_path / "data.json").write_text(json.dumps(data))
    code, _, err = run("fit everything.stan --data data.json")
    assert code == 2
    assert words in err


@stan
def test_a_density_that_is_infinite_everywhere_is_a_sentence(run):
    code, _, err = run("fit everything.stan --data data2.json")
    assert code == 2
    assert "not finite at any of 101 points" in err


@stan
def test_a_machine_without_a_compiler_is_told_what_to_install(run, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    code, _, err = run("fit everything.stan --data data0.json")
    assert code == 2
    assert "install one" in err


def test_an_output_that_cannot_be_written_is_refused_before_the_compile(run, monkeypatch):
    monkeypatch.setattr("bayescore.cli.choose.Stan", lambda *_: pytest.fail("the program was read"))
    for option in ("--output nowhere/fit.nc", "--plot nowhere/m.png", "--output fit.txt", "--method baam"):
        assert run(f"fit everything.stan --data data0.json {option}")[0] == 2


@stan
def test_a_compile_is_announced_on_standard_error(run, tmp_path, monkeypatch):
    compiler = tmp_path / "broken++"
    compiler.write_text("#!/bin/sh\necho 'fatal error: no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    code, _, err = run("fit everything.stan --data data0.json")
    assert code == 2
    assert re.match(r"compiling everything\.stan \(about \d+ s, once\)\n", err)
    assert "fatal error: no space left" in err
    assert "compiling" not in run("fit everything.stan --data data0.json --quiet")[2]

"""`bayescore calibrate`: what it prints, how it ends, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayescore.cli import main

FILE = """
import torch
from torch.distributions import Normal

import bayescore as bs


def simulate(rng):
    mu, *noise = torch.randn(6, generator=rng, dtype=torch.float64)
    return {"mu": mu}, mu + torch.stack(noise)


def model(y, shift=0.0):
    def log_density(mu):
        return Normal(0, 1).log_prob(mu) + Normal(mu + shift, 1).log_prob(y).sum()

    return bs.targets.TorchModel({"mu": bs.targets.Real()}, log_density)


def shifted(y):
    return model(y, shift=2.0)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(FILE, encoding="utf-8")

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["calibrate", *words])
        out = capsys.readouterr()
        return int(end.value.code or 0), out.out, out.err

    return call


def test_a_right_model_is_called_calibrated(run) -> None:
    code, out, _ = run("own.py:model", "own.py:simulate", "--runs", "10", "--effort", "quick")
    assert code == 0
    assert "calibrated as far as 10 fits of simulated data can tell" in out
    assert "mu" in out


def test_a_wrong_model_ends_with_code_1_and_names_the_parameter(run) -> None:
    code, out, _ = run("own.py:shifted", "own.py:simulate", "--runs", "15", "--effort", "quick")
    assert code == 1
    assert "mu is too low" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("own.py:model", "own.py:simulat"), "there is no function 'simulat' in own.py"),
        (("own.py:model", "other.py:simulate"), "there is no file other.py"),
        (("own.py:model", "simulate"), "a simulator in a file is named path/to/file.py:function"),
        (("gone.stan", "own.py:simulate"), "there is no file gone.stan"),
        (("own.py:model", "own.py:simulate", "--runs", "0"), "--runs"),
        (("own.py:model", "own.py:simulate", "--effort", "some"), "effort"),
    ],
)
def test_a_mistake_is_one_sentence(run, words: tuple[str, ...], sentence: str) -> None:
    code, _, err = run(*words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err

"""`bayescore train`: a network on digits, its table and its files; mistakes are one sentence."""

from __future__ import annotations

import pytest

from bayescore.cli import main
from bayescore.models import mlp
from bayescore.nn import Posterior

pytest.importorskip("sklearn")
SMALL = [
    "train",
    "--hidden",
    "10",
    "--epochs",
    "2",
    "--fraction",
    "0.1",
    "--batch-size",
    "32",
    "--draws",
    "3",
]


def run(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("method", ["proximal", "calibrated", "plain", "dropout"])
def test_training_prints_its_scores_and_writes_its_files(method, tmp_path, capsys):
    files = [tmp_path / "net.safetensors", tmp_path / "net.png"]
    code, said = run([*SMALL, "--method", method, "--output", str(files[0]), "--plot", str(files[1])], capsys)
    assert code == 0
    assert "120 images to learn from" in said.out
    assert "ECE" in said.out
    assert all(str(file.name) in said.out.replace("\n", "") for file in files)
    posterior = Posterior.load(files[0], mlp(64, (10,), 10))
    assert type(posterior).__name__.lower().startswith(("gaussian", "point", "dropout"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "minst"], "mnist"),
        (["--method", "proximl"], "proximal"),
        (["--fraction", "1.5"], "--fraction"),
        (["--hidden", "10,x"], "--hidden"),
        (["--epochs", "0"], "--epochs"),
        (["--output", "net.txt"], ".safetensors"),
        (["--set", "lr"], "key=value"),
        (["--set", "colour=3"], "colour"),
        (["--hidden", "99999999999"], "--hidden must be at most 1,000,000; got 99999999999"),
        (["--hidden", "600000,600000"], "make --hidden smaller"),
        (["--epochs", "99999999999999999999"], "--epochs must be at most 1,000,000,000"),
        (["--steps", "99999999999999999999"], "--steps"),
        (["--batch-size", "99999999999999999999"], "--batch-size must be at most"),
        (["--draws", "99999999999999999999"], "--draws must be at most"),
        (["--patience", "99999999999999999999"], "--patience must be at most"),
        (["--seed", "99999999999999999999"], "--seed must be a whole number from"),
        (["--set", "prior_scale=1e-200"], "prior_scale must be a positive number between"),
        (["--set", "prior_sd=0.5"], "ProximalScore has no prior_sd: give prior_scale"),
        (
            ["--method", "calibrated", "--set", "prior_sd=1e-200"],
            "prior_sd must be a positive number between",
        ),
        (["--set", "num_data=9999999999999999999999"], "num_data must be at most"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = run([*SMALL, *arguments], capsys)
    assert code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err

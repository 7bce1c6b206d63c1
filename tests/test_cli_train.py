"""`bayescore train`: a network on digits, its table and its files; mistakes are one sentence."""

from __future__ import annotations

import pytest

from bayescore.cli import main
from bayescore.model_folder import read_model
from bayescore.models import mlp
from bayescore.nn import load_state
from bayescore.nn.checkpoint import write_checkpoint

pytest.importorskip("sklearn")
SMALL = [
    "train",
    "digits",
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
    files = [tmp_path / "model", tmp_path / "net.png"]
    code, said = run([*SMALL, "--method", method, "--output", str(files[0]), "--plot", str(files[1])], capsys)
    assert code == 0
    assert "120 pictures to learn from, 1,080 to choose by, 597 to test on; 10 classes" in said.out
    assert "ECE" in said.out
    assert all(str(file.name) in said.out.replace("\n", "") for file in files)
    saved = read_model(files[0])
    posterior = saved.posterior(mlp(64, (10,), 10))
    assert saved.description.arguments["hidden"] == [10]
    assert type(posterior).__name__.lower().startswith(("gaussian", "point", "dropout"))


def test_training_goes_on_from_its_checkpoint(tmp_path, capsys):
    whole, cut, saved = tmp_path / "whole", tmp_path / "cut", tmp_path / "run.safetensors"
    long = [*SMALL, "--epochs", "4"]
    assert run([*long, "--output", str(whole)], capsys)[0] == 0

    written = []

    def stop_after_two(path, *rest):
        write_checkpoint(path, *rest)
        written.append(path)
        if len(written) == 2:
            raise SystemExit(9)  # as a kill would, after the second epoch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bayescore.nn.loop.write_checkpoint", stop_after_two)
        assert run([*long, "--checkpoint", str(saved)], capsys)[0] == 9
    code, said = run([*long, "--checkpoint", str(saved), "--output", str(cut)], capsys)
    assert code == 0
    assert f"continuing from {saved}" in said.out.replace("\n", "")
    assert read_model(cut).sha256 == read_model(whole).sha256
    assert len(load_state(saved)["history"]) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--epochs", "3"], "its epochs is 2, this one's is 3"),
        (["--method", "plain"], "its method is 'proximal', this one's is 'plain'"),
        (["--fraction", "0.2"], "its num_data is 120, this one's is 240"),
        (["--batch-size", "16"], "its batch_size is 32, this one's is 16"),
        (["--hidden", "12"], "this one's is [12"),
        (["--seed", "1"], "its seed is 0, this one's is 1"),
        (["--set", "lr=0.25"], "its lr is 0.001, this one's is 0.25"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(arguments, sentence, capsys, tmp_path):
    saved = tmp_path / "run.safetensors"
    assert run([*SMALL, "--checkpoint", str(saved)], capsys)[0] == 0
    before = saved.read_bytes()
    code, said = run([*SMALL, "--checkpoint", str(saved), *arguments], capsys)
    assert code == 2
    assert "run.safetensors is the checkpoint of another run: " in said.err
    assert sentence in said.err
    assert saved.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "proximl"], "proximal"),
        (["--fraction", "1.5"], "--fraction"),
        (["--hidden", "10,x"], "--hidden"),
        (["--epochs", "0"], "--epochs"),
        (["--output", "file.txt"], "is a file, and a model is a folder"),
        (["--checkpoint", "run.pt"], "--checkpoint must end in .safetensors"),
        (["--checkpoint", "no/run.safetensors"], "there is no folder no"),
        (["--set", "lr"], "key=value"),
        (["--set", "colour=3"], "colour"),
        (["--set", "prior_scale=" + "[" * 5000], "prior_scale must be a positive number"),
        (["--set", "prior_scale=" + "9" * 5000], "prior_scale must be a positive number"),
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
    (tmp_path / "file.txt").write_text("")
    code, said = run([*SMALL, *arguments], capsys)
    assert code == 2
    assert sentence in said.err
    assert "Traceback" not in said.err

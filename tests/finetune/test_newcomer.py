"""A newcomer's folder trains and predicts, and what is wrong with it is said in sentences."""

from __future__ import annotations

import csv
import json

import pytest

from bayescore.model_folder import read_model

pytest.importorskip("PIL")
SMALL = ["--size", "16", "--draws", "5", "--batch-size", "8"]


def test_a_newcomers_folder_becomes_a_model_that_predicts(photos, tmp_path, run):
    model, sheet, plot = tmp_path / "model", tmp_path / "sheet.png", tmp_path / "plot.png"
    code, said = run(
        "train", photos, "--output", model, "--sheet", sheet, "--plot", plot, "--epochs", "12",
        "--no-augment", "--set", "lr=0.01", *SMALL,
    )  # fmt: skip
    assert code == 0, said.err
    told = " ".join(said.err.split())
    assert "3 files are no readable pictures of a class" in told
    for name in ("cut.jpg: it is damaged", "notes.txt: it is no picture", "readme.md: it is in no folder"):
        assert name in told
    assert "4 classes; too few to be tested too: rare" in " ".join(said.out.split())
    assert sheet.stat().st_size > 5_000
    assert plot.stat().st_size > 5_000
    about = read_model(model).description
    assert about.outputs == ["blue", "green", "rare", "red"]
    assert about.metrics["error"] < 0.3
    code, said = run("predict", model, photos / "red", "--output", tmp_path / "said.csv")
    assert code == 0, said.err
    with (tmp_path / "said.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 13
    assert list(rows[0]) == ["file", "class", "probability", "entropy", "mutual_information"]
    assert sum(row["class"] == "red" for row in rows) >= 10
    assert all(0 <= float(row["mutual_information"]) <= float(row["entropy"]) + 1e-6 for row in rows)
    assert run("predict", model, photos / "red" / "1.jpg")[0] == 0


def test_files_that_are_no_pictures_are_refused_if_the_user_says_so(photos, run):
    code, said = run("train", photos, "--problems", "refuse", *SMALL)
    assert code == 2
    assert "mend or remove them" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "there is no folder, file or data set called 'nowhere'"),
        (["digit"], "did you mean 'digits'?"),
        (["photos", "--net", "resnet1001"], "there is no network called 'resnet1001'; did you mean"),
        (["photos", "--method", "proximale"], "did you mean 'proximal'?"),
        (["photos", "--kind", "sounds"], "there is no kind of data called 'sounds'"),
        (["photos", "--weights", "nowhere.pth"], "there is no file of weights at nowhere.pth"),
        (["photos", "--weights", "pretrained"], "there are no pretrained weights of 'small'"),
        (["photos", "--freeze", "99"], "freeze must be at most"),
        (["photos", "--batchnorm", "freeze"], "did you mean 'frozen'?"),
        (["photos", "--problems", "ignore"], "there is no treatment of problems called 'ignore'"),
        (["photos", "--checkpoint-minutes", "5"], "name the file with --checkpoint"),
        (["photos", "--output", "photos/readme.md"], "is a file, and a model is a folder"),
        (["photos/red"], "has no folder of a class"),
        (["photos/readme.md"], "neither a folder of class folders nor a .csv"),
        (["table.csv"], "name the column to predict with --target"),
        (["paths.csv"], "holds no picture that can be decoded"),
        (["texts.csv"], "name a transformers folder with --net"),
    ],
)
def test_a_mistake_is_one_sentence(photos, run, monkeypatch, words, sentence):
    root = photos.parent
    monkeypatch.chdir(root)
    (root / "table.csv").write_text("a,b\n1,2\n")
    (root / "paths.csv").write_text("path,label\nnowhere.png,x\nelsewhere.png,y\n")
    (root / "texts.csv").write_text("text,label\ngood,1\nbad,0\n")
    code, said = run("train", *words, "--size", "16", "--epochs", "1")
    assert code == 2
    assert sentence in " ".join(said.err.split())


def test_a_table_of_paths_with_parts_trains(photos, tmp_path, run):
    rows = ["path,label,split"]
    for name in ("red", "green", "blue"):
        rows += [
            f"{name}/{i}.jpg,{name},{'test' if i > 9 else 'val' if i > 7 else 'train'}" for i in range(12)
        ]
    (photos / "table.csv").write_text("\n".join(rows) + "\n")
    code, said = run("train", photos / "table.csv", "--epochs", "1", *SMALL)
    assert code == 0, said.err
    assert "24 pictures to learn from, 6 to choose by, 6 to test on; 3 classes" in said.out
    code, said = run("train", photos / "table.csv", "--kind", "text", "--net", "x", "--epochs", "1")
    assert (code, "there is no folder x: texts need an encoder" in said.err) == (2, True)


def test_training_that_was_killed_goes_on_bitwise(photos, tmp_path, run, monkeypatch):
    from bayescore.nn.checkpoint import write_checkpoint

    state = tmp_path / "run.safetensors"
    words = ["train", photos, "--epochs", "3", "--checkpoint", state, "--checkpoint-minutes", "1e-9", *SMALL]
    assert run("train", photos, "--epochs", "3", "--output", tmp_path / "whole", *SMALL)[0] == 0
    written = []

    def stop(path, *rest):
        write_checkpoint(path, *rest)
        written.append(path)
        if len(written) == 6:  # within the second epoch
            raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr("bayescore.nn.loop.write_checkpoint", stop)
        assert run(*words)[0] == 9
    code, said = run(*words, "--output", tmp_path / "cut")
    assert code == 0, said.err
    assert "continuing from" in said.out
    one, two = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("whole", "cut"))
    assert one["weights_sha256"] == two["weights_sha256"]


def test_scalars_are_written_for_tensorboard(photos, tmp_path, run):
    pytest.importorskip("tensorboard")
    code, said = run("train", photos, "--epochs", "2", "--tensorboard", tmp_path / "logs", *SMALL)
    assert code == 0, said.err
    (file,) = (tmp_path / "logs").iterdir()
    content = file.read_bytes()
    assert b"validation_nll" in content


def test_a_network_with_a_typo_is_named_before_a_picture_is_read(photos, run):
    pytest.importorskip("timm")
    code, said = run("train", photos, "--net", "timm/resnet1000")
    assert code == 2
    assert said.err.startswith("error: there is no network of timm called 'resnet1000'; did you mean")
    assert len(said.err) < 400


def test_a_link_to_nowhere_is_named(photos, run):
    (photos / "red" / "gone.jpg").symlink_to("nowhere.jpg")
    code, said = run("train", photos, "--epochs", "1", *SMALL)
    assert code == 0, said.err
    assert "gone.jpg: there is no file" in " ".join(said.err.split())


def test_interrupted_training_is_measured_written_and_ends_with_130(photos, tmp_path, run, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayescore.nn.loop.write_checkpoint", stop)  # after an epoch of the first member
    words = ["--method", "ensemble", "--epochs", "2", "--checkpoint", tmp_path / "c.safetensors"]
    code, said = run("train", photos, "--output", tmp_path / "model", *words, *SMALL)
    assert code == 130, said.err
    assert "the same command goes on from" in said.out
    assert said.out.count("interrupted in epoch 2") == 1  # no further member was begun
    assert run("predict", tmp_path / "model", photos / "red" / "1.jpg")[0] == 0


@pytest.mark.parametrize(
    "method", ["ensemble", "laplace", "last-layer", "weight-dropout", "dropout", "swag", "sgld"]
)
def test_every_method_trains_and_its_model_comes_back(photos, tmp_path, run, method):
    code, said = run(
        "train", photos, "--method", method, "--epochs", "4", "--output", tmp_path / "model", *SMALL
    )
    assert code == 0, said.err
    code, said = run("predict", tmp_path / "model", photos)
    assert code == 0, said.err
    assert "more rows" in said.out


def test_the_network_can_be_asked_about_data_of_another_kind(photos, tmp_path, run):
    other = tmp_path / "other"
    for name in ("a", "b"):
        (other / name).mkdir(parents=True)
        (other / name / "x.png").write_bytes((photos / "rare" / "only.png").read_bytes())
    code, said = run("train", photos, "--epochs", "1", "--outside", other, *SMALL)
    assert code == 0, said.err
    assert "AUROC of --outside, entropy" in said.out

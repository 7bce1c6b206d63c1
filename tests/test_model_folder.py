"""The folder of a model: written whole, read as what it is, refused in one sentence when it is damaged."""

from __future__ import annotations

import json
import random

import pytest
import torch
from torch import nn

from bayescore.model_folder import ModelDescription, read_model, write_model
from bayescore.nn import Ensemble, GaussianPosterior, PointPosterior
from file_damage import check_that_damage_is_refused

DESCRIPTION = ModelDescription(
    "images", "tiny", {"classes": 2}, {"size": 8}, ["cat", "Hündin"], {"method": "proximal"}, {"nll": 0.5}
)


def network(seed=0):
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(3, 2))


def gaussian(model):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return GaussianPosterior(model, weights, {name: 0.1 + 0 * p for name, p in weights.items()})


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path / "model", DESCRIPTION, gaussian(network()))
    return tmp_path / "model"


@pytest.mark.parametrize("kind", ["gaussian", "ensemble"])
def test_a_model_comes_back_as_it_was_written(tmp_path, kind):
    model = network()
    posterior = gaussian(model) if kind == "gaussian" else Ensemble([gaussian(model), gaussian(network(1))])
    written = write_model(tmp_path / "new" / "model", DESCRIPTION, posterior)
    saved = read_model(tmp_path / "new" / "model")
    assert saved == written
    assert saved.description == DESCRIPTION
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(saved.posterior(network(2)).predict(x, 4).probs, posterior.predict(x, 4).probs)


def test_writing_again_replaces_the_model_and_leaves_other_files(folder):
    (folder / "notes.txt").write_text("mine")
    other = ModelDescription("text", "tiny")
    write_model(folder, other, PointPosterior(network(1)))
    assert read_model(folder).description == other
    assert sorted(path.name for path in folder.iterdir()) == [
        "model.json",
        "notes.txt",
        "posterior.safetensors",
    ]


def test_a_write_that_was_cut_leaves_no_model_rather_than_a_mixture(folder, monkeypatch):
    def cut(path, data):
        raise KeyboardInterrupt

    monkeypatch.setattr("bayescore.model_folder.write_bytes", cut)
    with pytest.raises(KeyboardInterrupt):
        write_model(folder, DESCRIPTION, PointPosterior(network(1)))
    with pytest.raises(FileNotFoundError, match=r"it has no model\.json"):
        read_model(folder)


def test_what_is_no_json_is_refused_before_the_old_model_is_touched(folder):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_model(folder, ModelDescription("text", "tiny", metrics={"nll": float("nan")}), None)
    assert read_model(folder).description == DESCRIPTION


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="no kind of model called 'image'; did you mean 'images'"):
        ModelDescription("image", "tiny")


def test_weights_of_another_model_are_refused(folder, tmp_path):
    write_model(tmp_path / "other", DESCRIPTION, gaussian(network(1)))
    (tmp_path / "other" / "posterior.safetensors").replace(folder / "posterior.safetensors")
    with pytest.raises(ValueError, match="does not belong to the model"):
        read_model(folder).posterior(network())
    (folder / "posterior.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no weights: posterior\.safetensors is missing"):
        read_model(folder).posterior(network())


def test_what_is_no_model_is_named(tmp_path, folder):
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"it has no model\.json; `bayescore train"):
        read_model(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="a model is a folder"):
        write_model(tmp_path / "file", DESCRIPTION, PointPosterior(network()))


@pytest.mark.parametrize(
    ("entry", "value", "sentence"),
    [
        ("format", "other", "not of the format 'bayescore-model'"),
        ("version", 2, r"its version is 2, and this bayescore reads 1; install .*bayescore \d"),
        ("kind", "sounds", "no kind of model called 'sounds'"),
        ("network", 3, "network must be a str; it is a int"),
        ("preprocessing", [], "preprocessing must be a dict; it is a list"),
        ("outputs", [1], "outputs must be texts"),
        ("metrics", {"nll": "low"}, "the metric nll must be a number"),
        ("metrics", {"nll": float("inf")}, "not JSON compliant"),
        ("weights_sha256", None, "weights_sha256 must be a text"),
        ("settings", None, "settings must be a dict"),
    ],
)
def test_a_damaged_description_is_refused_in_one_sentence(folder, entry, value, sentence):
    path = folder / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), entry: value}))
    with pytest.raises(ValueError, match=rf"model\.json does not describe .*{sentence}"):
        read_model(folder)


def test_a_missing_entry_is_named(folder):
    path = folder / "model.json"
    content = json.loads(path.read_text())
    for entry in ("kind", "network", "outputs", "weights_sha256", "version"):
        path.write_text(json.dumps({key: value for key, value in content.items() if key != entry}))
        with pytest.raises(ValueError, match=f"it lacks '{entry}'"):
            read_model(folder)


def test_any_damage_to_the_weights_is_refused(folder):
    saved, path = read_model(folder), folder / "posterior.safetensors"
    check_that_damage_is_refused(path, lambda: saved.posterior(network()), flips=20, cuts=10)


def test_a_description_damaged_at_random_is_read_or_refused(folder):
    path, rng = folder / "model.json", random.Random(0)
    data = path.read_bytes()
    for _ in range(200):
        copy = bytearray(data[: rng.randrange(1, len(data) + 1)])
        copy[rng.randrange(len(copy))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(copy))
        try:
            read_model(folder)
        except ValueError as problem:
            assert "model.json" in str(problem)  # noqa: PT017

"""Texts: an encoder's folder and a table become a model; the tokenizer travels with it."""

from __future__ import annotations

import csv

import pytest
import torch

import bayescore as bs
from bayescore.finetune.texts import TextModel, text_batches
from bayescore.models.encoders import read_tokens, text_classifier

pytest.importorskip("transformers")


def test_a_table_of_texts_becomes_a_model_that_predicts(encoder, reviews, tmp_path, run):
    code, said = run(
        "train", reviews, "--net", encoder, "--epochs", "12", "--set", "lr=0.01", "--draws", "5",
        "--output", tmp_path / "model",
    )  # fmt: skip
    assert code == 0, said.err
    assert "texts to learn from" in said.out
    assert "2 classes" in said.out
    for path in encoder.iterdir():  # the model needs the folder no more
        path.unlink()
    (tmp_path / "new.txt").write_text("a good film\n\nvery awful film\n")
    code, said = run("predict", tmp_path / "model", tmp_path / "new.txt", "--output", tmp_path / "said.csv")
    assert code == 0, said.err
    with (tmp_path / "said.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["praise", "blame"]
    assert [row["text"] for row in rows] == ["a good film", "very awful film"]


def test_padding_changes_nothing_and_the_first_loss_is_log_k(encoder):
    model = text_classifier(encoder, 3).eval()
    tokens = read_tokens(encoder, 16)
    short, long = tokens(["good film"]), tokens(["good film", "a very very fine film"])
    with torch.no_grad():
        assert model(**short).abs().max() == 0  # all classes are equally probable
        model.head.reset_parameters()
        assert torch.allclose(model(**short)[0], model(**long)[0], atol=1e-6)


def test_what_is_longer_is_cut(encoder):
    assert read_tokens(encoder, 3)(["a very very fine film"])["input_ids"].shape == (1, 3)


def test_adapters_train_in_place_of_the_encoder(encoder, reviews):
    parts = bs.data.parts(bs.data.read_texts(reviews))
    before = text_classifier(encoder, 2).encoder.state_dict()
    found = bs.finetune.train_texts(
        parts, encoder, bs.finetune.FineTuning(epochs=2, draws=3), adapters=2, progress=False
    )
    module = found.posterior.model
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert trained
    assert all(name.startswith("head.") or name.endswith((".0.a", ".0.b")) for name in trained)
    own = dict(module.encoder.named_parameters())
    for name, p in own.items():
        if "parametrizations" in name and name.endswith("original"):
            assert torch.equal(p, before[name.replace("parametrizations.", "").replace(".original", "")])


def test_a_peft_model_is_fitted_as_it_is(encoder, reviews):
    peft = pytest.importorskip("peft")
    parts = bs.data.parts(bs.data.read_texts(reviews))
    tokens = read_tokens(encoder, 16)
    model = peft.get_peft_model(
        text_classifier(encoder, 2),
        peft.LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["head"]),
    )
    from bayescore.finetune.texts import text_batches

    fit = bs.nn.fit(model, text_batches(parts.train, tokens, 16, 0), epochs=1, progress=False)
    assert all("lora" in name or "head" in name for name in fit.posterior.names)
    assert fit.predict(tokens(parts.test.texts), 3).probs.shape == (len(parts.test), 2)


def test_rows_without_a_text_are_named_and_left_out_or_refused(encoder, reviews, tmp_path, run):
    with reviews.open("a") as file:
        file.write(',praise\n"a film",\n')
    words = ["train", reviews, "--net", encoder, "--epochs", "1", "--draws", "2"]
    code, said = run(*words, "--output", tmp_path / "model")
    assert code == 0, said.err
    assert "line 82: the column 'text' is empty; line 83: the column 'label' is empty" in said.err
    assert "these rows are left out" in said.err
    code, said = run(*words, "--problems", "refuse")
    assert code == 2
    assert "fill in what is missing, or remove the rows" in said.err
    (tmp_path / "new.csv").write_text('text,label\n"good\nfilm",unheard\n"",praise\n')
    code, said = run("predict", tmp_path / "model", tmp_path / "new.csv")
    assert code == 0, said.err
    assert "line 3: the column 'text' is empty; this row is left out" in said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--net", "bert-base-uncased"], "there is no folder bert-base-uncased: texts need an encoder"),
        (["--freeze", "2"], "--freeze is for pictures"),
        (["--size", "64"], "--size is for pictures"),
        (["--weights", "pretrained"], "--weights is for pictures"),
    ],
)
def test_what_texts_have_no_use_for_is_refused(encoder, reviews, run, words, sentence):
    code, said = run("train", reviews, "--net", encoder, *words)
    assert code == 2
    assert sentence in said.err
    assert "to learn from" not in said.out


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_that_is_no_encoder_is_named(encoder, reviews, run, lacking):
    (encoder / lacking).unlink()
    code, said = run("train", reviews, "--net", encoder, "--epochs", "1")
    assert code == 2
    assert lacking in said.err


def test_batches_by_length_have_little_padding_and_predictions_keep_the_order(encoder):
    long, short = "a very very fine film", "fine film"
    texts = bs.data.Texts((long, short) * 30, torch.tensor([1, 0] * 30), ("blame", "praise"))
    tokens = read_tokens(encoder, 16)
    batches = [(x["input_ids"].shape[1], y.tolist()) for x, y in text_batches(texts, tokens, 30)]
    assert batches == [(2, [0] * 30), (5, [1] * 30)]
    module = text_classifier(encoder, 2).eval()
    torch.nn.init.normal_(module.head.weight)
    model = TextModel(bs.nn.PointPosterior(module), tokens, texts.classes)
    probs = model.predict(texts.texts).probs
    with torch.no_grad():
        for i, text in enumerate((long, short)):
            alone = module(**tokens([text])).softmax(1)
            assert torch.allclose(probs[i::2], alone.expand(30, 2), atol=1e-6)

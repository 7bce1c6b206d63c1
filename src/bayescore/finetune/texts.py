"""Texts: from a table to a fine-tuned transformer, its folder, and predictions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.data.batches import Batches
from bayescore.data.splitting import Parts
from bayescore.data.texts import Texts, new_texts
from bayescore.finetune.training import (
    FineTuning,
    TrainedModel,
    fine_tune,
    prediction_rows,
    seeded,
    trained_model,
)
from bayescore.model_folder import SavedModel
from bayescore.models.adapters import add_adapters
from bayescore.models.encoders import TextClassifier, Tokens, read_config, read_tokens, text_classifier
from bayescore.models.networks import Classifier
from bayescore.posteriors.base import Posterior
from bayescore.posteriors.prediction import ClassPrediction

__all__ = ["TextModel", "load_texts", "predict_new", "text_batches", "train_texts"]

AT_ONCE = 50
LONGEST_SHOWN = 80  # characters of a text in a row


def train_texts(
    parts: Parts[Texts],
    folder: str | Path,
    settings: FineTuning | None = None,
    *,
    length: int = 128,
    adapters: int = 0,
    dropout: float = 0.0,
    outside: Texts | None = None,
    device: str | torch.device = "cpu",
    **options: Any,
) -> TrainedModel:
    """Fine-tune an encoder on texts and score it on the test part.

    Arguments:
        parts: of `bayescore.data.parts`.
        folder: a transformers folder: config.json, model.safetensors, tokenizer.json.
        length: the most tokens of a text.
        adapters: rank of the adapters that are trained in place of the matrices; 0: none.
        dropout: rate of the encoder's own dropout layers; method "dropout" has 0.1 if this is 0.
        outside: texts of another kind, for the AUROCs.
        options: of `nn.fit`: checkpoint, progress, callbacks, ...
    """
    check_count("length", length)
    settings = settings or FineTuning()
    rate = 0.1 if settings.method == "dropout" and not dropout else dropout
    classes = len(parts.train.classes)
    tokens = read_tokens(folder, length)

    def make() -> Classifier:
        module = text_classifier(folder, classes, dropout=rate)
        if settings.method == "ensemble":
            module.head.reset_parameters()
        if adapters:
            add_adapters(module, adapters, "head")
        return Classifier(module.to(device), "head", {})

    posterior, fits = fine_tune(
        make,
        lambda seed: text_batches(parts.train, tokens, settings.batch_size, seed),
        text_batches(parts.validation, tokens, AT_ONCE),
        settings,
        plain=lambda: text_batches(parts.train, tokens, AT_ONCE),
        **options,
    )
    model = TextModel(posterior, tokens, parts.train.classes)
    config = read_config(folder)
    description = {
        "kind": "text",
        "network": f"transformers/{config['model_type']}",
        "arguments": {"config": config, "classes": classes, "adapters": adapters, "dropout": rate},
        "preprocessing": {"tokenizer": tokens.tokenizer, "length": length, "padding": tokens.padding},
        "outputs": list(parts.train.classes),
    }
    return trained_model(
        posterior,
        fits,
        description,
        settings,
        lambda t: model.predict(t.texts, settings.draws),
        parts.test,
        outside,
    )


def text_batches(texts: Texts, tokens: Tokens, batch_size: int, seed: int | None = None) -> Batches:
    """Batches of tokens, in a random order from a seed, or by length; the texts are cut into tokens once."""
    whole, y = tokens(texts.texts), texts.y
    if seed is None:
        order = by_length(whole)
        whole, y = {name: rows[order] for name, rows in whole.items()}, y[order]

    def inputs(rows: Tensor, rng: torch.Generator | None) -> dict[str, Tensor]:  # noqa: ARG001
        mask = whole["attention_mask"][rows]
        longest = max(1, int(mask.sum(1).max()))
        return {"input_ids": whole["input_ids"][rows, :longest], "attention_mask": mask[:, :longest]}

    return Batches(inputs, y, batch_size, seed)


@dataclass(frozen=True)
class TextModel:
    """A posterior, and how it reads a text."""

    posterior: Posterior
    tokens: Tokens
    classes: tuple[str, ...]

    def predict(self, texts: list[str] | tuple[str, ...], draws: int = 30, seed: int = 0) -> ClassPrediction:
        """The prediction for texts."""
        tokens = self.tokens(texts)
        order = by_length(tokens)
        ordered = {name: rows[order] for name, rows in tokens.items()}
        found: ClassPrediction = self.posterior.predict(ordered, draws, seed=seed, batch_size=AT_ONCE)
        back = order.argsort()
        return replace(found, probs=found.probs[back], expected_entropy=found.expected_entropy[back])


def by_length(tokens: dict[str, Tensor]) -> Tensor:
    """The order of texts by their number of tokens: in batches of one length there is little padding."""
    return tokens["attention_mask"].sum(1).argsort(stable=True)


def load_texts(saved: SavedModel) -> TextModel:
    """The model in a folder."""
    about, arguments = saved.description, saved.description.arguments
    with seeded(0):
        module: TextClassifier = text_classifier(
            arguments["config"], arguments["classes"], dropout=arguments["dropout"]
        )
        if arguments["adapters"]:
            add_adapters(module, arguments["adapters"], "head")
    read = about.preprocessing
    tokens = Tokens(read["tokenizer"], read["length"], read["padding"])
    return TextModel(saved.posterior(module), tokens, tuple(about.outputs))


def predict_new(saved: SavedModel, new: Path, draws: int, seed: int) -> list[dict[str, str | int | float]]:
    """Predictions for the texts of a CSV, or for the lines of another file."""
    model = load_texts(saved)
    texts = new_texts(new)
    shown = [text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…" for text in texts]
    return prediction_rows("text", shown, model.predict(texts, draws, seed), list(model.classes))

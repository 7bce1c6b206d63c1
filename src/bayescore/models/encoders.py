"""Classifiers of texts: a transformers folder (tokenizer and encoder), the mean over tokens, a linear head.

    h = sum_t a_t e_t / sum_t a_t,      logits = W h + b                                                  (1)
where e_t are the encoder's last states and a_t is 1 for tokens and 0 for padding. The head starts at zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.models.weights import load_body, read_weights
from bayescore.operators import declare_vision_operators

__all__ = ["TextClassifier", "Tokens", "read_config", "read_tokens", "text_classifier"]


class TextClassifier(nn.Module):
    """The encoder and its head (1)."""

    def __init__(self, encoder: Any, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, classes)
        for p in self.head.parameters():
            nn.init.zeros_(p)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        longest = max(1, int(attention_mask.sum(1).max()))  # what is padding in every row costs nothing
        input_ids, attention_mask = input_ids[:, :longest], attention_mask[:, :longest]
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        seen = attention_mask.unsqueeze(-1).to(states.dtype)
        out: Tensor = self.head((states * seen).sum(1) / seen.sum(1).clamp_min(1))
        return out


@dataclass(frozen=True)
class Tokens:
    """From texts to the inputs of an encoder.

    Arguments:
        tokenizer: the content of the tokenizer's file, tokenizer.json.
        length: the most tokens of a text; what is longer is cut.
        padding: the number of the padding token.
    """

    tokenizer: str
    length: int
    padding: int

    def __call__(self, texts: list[str] | tuple[str, ...]) -> dict[str, Tensor]:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise ImportError(
                "texts are cut into tokens by tokenizers: pip install 'bayescore[text]'"
            ) from None
        tool = Tokenizer.from_str(self.tokenizer)
        tool.enable_truncation(self.length)
        tool.no_padding()
        rows = [found.ids for found in tool.encode_batch(list(texts))]
        longest = max(map(len, rows), default=1)
        ids = torch.full((len(rows), longest), self.padding)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row, dtype=ids.dtype)
            mask[i, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}


def text_classifier(
    source: str | Path | dict[str, Any], classes: int, *, pretrained: bool = True, dropout: float = 0.0
) -> TextClassifier:
    """A classifier from a folder with config.json and model.safetensors, or from the content of config.json.

    Arguments:
        pretrained: take the weights of the folder; otherwise they are random.
        dropout: rate of the encoder's own dropout layers in training.
    """
    declare_vision_operators()  # transformers imports torchvision if it is there
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise ImportError("encoders of texts need transformers: pip install 'bayescore[text]'") from None
    config = dict(source) if isinstance(source, dict) else read_config(source)
    kind = config.pop("model_type", None)
    if not isinstance(kind, str):
        raise ValueError("the config of the encoder names no model_type")
    settings = AutoConfig.for_model(kind, **config)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(settings, name):
            setattr(settings, name, dropout)
    extra = {"add_pooling_layer": False} if kind in ("bert", "roberta", "xlm-roberta", "electra") else {}
    make: Any = AutoModel
    encoder = make.from_config(settings, **extra).float()
    if pretrained and not isinstance(source, dict):
        path = Path(source) / "model.safetensors"
        prefix = f"{encoder.base_model_prefix}."  # a file of encoder and head has it
        weights = {name.removeprefix(prefix): value for name, value in read_weights(path).items()}
        load_body(encoder, weights, "", str(path))
    return TextClassifier(encoder, classes)


def read_config(folder: str | Path) -> dict[str, Any]:
    """The content of config.json."""
    path = Path(folder) / "config.json"
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"there is no folder {str(folder)[:200]}: texts need an encoder on this machine, a transformers "
            "folder with config.json, model.safetensors and tokenizer.json; nothing is downloaded"
        )
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} is no transformers folder: it has no config.json (expected config.json, "
            "model.safetensors and tokenizer.json)"
        )
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} is no object of settings")
    return content


def read_tokens(folder: str | Path, length: int) -> Tokens:
    """The tokenizer of a transformers folder."""
    padding = read_config(folder).get("pad_token_id") or 0
    path = Path(folder) / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no tokenizer.json, the file of a fast tokenizer")
    return Tokens(path.read_text(encoding="utf-8"), length, int(padding))

"""A newcomer's folder of pictures, and a tiny encoder of texts, made for every test."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest


def picture(rng, label, size=(40, 30)):
    """A picture whose colour says its class."""
    from PIL import Image

    colour = np.zeros((size[1], size[0], 3))
    colour[..., label % 3] = 200
    if label >= 3:
        colour[..., (label + 1) % 3] = 120
    noisy = colour + rng.normal(0, 25, colour.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.fixture
def photos(tmp_path):
    """Class folders with pictures of mixed sizes and kinds, and files that are no pictures."""
    rng = np.random.default_rng(0)
    root = tmp_path / "photos"
    for label, name in enumerate(("red", "green", "blue")):
        (root / name).mkdir(parents=True)
        for i in range(12):
            size = (40 + 7 * i, 90 - 5 * i)
            picture(rng, label, size).save(root / name / f"{i}.jpg", quality=90)
    (root / "rare").mkdir()
    picture(rng, 4).save(root / "rare" / "only.png")
    picture(rng, 0).convert("L").save(root / "red" / "grey.png")
    picture(rng, 1).convert("CMYK").save(root / "green" / "cmyk.jpg")
    whole = (root / "blue" / "3.jpg").read_bytes()
    (root / "blue" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "green" / "notes.txt").write_text("not a picture\n")
    (root / "green" / ".DS_Store").write_text("hidden\n")
    (root / "readme.md").write_text("belongs to no class\n")
    return root


@pytest.fixture
def encoder(tmp_path):
    """A transformers folder with a tiny BERT of random weights and a tokenizer of a few words."""
    from bayescore.operators import declare_vision_operators

    pytest.importorskip("transformers")
    declare_vision_operators()
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel

    words = ["[PAD]", "[UNK]", "good", "bad", "film", "a", "very", "fine", "awful", "dull", "great"]
    folder = tmp_path / "encoder"
    folder.mkdir()
    tool = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tool.pre_tokenizer = pre_tokenizers.Whitespace()
    tool.save(str(folder / "tokenizer.json"))
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=16, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False)
    from safetensors.torch import save_file

    save_file({f"bert.{name}": value.contiguous() for name, value in model.state_dict().items()},
              folder / "model.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    return folder


@pytest.fixture
def reviews(tmp_path):
    """A table of texts and labels."""
    rng = np.random.default_rng(0)
    lines = ["text,label"]
    for i in range(80):
        good = i % 2 == 0
        telling = ["good", "fine", "great"] if good else ["bad", "awful", "dull"]
        words = [*rng.choice(["a", "very", "film"], 3), rng.choice(telling)]
        rng.shuffle(words)
        lines.append(f'"{" ".join(words)}",{"praise" if good else "blame"}')
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(capsys):
    """The command, its exit code and what it says."""
    from bayescore.cli import main

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        return ended.value.code, capsys.readouterr()

    return call


@pytest.fixture
def png():
    """The bytes of a picture."""

    def make(size=(20, 10), colour=(255, 0, 0)):
        from PIL import Image

        content = io.BytesIO()
        Image.new("RGB", size, colour).save(content, "PNG")
        return content.getvalue()

    return make

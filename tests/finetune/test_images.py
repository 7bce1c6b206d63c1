"""Batches of pictures, as networks see them."""

from __future__ import annotations

import torch
from torch import nn

import bayescore as bs
from bayescore.finetune.images import image_batches
from bayescore.models.stages import FrozenStages

VIEW = bs.data.View(8, 8)


def pictures():
    rng = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8, generator=rng)
    y = torch.arange(6) % 2
    return bs.data.Pictures(pixels, y, ("a", "b"), tuple("abcdef"))


def frozen():
    torch.manual_seed(0)
    stages = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return FrozenStages(stages, nn.Linear(4, 2), 2, (3, 8, 8))


def test_pictures_and_maps_reach_the_network_with_their_channels_last():
    given, stem = pictures(), frozen()
    for batches, expected in (
        (image_batches(given, VIEW, 4), VIEW(given.pixels)),
        (image_batches(given, VIEW, 4, seed=0, augment=True), None),
        (image_batches(given, VIEW, 4, stem=stem), stem.features(VIEW(given.pixels))),
    ):
        seen = [x for x, _ in batches]
        assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)
        if expected is not None:
            torch.testing.assert_close(torch.cat(seen), expected)


def test_what_frozen_stages_make_is_kept_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    given, stem = pictures(), frozen()
    first = torch.cat([x for x, _ in image_batches(given, VIEW, 4, stem=stem, cached=True)])
    (kept,) = (tmp_path / "cache" / "features").iterdir()
    monkeypatch.setattr(FrozenStages, "features", None)  # not called again
    again = torch.cat([x for x, _ in image_batches(given, VIEW, 4, stem=stem, cached=True)])
    assert torch.equal(first, again)
    assert kept.suffix == ".safetensors"

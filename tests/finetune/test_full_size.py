"""The paper's networks at full size: three steps on photographs, killed, resumed bitwise, predicting."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from bayescore.operators import declare_vision_operators

WORKER = """
import hashlib, sys, time, torch
import bayescore as bs

net, folder, role = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
pictures = bs.data.read_pictures(f"{folder}/photographs", 224)
view = bs.data.View(224, 224)
network = bs.models.image_classifier(net, 37)
print("body", network.body_size, flush=True)
batches = bs.data.Batches(lambda rows, rng: view(pictures.pixels[rows]), pictures.y, 4)
began = time.perf_counter()
fit = bs.nn.fit(
    network.module, batches, epochs=1, batchnorm="frozen", prior_mean="current", lr=1e-4,
    group_options={f"{network.head}.*": {"lr": 1e-3, "prior_mean": 0.0}},
    checkpoint=f"{folder}/{role}.safetensors", checkpoint_every=2, progress=False,
)
print("seconds", round(time.perf_counter() - began, 1), fit.status, flush=True)
prediction = fit.predict(view(pictures.pixels[:2]), 2)
print("sums", prediction.probs.sum(1).tolist(), flush=True)
digest = hashlib.sha256()
for value in (*fit.posterior.draw(0, 0).values(), prediction.probs):
    digest.update(value.contiguous().view(torch.uint8).numpy().data)
print("draw and probabilities", digest.hexdigest(), flush=True)
"""


def extract(folder):
    """Twelve photographs of Pets in folders of their breeds: three steps of four."""
    source = Path(os.environ["BAYESCORE_DATA"]) / "oxford_pets"
    rows = list(csv.DictReader((source / "labels.csv").read_text().splitlines()))[:3600:300]
    with zipfile.ZipFile(source / "oxford_pets_96px_jpeg.zip") as archive:
        for row in rows:
            (folder / row["breed"]).mkdir(parents=True, exist_ok=True)
            (folder / row["breed"] / row["file"]).write_bytes(archive.read(row["file"]))


@pytest.mark.slow
@pytest.mark.parametrize(("net", "body"), [("resnet101", 42_500_160), ("vit_l_32", 305_510_400)])
def test_the_papers_networks_train_are_killed_go_on_bitwise_and_predict(net, body, tmp_path):
    declare_vision_operators()
    pytest.importorskip("torchvision")
    if not os.environ.get("BAYESCORE_DATA"):
        pytest.skip("photographs of Pets are read from BAYESCORE_DATA")
    extract(tmp_path / "photographs")

    def start(role):
        with (tmp_path / f"{role}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", WORKER, net, str(tmp_path), role], stdout=log, stderr=log
            )

    def said(role):
        return (tmp_path / f"{role}.log").read_text().splitlines()

    whole = start("whole")
    assert whole.wait() == 0, said("whole")
    (tmp_path / "whole.safetensors").unlink()  # gigabytes
    cut = start("cut")
    while not (tmp_path / "cut.safetensors").exists():  # written after two of the three steps
        assert cut.poll() is None, said("cut")
        time.sleep(0.05)
    cut.send_signal(signal.SIGKILL)
    assert cut.wait() == -signal.SIGKILL
    assert len(said("cut")) == 1  # it has said how large it is, and was killed before it had trained
    resumed = start("cut")
    assert resumed.wait() == 0, said("cut")
    print(*said("whole"), *said("cut"), sep="\n")
    assert f"body {body}" in said("whole")
    assert said("cut")[-1] == said("whole")[-1]  # all weights of a draw, all probabilities
    assert torch.allclose(torch.tensor(json.loads(said("cut")[-2].removeprefix("sums "))), torch.ones(2))

"""The paper's networks at full size: three steps on photographs, killed, resumed bitwise, predicting."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

STEPS, BATCH = 3, 4
WORKER = """
import sys, time, torch
import bayescore as bs


net, folder, role = sys.argv[1:]
torch.set_num_threads(1)
torch.manual_seed(0)
pictures = bs.data.named_pictures("pets", 224)
pictures = pictures[torch.arange(0, 3600, 300)]                      # twelve photographs
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
print("probabilities", prediction.probs.sum(1).tolist(), flush=True)
sizes = [float(value.double().sum()) for value in fit.posterior.draw(0, 0).values()]
print("draw", repr(sum(sizes)), repr(float(prediction.probs[0, 0])), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("net", "body"), [("resnet101", 42_500_160), ("vit_l_32", 305_510_400)])
def test_the_papers_networks_train_are_killed_go_on_bitwise_and_predict(net, body, tmp_path):
    pytest.importorskip("torchvision")
    if not os.environ.get("BAYESCORE_DATA"):
        pytest.skip("photographs of Pets are read from BAYESCORE_DATA")

    def start(role):
        log = (tmp_path / f"{role}.log").open("wb")
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
    cut.wait()
    resumed = start("cut")
    assert resumed.wait() == 0, said("cut")
    print(*said("whole"), *said("cut"), sep="\n")
    assert f"body {body}" in said("whole")
    assert said("cut")[-1] == said("whole")[-1]  # the same draw and the same probability, to the last digit
    assert torch.allclose(
        torch.tensor(json.loads(said("cut")[-2].removeprefix("probabilities "))), torch.ones(2)
    )

"""A run that was killed continues from its checkpoint as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from toy_problem import loader, network, rings
from toy_run import run

import bayescore.nn as bnn
from bayescore.nn.checkpoint import read_state, write_state

HERE = Path(__file__).parent


def how_it_ended(fit: bnn.NetworkFit) -> str:
    """The status without the optimizer's own."""
    return fit.status.split(";")[0]


class Killed(Exception):
    """Stands for the end of the process."""


class Failing:
    """A loader that fails in the middle of a later epoch."""

    def __init__(self, batches: Any, after: int) -> None:
        self.batches, self.left, self.generator = batches, after, batches.generator
        self.dataset, self.batch_size = batches.dataset, batches.batch_size

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.left -= 1
            if self.left < 0:
                raise Killed
            yield batch


METHODS: dict[str, dict[str, Any]] = {
    "proximal": {},
    "advi": {"samples": 2},
    "sgld": {"burn_in": 4, "thin": 2, "lr": 0.05},
    "plain": {"lr": 1e-2},
    "dropout": {"p": 0.2},
    "swag": {"rank": 3},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_in_an_epoch_continues_bitwise_from_the_epoch_before(method: str, tmp_path: Path) -> None:
    def fit(batches: Any, checkpoint: Path | None) -> bnn.NetworkFit:
        return bnn.fit(
            network(), batches, method=method, epochs=5, validation=loader(32, 1), seed=2,
            checkpoint=checkpoint, **METHODS[method],
        )  # fmt: skip

    whole = fit(loader(64, 0, batch=16), None)
    path = tmp_path / "run"
    with pytest.raises(Killed):
        fit(Failing(loader(64, 0, batch=16), 4 * 3 + 2), path)
    assert len(read_state(path)["history"]) == 3
    resumed = fit(loader(64, 0, batch=16), path)
    x, _ = rings(20, 5)
    assert torch.equal(resumed.predict(x, 4).probs, whole.predict(x, 4).probs)
    for one, two in zip(resumed.history, whole.history, strict=True):
        assert {k: v for k, v in one.items() if k != "seconds"} == {
            k: v for k, v in two.items() if k != "seconds"
        }
    assert how_it_ended(resumed) == how_it_ended(whole)
    assert resumed.best_epoch == whole.best_epoch


def test_a_killed_process_loses_the_epoch_it_was_in_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folders = [str(HERE), *sys.path]
    process = subprocess.Popen(
        [sys.executable, str(HERE / "toy_run.py"), str(path), "0.1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
    )
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or len(read_state(path)["history"]) < 2:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = len(read_state(path)["history"])
    assert 2 <= done < 6
    resumed, probs = run(path)
    assert [row["epoch"] for row in resumed.history] == [1, 2, 3, 4, 5, 6]
    _, expected = run(None)
    assert torch.equal(probs, expected)


def test_a_finished_run_is_read_back_without_training(tmp_path: Path) -> None:
    first, probs = run(tmp_path / "run")
    before = (tmp_path / "run").stat().st_mtime_ns
    again, same = run(tmp_path / "run")
    assert torch.equal(probs, same)
    assert how_it_ended(again) == how_it_ended(first)
    assert again.seconds == first.seconds
    assert (tmp_path / "run").stat().st_mtime_ns == before


def test_learned_noise_and_point_weights_are_in_the_checkpoint(tmp_path: Path) -> None:
    def fit(batches: Any, checkpoint: Path | None) -> Tensor:
        like = bnn.likelihoods.Gaussian("learned")
        bnn.fit(network(1), batches, like, epochs=4, bayesian="last", checkpoint=checkpoint)
        return like.log_noise.detach()

    whole = fit(loader(64, 0, regression=True), None)
    with pytest.raises(Killed):
        fit(Failing(loader(64, 0, regression=True), 5), tmp_path / "run")
    assert torch.equal(fit(loader(64, 0, regression=True), tmp_path / "run"), whole)


def test_patience_is_kept_across_a_cut(tmp_path: Path) -> None:
    def fit(path: Path | None) -> bnn.NetworkFit:
        return bnn.fit(
            network(), loader(32, 0, batch=8), epochs=60, validation=loader(64, 1), patience=2, lr=0.9,
            checkpoint=path,
        )  # fmt: skip

    stopped = fit(tmp_path / "run")
    assert "without improvement" in stopped.status
    assert how_it_ended(fit(tmp_path / "run")) == how_it_ended(stopped)


def test_checkpoints_of_other_runs_and_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its epochs is 1"):
        bnn.fit(network(), loader(32, 0), epochs=2, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its method is 'proximal'"):
        bnn.fit(network(), loader(32, 0), epochs=1, method="plain", checkpoint=path)
    with pytest.raises(ValueError, match="another run: its shapes"):
        bnn.fit(network(3), loader(32, 0), epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its lr is the default, this"):
        bnn.fit(network(), loader(32, 0), epochs=1, lr=0.1, checkpoint=path)
    with pytest.raises(ValueError, match="another run: its point_lr is"):
        bnn.fit(network(), loader(32, 0), epochs=1, point_lr=0.1, checkpoint=path)
    warm = tmp_path / "warm"
    bnn.fit(network(), loader(32, 0), epochs=1, temperature=0.5, checkpoint=warm)
    with pytest.raises(ValueError, match=r"another run: its temperature is .* this one's is the default"):
        bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=warm)
    data = path.read_bytes()
    for content in (data[: len(data) // 2], b"", b"\x80\x04\x95" + data, b"{}" * 50):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not a readable checkpoint"):
            bnn.fit(network(), loader(32, 0), epochs=1, checkpoint=path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        read_state(path)


def test_nested_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"a": [1, 2.5, None, "x", True], "b": {3: torch.arange(4), "t": (torch.ones(()), [])}, "c": {}}
    write_state(tmp_path / "state", state)
    found = read_state(tmp_path / "state")
    assert found["a"] == state["a"]
    assert found["c"] == {}
    assert torch.equal(found["b"][3], torch.arange(4))
    assert isinstance(found["b"]["t"], tuple)
    assert found["b"]["t"][0].shape == ()
    with pytest.raises(TypeError, match="cannot hold a function"):
        write_state(tmp_path / "state", {"f": lambda: None})
    assert read_state(tmp_path / "state")["a"] == state["a"]

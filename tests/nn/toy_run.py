"""Runs that are cut short: by an exception, or killed as a program that trains slowly with a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

import bayescore.nn as bnn
from toy_problem import loader, network

__all__ = ["Failing", "Killed", "SlowBatches", "Wrapped", "killed", "run"]

HERE = Path(__file__).parent


class Wrapped:
    """Batches of another loader."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)


class SlowBatches(Wrapped):
    """With a pause before each."""

    def __init__(self, batches: Any, pause: float) -> None:
        super().__init__(batches)
        self.pause = pause

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            time.sleep(self.pause)
            yield batch


class Killed(Exception):
    """Stands for the end of the process."""


class Failing(Wrapped):
    """It fails after so many batches, in whatever epoch that is."""

    def __init__(self, batches: Any, after: int, error: type[BaseException] = Killed) -> None:
        super().__init__(batches)
        self.left, self.error = after, error

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.left -= 1
            if self.left < 0:
                raise self.error
            yield batch


def run(path: Path | None, pause: float = 0.0, every: int | None = None) -> tuple[bnn.NetworkFit, Tensor]:
    """The fit, and its prediction at some points."""
    batches = SlowBatches(loader(96, 0, batch=16), pause)
    fit = bnn.fit(
        network(), batches, epochs=6, validation=loader(32, 1), checkpoint=path, checkpoint_every=every
    )
    return fit, fit.predict(loader(20, 3).dataset.tensors[0], 5).probs  # type: ignore[attr-defined]


def killed(path: Path, ready: Callable[[dict[str, Any]], bool], every: int | None = None) -> dict[str, Any]:
    """What the checkpoint of a process holds that is killed by SIGKILL as soon as it is `ready`."""
    words = [sys.executable, __file__, str(path), "0.1", *([str(every)] if every else [])]
    folders = [str(HERE), *sys.path]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)})
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or not ready(bnn.load_state(path)):
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return bnn.load_state(path)


if __name__ == "__main__":
    run(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else None)

"""A run that is killed: trains slowly with a checkpoint. Used by the tests as a program."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor
from toy_problem import loader, network

import bayescore.nn as bnn

__all__ = ["SlowBatches", "run"]


class SlowBatches:
    """Batches of another loader, with a pause before each."""

    def __init__(self, batches: Any, pause: float) -> None:
        self.batches, self.pause, self.generator = batches, pause, batches.generator
        self.dataset, self.batch_size = batches.dataset, batches.batch_size

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        for batch in self.batches:
            time.sleep(self.pause)
            yield batch


def run(path: Path | None, pause: float = 0.0) -> tuple[bnn.NetworkFit, Tensor]:
    """The fit, and its prediction at some points."""
    batches = SlowBatches(loader(96, 0, batch=16), pause)
    fit = bnn.fit(network(), batches, epochs=6, validation=loader(32, 1), checkpoint=path)
    return fit, fit.predict(loader(20, 3).dataset.tensors[0], 5).probs  # type: ignore[attr-defined]


if __name__ == "__main__":
    run(Path(sys.argv[1]), float(sys.argv[2]))

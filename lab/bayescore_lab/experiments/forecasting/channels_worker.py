"""Training steps of one method at the full number of channels, in a process of its own: time and memory.

    python -m bayescore_lab.experiments.forecasting.channels_worker '{"data": "ECL", "kind": "advi", ...}'

prints one line of JSON. The windows are random numbers in the shape of the data set.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import torch

from bayescore.models import Koopa
from bayescore.nn import fit
from bayescore.posteriors.likelihoods import Gaussian

__all__ = ["measure"]

BATCH = 32
WINDOWS = 10_000  # stands for the size of the training set
GIGABYTE = 1e9


def measure(config: dict[str, Any]) -> dict[str, float]:
    """Seconds per step, peak memory and the loss of `steps` steps."""
    torch.manual_seed(0)
    model = Koopa.for_dataset(config["data"], **config["sizes"])
    rng = torch.Generator().manual_seed(0)
    shape = (BATCH, model.context + model.horizon, model.channels)
    rows = torch.randn(shape, generator=rng)
    model.learn_frequencies([rows[:, : model.context]])
    began: list[float] = []

    class Batches:
        """The same batch `steps` times; when each was asked for is noted."""

        batch_size = BATCH

        def __len__(self) -> int:
            return int(config["steps"])

        def __iter__(self) -> Any:
            for _ in range(len(self)):
                began.append(time.perf_counter())
                yield rows[:, : model.context], rows[:, model.context :]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = fit(
        model, Batches(), Gaussian(1.0), config["kind"], epochs=1, num_data=WINDOWS, progress=False,
        **config["options"],
    )  # fmt: skip
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    later = len(began) // 2  # the first half compiles and allocates
    return {
        "weights": sum(p.numel() for p in model.parameters()),
        "seconds_per_step": (ended - began[later]) / (len(began) - later),
        "all_seconds": ended - began[0],
        "peak_gb": peak * 1024 / GIGABYTE,
        "training_gb": (peak - before) * 1024 / GIGABYTE,
        "loss": found.history[-1]["loss"],
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measure(json.loads(sys.argv[1]))))

"""A posterior with Lightning on several processes: held whole by each, or sharded by FSDP2.

    python examples/with_lightning.py
    python examples/with_lightning.py --strategy ddp --devices 2
    python examples/with_lightning.py --strategy sharded --devices 2 --out posterior.safetensors

Lightning starts the processes. `configure_model` shards the layers; other strategies leave it out.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from bayescore.lightning import BayesianCallback
from bayescore.operators import declare_vision_operators
from bayescore.optim import ProximalScore

declare_vision_operators()  # beside a CPU build of torch

import lightning  # noqa: E402
from lightning.pytorch.strategies import ModelParallelStrategy  # noqa: E402


def data() -> TensorDataset:
    """Points inside and outside of a ring."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.norm(dim=1) > 1.2).long())


class Classifier(lightning.LightningModule):
    """A small network, sharded if its strategy has a mesh of processes."""

    def __init__(self, num_data: int, sharded: bool) -> None:
        super().__init__()
        torch.manual_seed(0)  # the same weights on every process
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.num_data, self.sharded = num_data, sharded

    def configure_model(self) -> None:
        if self.sharded:
            mesh = self.device_mesh["data_parallel"]
            for layer in (self.net[0], self.net[2], self.net):
                fully_shard(layer, mesh=mesh)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:  # noqa: ARG002
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        return ProximalScore(self.parameters(), num_data=self.num_data, lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strategy", choices=("auto", "ddp", "sharded"), default="auto")
    parser.add_argument("--devices", type=int, default=1, help="processes")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="rows of each process")
    parser.add_argument("--out", help="file for the posterior")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")

    points, bayes = data(), BayesianCallback()
    sharded = asked.strategy == "sharded"
    strategy: Any = ModelParallelStrategy(asked.devices, 1) if sharded else asked.strategy
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        strategy=strategy,
        devices=asked.devices,
        max_epochs=asked.epochs,
        callbacks=[bayes],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(len(points), sharded), DataLoader(points, batch_size=asked.batch))
    x, y = points.tensors
    right = (bayes.posterior.predict(x, draws=20).probs.cpu().argmax(1) == y).double().mean()
    if trainer.is_global_zero:
        print(f"{asked.devices} processes, {right:.1%} right; {trainer.optimizers[0].status}")
    if asked.out:
        bayes.posterior.save(asked.out)


if __name__ == "__main__":
    main()

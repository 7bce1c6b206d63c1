"""Lightning's strategy "ddp" with two processes: each has every second batch, two are accumulated per step.

Run as `python lightning_ddp.py FOLDER`; Lightning starts the second process by running it again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

HERE = Path(__file__).parent
for folder in (HERE.parent, HERE.parent / "optim"):
    sys.path.insert(0, str(folder))

from small_networks import NETWORKS  # noqa: E402

from bayescore.lightning import BayesianCallback  # noqa: E402
from bayescore.operators import declare_vision_operators  # noqa: E402
from bayescore.optim import ProximalScore  # noqa: E402

CASE = NETWORKS["mlp"]


def main(folder: Path) -> None:
    declare_vision_operators()
    import lightning

    batches: Any = [CASE.batch(seed=i) for i in range(8)]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = CASE.module()

        def training_step(self, batch: Any, index: int) -> Tensor:
            return CASE.loss(self.net, *batch)

        def train_dataloader(self) -> Any:
            return DataLoader(batches[self.trainer.global_rank :: 2], batch_size=None)

        def configure_optimizers(self) -> Any:
            return ProximalScore(self.parameters(), 50)

    bayes = BayesianCallback()
    trainer = lightning.Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        use_distributed_sampler=False,
        accumulate_grad_batches=2,
        max_epochs=1,
        callbacks=[bayes],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    module = Module()
    trainer.fit(module)
    if trainer.is_global_zero:
        trainer.optimizers[0].posterior(module.net).save(folder / "ddp.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A posterior with Hugging Face Accelerate: the loop of its documentation, and `sample()` around backward.

    python examples/with_accelerate.py
    accelerate launch --multi_gpu --num_processes 2 examples/with_accelerate.py --out posterior.safetensors

`--multi_gpu` means several processes of a machine, also where it has no GPU. Whatever engine `accelerate
config` chooses, the loop stays the same; FSDP2, on GPUs, is `--use_fsdp --fsdp_version 2`.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayescore.optim import ProximalScore


def data() -> TensorDataset:
    """Points inside and outside of a ring."""
    x = torch.randn(256, 2, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.norm(dim=1) > 1.2).long())


def network() -> nn.Module:
    torch.manual_seed(0)  # the same weights on every process
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16, help="rows of each process")
    parser.add_argument("--out", help="file for the posterior")
    asked = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    points, model = data(), network()
    opt = ProximalScore(model.parameters(), num_data=len(points), lr=1e-2)
    loader = DataLoader(points, batch_size=asked.batch)
    model, wrapped, loader = accelerator.prepare(model, opt, loader)
    for _ in range(asked.epochs):
        for x, y in loader:
            with opt.sample():
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            wrapped.step()
            wrapped.zero_grad()

    posterior = opt.posterior(accelerator.unwrap_model(model))
    x, y = (each.to(accelerator.device) for each in points.tensors)
    right = (posterior.predict(x, draws=20).probs.argmax(1) == y).double().mean()
    accelerator.print(f"{accelerator.num_processes} processes, {right:.1%} right; {opt.status}")
    if asked.out:
        posterior.save(asked.out)
    accelerator.end_training()


if __name__ == "__main__":
    main()

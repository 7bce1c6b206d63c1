"""What the processes of a distributed `fit` do together.

Every process trains on its own share of each batch; the optimizers take care of the weights
(optim/distributed.py). `fit` adds what is outside of them: the parameters of the likelihood have the mean
gradient of all processes, losses are means over all of them, and the first process writes the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from bayescore.optim.distributed import data_parallel_size
from bayescore.posteriors.shards import computing_device, is_sharded, whole

__all__ = ["Team"]


class Team:
    """The processes of a run; there may be one only.

    Arguments:
        model: the module that is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        running = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.size = torch.distributed.get_world_size() if running else 1
        self.is_first = not running or torch.distributed.get_rank() == 0
        #: how many processes see different data, as far as the weights tell
        self.shares = data_parallel_size(model.parameters()) or 1
        self._device = computing_device(next(model.parameters()))

    def check_loader(self, loader: Any) -> None:
        """Raise if every process would see the same batches."""
        sampler = getattr(loader, "sampler", None)
        plain = isinstance(loader, DataLoader) and isinstance(sampler, RandomSampler | SequentialSampler)
        if self.shares > 1 and plain:
            raise ValueError(
                f"each of the {self.shares} processes would train on the same batches; give the loader "
                "sampler=torch.utils.data.DistributedSampler(dataset)"
            )

    def begin_epoch(self, loader: Any, epoch: int) -> None:
        """Let a distributed sampler shuffle anew."""
        set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
        if callable(set_epoch):
            set_epoch(epoch)

    def mean(self, value: float) -> float:
        """The mean over all processes."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(total)
        return float(total) / self.size

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give parameters that no wrapper takes care of the mean gradient of all processes."""
        if self.size > 1:
            for gradient in [p.grad for p in parameters if p.grad is not None]:
                torch.distributed.all_reduce(gradient)
                gradient.div_(self.size)

    def wait(self) -> None:
        """Continue when all processes have come here."""
        if self.size > 1:
            torch.distributed.barrier()

    def whole(self, content: Any) -> Any:
        """Nested content with whole tensors instead of sharded ones; every process has to ask for it.

        Only the first process keeps what it gathers.
        """

        def gather(value: Tensor) -> Tensor:
            if not is_sharded(value):
                return value
            found = whole(value.detach())
            return found.cpu() if self.is_first else found.new_empty(0)

        return tree_map_only(Tensor, gather, content)

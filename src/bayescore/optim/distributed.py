"""Where the weights are, and whether the processes of a distributed run agree.

Every process of a run with DistributedDataParallel holds all weights, draws the same noise and makes the same
update from the same mean gradient. Nothing of the posterior is ever sent; it stays equal because it starts
equal. What makes it differ is therefore refused: weights of which a process holds a part only, and, compared
once before the first draw, another seed, other options or another number of updates.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.optim.losses import LOSSES

__all__ = ["check_processes_agree", "check_whole"]

#: what the processes compare, and how a user makes it equal
COMPARED = {
    "seeds": "pass the same seed= to the optimizer of every process",
    "options": "give every process the same options, and make the optimizer after DistributedDataParallel",
    "numbers of updates": "load the same checkpoint on every process",
}


def check_whole(weights: Iterable[Tensor]) -> None:
    """Raise unless the memory of this process holds every weight."""
    tensors = sys.modules.get("torch.distributed.tensor")
    distributed = () if tensors is None else (tensors.DTensor,)
    with_deepspeed = "deepspeed" in sys.modules
    for weight in weights:
        if isinstance(weight, distributed):
            what = "a DTensor (fully_shard, tensor parallel)"
        elif hasattr(weight, "_fsdp_flattened"):  # of a flat parameter, and of the views into it
            what = "a part of FullyShardedDataParallel"
        elif hasattr(weight, "ds_id"):  # stage 3 empties the weights between their uses
            what = "partitioned by DeepSpeed (ZeRO stage 3)"
        elif with_deepspeed and not isinstance(weight, nn.Parameter):
            # stages 1 and 2 put one flat float32 copy of all weights in the place of the module's
            what = "no weight of a module but a flat partition (DeepSpeed, ZeRO stage 1 or 2)"
        elif weight.is_meta:
            raise ValueError(
                f"a parameter of the shape {tuple(weight.shape)} is on the meta device and has no numbers; "
                "make the weights first (model.to_empty(device=...), then load or initialise them)"
            )
        else:
            continue
        raise TypeError(
            f"sharded parameters are not supported yet, and a parameter of the shape {tuple(weight.shape)} "
            f"is {what}; use DistributedDataParallel"
        )


def check_processes_agree(groups: list[dict[str, Any]]) -> None:
    """Raise on every process of a distributed run unless all have the same seed, options and counters."""
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not spread or torch.distributed.get_world_size() < 2:
        return
    apart = ("seed", "step", "updates", "params", "param_names", "prior_mean", *LOSSES)
    options = [{name: v for name, v in sorted(group.items()) if name not in apart} for group in groups]
    rows = ([g["seed"] for g in groups], options, [(g["step"], g["updates"]) for g in groups])
    device = next(p.device for group in groups for p in group["params"])
    here = torch.tensor([_checksum(row) for row in rows], device=device)
    found = [torch.empty_like(here) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(found, here)
    equal = (torch.stack(found) == here).all(0).tolist()
    for (what, remedy), same in zip(COMPARED.items(), equal, strict=True):
        if not same:
            raise ValueError(
                f"the processes of this distributed run have different {what}, and their posteriors would "
                f"drift apart; {remedy}"
            )


def _checksum(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big", signed=True)

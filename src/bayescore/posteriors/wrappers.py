"""A module without its wrappers: torch.compile's, and those of data-parallel training.

They put "_orig_mod." and "module." into the names of parameters, so that names of one network are compared
without them. And a compiled graph does not see hooks that were added after it was made: where hooks are used,
everything runs as it was written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

__all__ = ["bare", "bare_names", "eager", "matched", "single"]


def bare(model: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    parallel = isinstance(model, DataParallel | DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    return bare(inner) if isinstance(inner, nn.Module) else model


def single(model: nn.Module) -> nn.Module:
    """The module as one process runs it: without waiting for others, but compiled if it is."""
    inner = bare(model)
    return model if getattr(model, "_orig_mod", None) is inner else inner


def bare_names(names: Iterable[str]) -> list[str]:
    """The names of a network's tensors without its wrappers; "module." is one where all names begin with it.

    >>> bare_names(["module._orig_mod.0.weight", "module._orig_mod.0.bias"])
    ['0.weight', '0.bias']
    """
    found = [".".join(part for part in name.split(".") if part != "_orig_mod") for name in names]
    while found and all(name.startswith("module.") for name in found):
        found = [name.removeprefix("module.") for name in found]
    return found


def matched(there: Iterable[str], here: Iterable[str]) -> dict[str, str]:
    """The names of a file, each with its name here, however the network was and is wrapped."""
    there, here = list(there), list(here)
    own = dict(zip(bare_names(here), here, strict=True)) | {name: name for name in here}
    other = zip(there, bare_names(there), strict=True)
    return {name: own.get(name, own.get(plain, name)) for name, plain in other}


def eager() -> AbstractContextManager[Any]:
    """Compiled modules run as they were written, for the length of the block."""
    compiler = "torch._dynamo" in sys.modules  # which takes seconds to import, where nothing is compiled
    return torch.compiler.set_stance("force_eager") if compiler else nullcontext()

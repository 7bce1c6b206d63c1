"""Modules inside wrappers: torch.compile's, and those of data-parallel training.

Wrappers put "_orig_mod." and "module." into the names of parameters, so names of a network are compared
without these prefixes. A compiled graph ignores hooks that were added after it was compiled: where hooks are
used, compiled modules run uncompiled.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

__all__ = ["bare", "bare_names", "eager", "matched", "without_parallel"]


def bare(model: nn.Module) -> nn.Module:
    """The module inside all wrappers."""
    parallel = isinstance(model, DataParallel | DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    return bare(inner) if isinstance(inner, nn.Module) else model


def without_parallel(model: nn.Module) -> nn.Module:
    """The module without data-parallel wrappers, still compiled if it was."""
    inner = bare(model)
    return model if getattr(model, "_orig_mod", None) is inner else inner


def bare_names(names: Iterable[str]) -> list[str]:
    """Names of a network's tensors without the parts that wrappers add.

    "module." counts as a wrapper's prefix if all names begin with it.

    >>> bare_names(["module._orig_mod.0.weight", "module._orig_mod.0.bias"])
    ['0.weight', '0.bias']
    """
    found = [".".join(part for part in name.split(".") if part != "_orig_mod") for name in names]
    while found and all(name.startswith("module.") for name in found):
        found = [name.removeprefix("module.") for name in found]
    return found


def matched(there: Iterable[str], here: Iterable[str]) -> dict[str, str]:
    """For each name in a file the name in this module, whichever of the two is wrapped."""
    there, here = list(there), list(here)
    own = dict(zip(bare_names(here), here, strict=True)) | {name: name for name in here}
    other = zip(there, bare_names(there), strict=True)
    return {name: own.get(name, own.get(plain, name)) for name, plain in other}


def eager() -> AbstractContextManager[Any]:
    """Run compiled modules uncompiled, for the length of the block."""
    # If the compiler has not been imported, nothing is compiled, and importing it would take seconds.
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()

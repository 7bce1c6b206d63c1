"""Pretrained weights from a local file: safetensors, torch's state dicts (weights only), or NumPy's npz."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

__all__ = ["load_body", "read_weights"]

TORCH = (".pt", ".pth", ".bin", ".ckpt")
NESTED = ("state_dict", "model_state_dict", "model")


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors in a file, by name."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file of weights at {str(path)[:200]}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        if path.suffix in TORCH:
            content = torch.load(path, map_location="cpu", weights_only=True)
            for key in NESTED:
                if isinstance(content, dict) and isinstance(content.get(key), dict):
                    content = content[key]
            if isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values()):
                return {str(name): value for name, value in content.items()}
            raise ValueError("it holds something else than tensors by name")
    except (SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile, OSError, RuntimeError, ValueError,
            EOFError, LookupError) as problem:  # fmt: skip
        reason = next(iter(str(problem).splitlines()), type(problem).__name__)
        raise ValueError(f"{path} is no readable file of weights: {reason}") from problem
    raise ValueError(f"weights must end in .safetensors, .npz or {', '.join(TORCH)}; got {path.name!r}")


def load_body(module: nn.Module, weights: dict[str, Tensor], head: str, source: str) -> None:
    """Copy all tensors but those of the head into the module; every one of them must be there and fit.

    Prefixes that all names in the file share ("module.", "model.") do not count, nor does the counter of
    BatchNorm's batches.
    """
    own = {name: value for name, value in module.state_dict().items() if not name.startswith(f"{head}.")}
    names = list(weights)
    while names and all("." in name for name in names) and len({n.split(".", 1)[0] for n in names}) == 1:
        prefix = names[0].split(".", 1)[0]
        if any(name.startswith(f"{prefix}.") for name in own):
            break
        weights = {name.split(".", 1)[1]: value for name, value in weights.items()}
        names = list(weights)
    for name, value in own.items():
        if name.endswith("num_batches_tracked") and name not in weights:
            continue
        if name not in weights:
            raise ValueError(
                f"{source} lacks {name!r}, a tensor of the network; its first names are "
                f"{', '.join(names[:3])}: is it of another network?"
            )
        if weights[name].shape != value.shape:
            raise ValueError(
                f"{source} is of another network: {name} is {tuple(weights[name].shape)} there and "
                f"{tuple(value.shape)} here"
            )
    with torch.no_grad():
        for name, value in own.items():
            if name in weights:
                value.copy_(weights[name])

"""A posterior's file: safetensors with a JSON text in the header; never a pickle, always written whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from bayescore.nn.draws import DrawsPosterior
from bayescore.nn.gaussian import GaussianPosterior
from bayescore.nn.likelihoods import KINDS, Function, Likelihood
from bayescore.nn.posterior import Posterior

__all__ = ["load_posterior", "save_posterior"]

FORMAT = "bayescore-network-1"
POSTERIORS: dict[str, type[Posterior]] = {kind.kind: kind for kind in (GaussianPosterior, DrawsPosterior)}


def save_posterior(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all."""
    like = posterior.likelihood
    header = {
        "format": FORMAT,
        "kind": posterior.kind,
        "likelihood": {"name": like.name, **like.config()},
        "shapes": {name: list(p.shape) for name, p in _everything(posterior.model).items()},
    }
    tensors = {f"random.{k}": v for k, v in posterior.tensors().items()}
    tensors |= {f"fixed.{k}": v for k, v in posterior.fixed.items()}
    tensors |= {f"likelihood.{k}": v for k, v in like.state_dict().items()}
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    _write(Path(path), save(plain, {"json": json.dumps(header)}))


def load_posterior(
    path: str | os.PathLike[str], model: nn.Module, likelihood: Callable[[Any, Any], Tensor] | None = None
) -> Posterior:
    """Read the file into `model`."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no saved posterior at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["json"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, not {FORMAT!r}")
        kind = POSTERIORS[header["kind"]]
        shapes = {name: tuple(shape) for name, shape in header["shapes"].items()}
        like = _likelihood(header["likelihood"], tensors, likelihood)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} is not a readable bayescore posterior (truncated, or written by something else): {error}"
        ) from error
    live = _everything(model)
    _check_model(path, shapes, live)
    place = next(model.parameters()).device
    random = {k.removeprefix("random."): v.to(place) for k, v in tensors.items() if k.startswith("random.")}
    fixed = {k.removeprefix("fixed."): v for k, v in tensors.items() if k.startswith("fixed.")}
    _check_tensors(path, shapes, random, fixed, 1 if kind is DrawsPosterior else 0)
    with torch.no_grad():
        for name, value in fixed.items():
            live[name].copy_(value)
        posterior = kind.rebuild(model, random, like.to(place))
        for name, value in posterior.centre().items():
            live[name].copy_(value)
    return posterior


def _everything(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _likelihood(config: dict[str, Any], tensors: dict[str, Tensor], given: Any) -> Likelihood:
    config = dict(config)
    name = config.pop("name")
    if name == Function.name:
        if given is None:
            raise ValueError("its likelihood is a callable, which a file cannot hold; pass likelihood=")
        return Function(given)
    like = KINDS[name](**config)
    like.load_state_dict(
        {k.removeprefix("likelihood."): v for k, v in tensors.items() if k.startswith("likelihood.")}
    )
    return like


def _check_model(path: Path, shapes: dict[str, tuple[int, ...]], live: dict[str, Tensor]) -> None:
    for name in [*shapes, *live]:
        there, here = shapes.get(name), tuple(live[name].shape) if name in live else None
        if there != here:
            raise ValueError(
                f"{path} holds the posterior of another model: {name} is {there or 'missing'} there "
                f"and {here or 'missing'} here"
            )


def _check_tensors(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    random: dict[str, Tensor],
    fixed: dict[str, Tensor],
    lead: int,
) -> None:
    """A header that fits does not mean that the tensors do; random ones are called mean.name, sd.name."""
    found = [(name.split(".", 1)[-1], tuple(value.shape[lead:])) for name, value in random.items()]
    found += [(name, tuple(value.shape)) for name, value in fixed.items()]
    bad = [name for name, shape in found if shapes.get(name) != shape]
    bad += [name for name in shapes if name not in dict(found)]
    if bad:
        raise ValueError(f"{path} is damaged: its tensor {bad[0]} does not fit what its header says")


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

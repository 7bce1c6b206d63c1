"""A posterior's file: safetensors with a JSON text in the header; never a pickle, always written whole."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from bayescore.posteriors.draws import DrawsPosterior
from bayescore.posteriors.dropout import DropoutPosterior
from bayescore.posteriors.ensemble import Ensemble
from bayescore.posteriors.gaussian import GaussianPosterior
from bayescore.posteriors.laplace import LaplacePosterior
from bayescore.posteriors.likelihoods import KINDS, Function, Likelihood, frozen
from bayescore.posteriors.likelihoods import likelihood as as_likelihood
from bayescore.posteriors.point import PointPosterior
from bayescore.posteriors.posterior import Posterior
from bayescore.posteriors.swag import SwagPosterior
from bayescore.posteriors.weights import WeightPosterior, put_back_on_failure, write
from bayescore.posteriors.wrappers import matched

__all__ = ["load_posterior", "packed", "save_posterior", "unpacked", "write_whole"]

FORMAT = "bayescore-network-1"
POSTERIORS: dict[str, type[WeightPosterior]] = {
    kind.kind: kind
    for kind in (
        DrawsPosterior, DropoutPosterior, GaussianPosterior, LaplacePosterior, PointPosterior, SwagPosterior,
    )
}  # fmt: skip


def save_posterior(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all."""
    header, tensors = packed(posterior)
    plain = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    write_whole(Path(path), save(plain, {"json": json.dumps({"format": FORMAT, **header})}))


def load_posterior(
    path: str | os.PathLike[str],
    model: nn.Module | Sequence[nn.Module],
    likelihood: Callable[[Any, Any], Tensor] | None = None,
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
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, OSError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    with put_back_on_failure(*([model] if isinstance(model, nn.Module) else model)):
        return unpacked(path, header, tensors, model, likelihood)


def packed(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What is told in the header, and the tensors."""
    if isinstance(posterior, Ensemble):
        rows = [packed(member) for member in posterior.members]
        tensors = {f"{i}.{k}": v for i, (_, part) in enumerate(rows) for k, v in part.items()}
        return {"kind": posterior.kind, "members": [header for header, _ in rows]}, tensors
    if not isinstance(posterior, WeightPosterior):
        raise TypeError(f"a {type(posterior).__name__} cannot be saved")
    like = posterior.likelihood
    header = {
        "kind": posterior.kind,
        "config": posterior.config(),
        "likelihood": {"name": like.name, **like.config()} if _is_known(like) else {"name": Function.name},
        "shapes": {name: list(p.shape) for name, p in _everything(posterior.model).items()},
    }
    tensors = {f"random.{k}": v for k, v in posterior.tensors().items()}
    tensors |= {f"fixed.{k}": v for k, v in posterior.fixed.items()}
    tensors |= {f"likelihood.{k}": v for k, v in like.state_dict().items()}
    return header, tensors


def _is_known(like: Likelihood) -> bool:
    """Whether a file can hold it: one of ours, not a callable or a class of the user's."""
    return KINDS.get(like.name) is type(like)


def unpacked(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: Any, given: Any
) -> Posterior:
    """The posterior from what `packed` gave, in `model`, which takes over its centre."""
    try:
        members = header["members"] if header["kind"] == Ensemble.kind else None
        count = None if members is None else len(members)
    except (KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    if members is None or count is None:
        return _one(path, header, tensors, model, given)
    models = [model] * count if isinstance(model, nn.Module) else list(model)
    if len(models) != count:
        raise ValueError(f"{path} holds an ensemble of {count}; got {len(models)} models")
    return Ensemble(
        [unpacked(path, row, _under(f"{i}.", tensors), models[i], given) for i, row in enumerate(members)]
    )


def _one(
    path: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, given: Any
) -> Posterior:
    try:
        kind = POSTERIORS[header["kind"]]
        config = dict(header.get("config", {}))
        shapes = {name: tuple(shape) for name, shape in header["shapes"].items()}
        like = _likelihood(header["likelihood"], tensors, given)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    live = _everything(model)
    here = matched(shapes, live)
    shapes = {here[name]: shape for name, shape in shapes.items()}
    _check_model(path, shapes, live)
    place = next(model.parameters()).device
    fixed = {here.get(name, name): value for name, value in _under("fixed.", tensors).items()}
    parts: dict[str, dict[str, Tensor]] = {}
    for key, value in _under("random.", tensors).items():
        what, _, name = key.partition(".")
        own = here.get(name, name) if what in kind.leading else name
        parts.setdefault(what, {})[own] = value.to(place)
    _check_tensors(path, shapes, parts, fixed, kind.leading)
    write(live, fixed)
    try:
        posterior = kind.rebuild(model, parts, like.to(place), **config)
    except (KeyError, TypeError, AttributeError, IndexError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    write(live, posterior.centre())
    return posterior


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"{path} is not a readable bayescore posterior (truncated, or written by something else): {error}"
    )


def _everything(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _likelihood(config: dict[str, Any], tensors: dict[str, Tensor], given: Any) -> Likelihood:
    config = dict(config)
    name = config.pop("name")
    if name == Function.name:
        if given is None:
            raise ValueError("its likelihood is your own, which a file cannot hold; pass likelihood=")
        like = frozen(as_likelihood(given))
    else:
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
                f"{path} holds the posterior of another model: {name} is {_shape(there)} there "
                f"and {_shape(here)} here"
            )


def _shape(found: tuple[int, ...] | None) -> str:
    return "missing" if found is None else str(found)


def _check_tensors(
    path: Path,
    shapes: dict[str, tuple[int, ...]],
    parts: dict[str, dict[str, Tensor]],
    fixed: dict[str, Tensor],
    leading: dict[str, int],
) -> None:
    """A header that fits does not mean that the tensors do."""
    for what, lead in leading.items():
        rows = parts.get(what, {})
        found = {name: tuple(value.shape[lead:]) for name, value in rows.items()}
        found |= {name: tuple(value.shape) for name, value in fixed.items()}
        bad = [name for name in [*shapes, *found] if shapes.get(name) != found.get(name)]
        bad += [name for name, value in rows.items() if not _sensible(what, value)]
        if bad:
            raise ValueError(f"{path} is damaged: its tensor {bad[0]} does not fit what its header says")


def _sensible(what: str, value: Tensor) -> bool:
    """Whether these can be numbers of a posterior: finite, and widths not negative."""
    if not value.is_floating_point() or not bool(value.isfinite().all()):
        return False
    return what not in ("sd", "var") or bool((value >= 0).all())


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary file, then put it in place: a reader sees the old file or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as an ordinary file: mkstemp's is the owner's alone
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

"""Draws of a fit under the model's own names of its quantities, as in ArviZ and in reference draws."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bayescore.targets.base import Target
from bayescore.targets.noisy import NoisyScore

if TYPE_CHECKING:
    import arviz

__all__ = ["columns", "data_of", "groups", "inference_data", "model_of"]


def model_of(target: Target | None) -> Target | None:
    """The target itself, without a wrapper that adds noise to its scores."""
    return model_of(target.target) if isinstance(target, NoisyScore) else target


def groups(target: Target | None, x: Tensor, seed: int) -> dict[str, dict[str, Tensor]]:
    """ArviZ groups from unconstrained draws (..., D): under the model's names, or "theta" if it has none."""
    to_posterior = getattr(model_of(target), "to_posterior", None)
    if to_posterior is None:
        return {"posterior": {"theta": x}}
    found: dict[str, dict[str, Tensor]] = to_posterior(x, seed=seed)
    return found


def columns(values: Mapping[str, Tensor], lead: int = 1) -> dict[str, Tensor]:
    """Every entry of named quantities (*lead, *shape) as a column (n,), such as beta[2,1]."""
    found = {}
    for name, value in values.items():
        shape = value.shape[lead:]
        flat = value.reshape(-1, shape.numel())  # (n, numbers)
        for i, index in enumerate(itertools.product(*(range(1, size + 1) for size in shape))):
            found[f"{name}[{','.join(map(str, index))}]" if index else name] = flat[:, i]
    return found


def data_of(target: Target | None, observed: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The groups observed_data and constant_data: what is given, or the data of a Stan program.

    Of the program's data, those that its predictions replicate (y for y_rep) are observed, and y.
    """
    if observed is not None:
        return {"observed_data": {name: _array(torch.as_tensor(value)) for name, value in observed.items()}}
    found: Mapping[str, Any] = getattr(model_of(target), "data", None) or {}
    arrays = {name: _array(torch.as_tensor(value)) for name, value in found.items() if _rectangular(value)}
    names = getattr(model_of(target), "constrained_names", [])
    replicated = {name.partition("[")[0].rpartition("_")[0] for name in names}
    groups = {
        "observed_data": {k: v for k, v in arrays.items() if k == "y" or (k in replicated and v.ndim)},
    }
    groups["constant_data"] = {k: v for k, v in arrays.items() if k not in groups["observed_data"]}
    return {name: members for name, members in groups.items() if members}


def _rectangular(value: Any) -> bool:
    try:
        return bool(torch.as_tensor(value).isfinite().all())
    except (TypeError, ValueError, RuntimeError):
        return False


def inference_data(
    found: dict[str, dict[str, Tensor]],
    stats: dict[str, Tensor],
    attrs: dict[str, Any],
    data: dict[str, dict[str, Any]],
) -> arviz.InferenceData:
    """InferenceData of groups of quantities (chains, draws, *shape), with the data of the model."""
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ: pip install 'bayescore[arviz]'") from error
    arrays: dict[str, Any] = {
        group: {name: _array(value) for name, value in members.items()}
        for group, members in {**found, "sample_stats": stats}.items()
    }
    return arviz.from_dict(**{**arrays, **data}, posterior_attrs=attrs)


def _array(value: Tensor) -> Any:
    with torch.no_grad():
        return value.detach().cpu().numpy()

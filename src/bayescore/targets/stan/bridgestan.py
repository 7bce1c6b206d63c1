"""A BridgeStan model object with the interface of `CompiledModel`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from bayescore.targets.stan.library import Rejected

__all__ = ["BridgeStanModel"]

NEEDED = (
    "param_unc_num",
    "param_unc_names",
    "param_names",
    "param_constrain",
    "param_unconstrain",
    "log_density",
    "log_density_gradient",
    "new_rng",
)


class BridgeStanModel:
    """Calls `bridgestan.StanModel` draw by draw.

    Arguments:
        model: the model object, or any object with the same methods.
    """

    def __init__(self, model: Any) -> None:
        missing = [name for name in NEEDED if not callable(getattr(model, name, None))]
        if missing:
            raise TypeError(
                f"from_bridgestan takes a bridgestan.StanModel; a {type(model).__name__} arrived, "
                f"which lacks {', '.join(missing)}"
            )
        self.model = model
        self.dim = int(model.param_unc_num())

    def names(self, what: int) -> list[str]:
        """As CompiledModel.names."""
        if what == 0:
            return list(self.model.param_unc_names())
        return list(self.model.param_names(include_tp=what >= 2, include_gq=what >= 3))

    def log_density(
        self, x: Tensor, propto: bool, jacobian: bool, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Rejected | None]:
        """As CompiledModel.log_density."""
        points = x.detach().reshape(-1, self.dim)
        value = torch.full((points.shape[0],), -torch.inf, dtype=torch.float64)
        grad = torch.full_like(points, torch.nan) if gradient else None
        failures = []
        for i, point in enumerate(points.numpy()):
            try:
                if grad is None:
                    lp = float(self.model.log_density(point, propto=propto, jacobian=jacobian))
                else:
                    lp, slope = self.model.log_density_gradient(point, propto=propto, jacobian=jacobian)
            except RuntimeError as error:  # how BridgeStan says that Stan rejected the draw
                failures.append(str(error))
                continue
            if math.isfinite(lp):
                value[i] = lp
                if grad is not None:
                    grad[i] = torch.as_tensor(slope)
        rejected = (len(failures), failures[0]) if failures else None
        return value.view(x.shape[:-1]), None if grad is None else grad.view(x.shape), rejected

    def constrain(self, x: Tensor, include: int, seed: int) -> tuple[Tensor, Rejected | None]:
        """As CompiledModel.constrain, except that the random numbers of a draw depend on those before it."""
        out = torch.full((x.shape[0], len(self.names(include + 1))), torch.nan, dtype=torch.float64)
        rng = self.model.new_rng(seed) if include >= 2 else None
        failures = []
        for i, point in enumerate(x.detach().numpy()):
            try:
                row = self.model.param_constrain(
                    point, include_tp=include >= 1, include_gq=include >= 2, rng=rng
                )
            except RuntimeError as error:
                failures.append(str(error))
                continue
            out[i] = torch.as_tensor(row)
        return out, (len(failures), failures[0]) if failures else None

    def unconstrain(self, rows: Tensor) -> tuple[Tensor, Rejected | None]:
        """As CompiledModel.unconstrain."""
        out = torch.full((rows.shape[0], self.dim), torch.nan, dtype=torch.float64)
        failures = []
        for i, row in enumerate(rows.numpy()):
            try:
                out[i] = torch.as_tensor(self.model.param_unconstrain(row))
            except RuntimeError as error:
                failures.append(str(error))
        return out, (len(failures), failures[0]) if failures else None

"""Coupling flow around a Gaussian: affine coupling layers in coordinates in which the Gaussian is N(0, I).

    x = m + L y,   y = b + exp(a) z                 m and L are constants; a and b are learned            (1)
    z = c_1(c_2(... c_K(e))),   e ~ N(0, I)         K coupling layers                                     (2)
    c_k: (u, v) -> (u, v exp(s) + t)                one half moves given the other; odd k: u is the
                                                    first half, even k: the second                        (3)
    (t, r) = tanh(tanh(u A + f) B + g) C + u E,   s = S tanh(r/S);   S = 3 bounds a layer's log scale     (4)
    log q(x) = log N(e; 0, I) - sum over layers and coordinates of s - sum a - log det L                  (5)
Layers of this kind are those of RealNVP (Dinh et al. 2017). What is ours is where they begin: C = E = 0, so
that q is the Gaussian N(m, L L^T) itself at first, and a method spends its steps on what no Gaussian can be:
a scale that depends on another coordinate (a funnel), a bent ridge, a skewed margin. m and L have units, and
the other parameters have none, so one learning rate suits every target; hence m and L enter as constants,
with a gradient of zero, and no method moves them.

The score is the gradient of (5), by automatic differentiation.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family, Parameters
from bayescore.families.full import LOG_2PI, FullGaussian, initial_mean
from bayescore.rng import generator

__all__ = ["CouplingFlow"]

LOG_SCALE = 3.0  # S in (4)


class CouplingFlow(Family):
    """A Gaussian warped by coupling layers, made by `around` or `init`."""

    name: ClassVar[str] = "coupling"
    lr: ClassVar[float] = 0.01

    def __init__(self, parameters: Parameters) -> None:
        if "location" not in parameters or "in.1" not in parameters:
            raise TypeError("CouplingFlow is made of named tensors; use CouplingFlow.around(gaussian)")
        self._parameters = dict(parameters)
        self.dim = parameters["location"].shape[-1]
        self.layers = sum(name.startswith("in.") for name in parameters)
        self.hidden = parameters["in.1"].shape[-1]
        shapes = _shapes(self.dim, self.layers, self.hidden)
        batch = self.batch_shape
        if {k: v.shape for k, v in parameters.items()} != {k: (*batch, *s) for k, s in shapes.items()}:
            raise ValueError(f"the tensors do not have the shapes of a coupling flow with {self._describe()}")

    @classmethod
    def around(cls, gaussian: FullGaussian, layers: int = 4, hidden: int = 32, *, seed: int = 0) -> Self:
        """The flow that begins as the Gaussian itself.

        Arguments:
            gaussian: one Gaussian, from a fit for instance, in at least two dimensions.
            layers: K.
            hidden: the width of the two hidden layers in (4).
            seed: of the random weights A and B.
        """
        if gaussian.batch_shape:
            raise ValueError("a coupling flow begins around one Gaussian, not around a batch of them")
        check_count("layers", layers)
        check_count("hidden", hidden)
        if gaussian.dim < 2:
            raise ValueError(
                "a coupling layer moves some coordinates given the others, and dim=1 has only one; "
                'use ZukoFlow.init(1, "spline") or a PlanarFlow'
            )
        q = gaussian.in_form("covariance")
        rng = generator(seed, q.device, "family")
        parameters = {}
        for key, shape in _shapes(q.dim, layers, hidden).items():
            kind = key.partition(".")[0]
            size = {"in": 1 / math.sqrt(shape[0]), "in_bias": 0.5, "mid": 1 / math.sqrt(hidden)}.get(kind, 0)
            noise = torch.randn(shape, generator=rng, dtype=q.dtype, device=q.device)
            parameters[key] = size * noise
        return cls({**parameters, "location": q.mean.detach(), "factor": q.factor.detach()})

    @classmethod
    def init(
        cls,
        dim: int,
        layers: int = 4,
        hidden: int = 32,
        *,
        scale: float = 1.0,
        mean: Tensor | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """The flow around N(mean, scale^2 I); the mean is zero by default."""
        location = initial_mean(dim, mean, None, dtype, device)
        gaussian = FullGaussian.init(dim, scale=scale, mean=location, dtype=dtype, device=device)
        return cls.around(gaussian, layers, hidden, seed=seed)

    # -- parameters ------------------------------------------------------------------------------

    def parameters(self) -> Parameters:
        return dict(self._parameters)

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new._parameters = {key: parameters[key] for key in self._parameters}
        new.dim, new.layers, new.hidden = self.dim, self.layers, self.hidden
        return new

    def config(self) -> dict[str, Any]:
        return {"dim": self.dim, "layers": self.layers, "hidden": self.hidden}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        family = cls({key: parameters[key] for key in _shapes(**config)})
        if family.config() != config or len(parameters) != len(family.parameters()):
            raise ValueError(f"the parameters belong to {family.config()}, not to the configuration {config}")
        return family

    @property
    def batch_shape(self) -> torch.Size:
        return self._parameters["location"].shape[:-1]

    # -- density ---------------------------------------------------------------------------------

    def transform(self, noise: Tensor) -> Tensor:
        z = self._points(noise)
        for k in range(self.layers, 0, -1):
            u, v = self._halves(z, k)
            s, t = self._conditioned(u, k)
            z = self._joined(u, v * s.exp() + t, k)  # (3)
        y = self._row("shift") + self._row("log_scale").exp() * z
        return self._row("location").detach() + y @ self._parameters["factor"].detach().mT  # (1)

    def log_prob(self, x: Tensor) -> Tensor:
        if self._points(x).dim() == 1:
            return self.log_prob(x.unsqueeze(0)).squeeze(-1)
        L, log_scale = self._parameters["factor"].detach(), self._row("log_scale")
        d = x - self._row("location").detach()
        y = torch.linalg.solve_triangular(L.mT, d, upper=True, left=False)
        z = (y - self._row("shift")) * (-log_scale).exp()
        log_det = log_scale.sum(-1) + L.diagonal(dim1=-2, dim2=-1).log().sum(-1, keepdim=True)
        for k in range(1, self.layers + 1):
            u, v = self._halves(z, k)
            s, t = self._conditioned(u, k)
            z = self._joined(u, (v - t) * (-s).exp(), k)
            log_det = log_det + s.sum(-1)
        return -0.5 * (z.square().sum(-1) + self.dim * LOG_2PI) - log_det  # (5)

    def score(self, x: Tensor) -> Tensor:
        wanted = x.requires_grad or any(v.requires_grad for v in self._parameters.values())
        create_graph = torch.is_grad_enabled() and wanted
        with torch.enable_grad():
            point = x if x.requires_grad else x.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.log_prob(point).sum(), point, create_graph=create_graph)
        return g

    def _row(self, key: str) -> Tensor:
        """A vector (*batch, n) as (*batch, 1, n), which broadcasts over points."""
        return self._parameters[key].unsqueeze(-2)

    def _halves(self, z: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """u, which stays, and v, which moves, in layer k."""
        first, second = z[..., : self.dim // 2], z[..., self.dim // 2 :]
        return (first, second) if k % 2 else (second, first)

    @staticmethod
    def _joined(u: Tensor, v: Tensor, k: int) -> Tensor:
        return torch.cat([u, v] if k % 2 else [v, u], -1)

    def _conditioned(self, u: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """s and t of layer k, (4)."""
        p = self._parameters
        h = torch.tanh(u @ p[f"in.{k}"] + self._row(f"in_bias.{k}"))
        h = torch.tanh(h @ p[f"mid.{k}"] + self._row(f"mid_bias.{k}"))
        t, r = (h @ p[f"out.{k}"] + u @ p[f"skip.{k}"]).chunk(2, -1)
        return LOG_SCALE * torch.tanh(r / LOG_SCALE), t

    def _describe(self) -> str:
        return f"dim={self.dim}, layers={self.layers}, hidden={self.hidden}"


def _shapes(dim: int, layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters, without a batch."""
    shapes: dict[str, tuple[int, ...]] = {
        "location": (dim,),
        "factor": (dim, dim),
        "shift": (dim,),
        "log_scale": (dim,),
    }
    for k in range(1, layers + 1):
        first, second = dim // 2, dim - dim // 2
        given, moved = (first, second) if k % 2 else (second, first)
        shapes |= {
            f"in.{k}": (given, hidden),
            f"in_bias.{k}": (hidden,),
            f"mid.{k}": (hidden, hidden),
            f"mid_bias.{k}": (hidden,),
            f"out.{k}": (hidden, 2 * moved),
            f"skip.{k}": (given, 2 * moved),
        }
    return shapes

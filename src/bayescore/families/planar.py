"""Planar flow: L rank-one maps of a standard normal, then a learned diagonal affine map.

    x = shift + exp(log_scale) * z_L,   z_l = f_l(z_{l-1}),   z_0 ~ N(0, I)                     (1)
    f(z) = z + uhat tanh(a),   a = w.z + b                                                      (2)
    uhat = u + (m(w.u) - w.u) w / |w|^2,   m(v) = -1 + softplus(v),   c = w.uhat = m(w.u) > -1  (3)
    log|det f'(z)| = log d,   d = 1 + c h' = tanh(a)^2 + (1 + c) h',   h' = 1 - tanh(a)^2       (4)

To evaluate the density at a given x, (2) is inverted. Its only unknown is the number a, the root of

    a + c tanh(a) = t,   t = w.f(z) + b,   da = (dt - tanh(a) dc) / d                           (5)

The left side is odd and increasing. For t > 0 the root lies between t and t - c, on the same side of
t / (1 + c), and there the left side is concave (c > 0) or convex (c < 0): from the proper end of the bracket
Newton's method converges monotonically. The score needs one O(D) recursion over the layers, upward from
s_0 = -z_0, with h'' = -2 tanh(a) h':

    s_l = s_{l-1} - w [ c h'' / d^2 + h' (uhat.s_{l-1}) / d ],   score(x) = exp(-log_scale) * s_L   (6)

The entries of a layer's directions are of the size 1/sqrt(D), and Adam moves every parameter by about its
rate: a layer of thousands of dimensions would turn by a large part of itself at every step. From 100
dimensions on `init` therefore stores u and w in units of 1/sqrt(D), in which they are of size 1 (`unit`).

Without the affine map this is the flow of Rezende and Mohamed (2015), "Variational Inference with Normalizing
Flows"; a layer then moves the density along uhat only, and every other direction keeps unit variance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from bayescore.checks import check_count, check_number, check_shape
from bayescore.families.base import Family, Parameters
from bayescore.rng import generator

__all__ = ["PlanarFlow"]

#: above this argument softplus is the identity to the last bit of float64 (torch's default threshold is 20)
_LINEAR = 50.0
#: w.u of the identity: (3) gives c = 0
_IDENTITY = math.log(math.e - 1.0)
#: Newton's method takes about five steps, and twenty if c is 1e12
_MAX_STEPS = 100
#: from this dimension on `init` stores directions in units of their size
_MANY = 100


class _Layer(NamedTuple):
    """One layer, its vectors ready to broadcast with points: (D,) and (), or (F, 1, D) and (F, 1)."""

    uhat: Tensor
    w: Tensor
    b: Tensor
    p: Tensor  # 1 + c, computed directly because 1 + c loses every digit as c -> -1


class PlanarFlow(Family):
    """The density of x in (1), or a batch of F of them.

    Shapes: u and w (*batch, L, D), b (*batch, L), shift and log_scale (*batch, D) or both None. u and w are
    multiplied by `unit` before (2) and (3).
    """

    name: ClassVar[str] = "planar"

    def __init__(
        self,
        u: Tensor,
        w: Tensor,
        b: Tensor,
        shift: Tensor | None = None,
        log_scale: Tensor | None = None,
        *,
        unit: float = 1.0,
    ) -> None:
        check_number("unit", unit)
        self.unit = unit
        check_shape("u", u, ("layers", "dim"))
        if u.dim() > 3 or 0 in u.shape:
            raise ValueError(
                f"u must be (layers, dim) or (batch, layers, dim), and not empty; got {tuple(u.shape)}"
            )
        if (shift is None) != (log_scale is None):
            raise ValueError("the affine map needs both shift and log_scale; give both, or neither")
        self.u, self.w, self.b, self.shift, self.log_scale, self.dim = u, w, b, shift, log_scale, u.shape[-1]
        points = (*u.shape[:-2], self.dim)
        expected = {"u": u.shape, "w": u.shape, "b": u.shape[:-1], "shift": points, "log_scale": points}
        for key, value in self.parameters().items():
            check_shape(key, value, tuple(expected[key]))
            if value.dim() != len(expected[key]) or value.dtype != u.dtype:
                raise ValueError(
                    f"{key} must be {tuple(expected[key])} {u.dtype} to go with u; "
                    f"got {tuple(value.shape)} {value.dtype}"
                )
        if bool((w == 0).all(-1).any()):
            raise ValueError("every layer needs a direction, but a row of w is zero; give it a nonzero entry")

    @classmethod
    def init(
        cls,
        dim: int,
        layers: int = 1,
        *,
        affine: bool = True,
        seed: int | torch.Generator | None = 0,
        scale: float = 1.0,
        mean: Tensor | Sequence[float] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Close to N(mean, scale^2 I), with random directions of the layers.

        A layer is the identity at uhat = 0, that is at u = log(e - 1) w / |w|^2 and not at u = 0. There the
        gradients in w and b vanish, so u is initialised close to that value but not at it.
        """
        check_count("dim", dim)
        check_count("layers", layers)
        if not (0 < scale < math.inf):
            raise ValueError(f"scale must be positive and finite; got {scale}")
        if not affine and (scale != 1.0 or mean is not None):
            raise ValueError("a bare planar flow starts at N(0, I); keep affine=True to give scale or mean")
        rng = generator(seed, device, "family")
        w, perturbation = torch.randn((2, layers, dim), generator=rng, dtype=dtype, device=device)
        w = w / w.norm(dim=-1, keepdim=True)
        u = _IDENTITY * w + 0.1 * perturbation / math.sqrt(dim)
        b = torch.zeros(layers, dtype=dtype, device=device)
        unit = 1.0 if dim < _MANY else dim**-0.5
        u, w = u / unit, w / unit
        if not affine:
            return cls(u, w, b, unit=unit)
        shift = torch.zeros(dim, dtype=dtype, device=device)
        if mean is not None:
            shift = torch.as_tensor(mean, dtype=dtype, device=device).clone()
        log_scale = torch.full((dim,), math.log(scale), dtype=dtype, device=device)
        return cls(u, w, b, shift, log_scale, unit=unit)

    # -- parameters ------------------------------------------------------------------------------

    @property
    def layers(self) -> int:
        """The number L of planar layers."""
        return self.u.shape[-2]

    @property
    def affine(self) -> bool:
        """Whether a learned diagonal affine map follows the layers."""
        return self.shift is not None

    @property
    def batch_shape(self) -> torch.Size:
        return self.u.shape[:-2]

    def parameters(self) -> Parameters:
        parameters = {"u": self.u, "w": self.w, "b": self.b}
        if self.shift is not None and self.log_scale is not None:
            parameters |= {"shift": self.shift, "log_scale": self.log_scale}
        return parameters

    def replace(self, parameters: Parameters) -> Self:
        new = object.__new__(type(self))
        new.unit = self.unit
        new.u, new.w, new.b = parameters["u"], parameters["w"], parameters["b"]
        new.shift, new.log_scale, new.dim = parameters.get("shift"), parameters.get("log_scale"), self.dim
        return new

    def config(self) -> dict[str, Any]:
        shape = {"dim": self.dim, "layers": self.layers, "affine": self.affine}
        return shape if self.unit == 1.0 else shape | {"unit": self.unit}

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        family = cls(**parameters, unit=config.get("unit", 1.0))
        if family.config() != config:
            raise ValueError(f"the parameters belong to {family.config()}, not to the configuration {config}")
        return family

    # -- density ---------------------------------------------------------------------------------

    def transform(self, noise: Tensor) -> Tensor:
        z = self._checked(noise)
        for layer in self._layers():
            z = z + torch.tanh(_dot(z, layer.w) + layer.b).unsqueeze(-1) * layer.uhat  # (2)
        if self.shift is None or self.log_scale is None:
            return z
        return self._rows(self.shift) + self._rows(self.log_scale).exp() * z

    def log_prob(self, x: Tensor) -> Tensor:
        z, roots = self._invert(x)
        value = -0.5 * (z * z).sum(-1) - 0.5 * self.dim * math.log(2 * math.pi)
        for layer, a in roots:
            value = value - _layer_derivative(a, layer.p).log()  # (4)
        return value if self.log_scale is None else value - self._rows(self.log_scale).sum(-1)

    def score(self, x: Tensor) -> Tensor:
        z, roots = self._invert(x)
        s = -z
        for layer, a in roots:  # (6)
            h1, d = _tanh_derivative(a), _layer_derivative(a, layer.p)
            curvature = -2.0 * (layer.p - 1.0) * torch.tanh(a) / d
            s = s - (h1 / d * (curvature + _dot(s, layer.uhat))).unsqueeze(-1) * layer.w
        return s if self.log_scale is None else s * (-self._rows(self.log_scale)).exp()

    def _invert(self, x: Tensor) -> tuple[Tensor, list[tuple[_Layer, Tensor]]]:
        """The noise z_0 behind x, and every layer with its root a, first layer first."""
        z = self._checked(x)
        if self.shift is not None and self.log_scale is not None:
            z = (z - self._rows(self.shift)) * (-self._rows(self.log_scale)).exp()
        roots = []
        for layer in reversed(self._layers()):
            a = _root(_dot(z, layer.w) + layer.b, layer.p)
            z = z - torch.tanh(a).unsqueeze(-1) * layer.uhat
            roots.append((layer, a))
        return z, roots[::-1]

    def _layers(self) -> list[_Layer]:
        u, w, b = self.unit * self.u, self.unit * self.w, self.b
        v = (w * u).sum(-1, keepdim=True)  # (*batch, L, 1)
        # m(v) - v = softplus(-v) - 1, which does not cancel when v is large
        uhat = u + (softplus(-v, threshold=_LINEAR) - 1.0) / (w * w).sum(-1, keepdim=True) * w  # (3)
        p = softplus(v, threshold=_LINEAR).squeeze(-1)  # (*batch, L)
        if self.batch_shape:  # a dimension for the S points of every density
            uhat, w, b, p = (value.unsqueeze(1) for value in (uhat, w, b, p))  # (F, 1, L, ...)
        parts = (uhat.unbind(-2), w.unbind(-2), b.unbind(-1), p.unbind(-1))
        return [_Layer(*layer) for layer in zip(*parts, strict=True)]

    def _rows(self, value: Tensor) -> Tensor:
        """(D,) unchanged; (F, D) as (F, 1, D), which broadcasts with points (F, S, D)."""
        return value.unsqueeze(-2) if self.batch_shape else value

    def _checked(self, x: Tensor) -> Tensor:
        batch = self.batch_shape
        if x.dim() < 1 or x.shape[-1] != self.dim or (batch and (x.dim() != 3 or x.shape[:1] != batch)):
            expected = f"({batch[0]}, S, {self.dim})" if batch else f"(..., {self.dim})"
            raise ValueError(f"points must have the shape {expected}; got {tuple(x.shape)}")
        return x

    def _describe(self) -> str:
        return f"dim={self.dim}, layers={self.layers}" + (", affine" if self.affine else "")


def _dot(x: Tensor, v: Tensor) -> Tensor:
    """x . v for x (..., D); v is (D,), the same for all points, or (F, 1, D), one per density."""
    return x @ v if v.dim() == 1 else (x @ v.mT).squeeze(-1)


def _tanh_derivative(a: Tensor) -> Tensor:
    """h' = 1 - tanh(a)^2, exact in the tails and smooth at 0."""
    return 4.0 * torch.sigmoid(2.0 * a) * torch.sigmoid(-2.0 * a)


def _layer_derivative(a: Tensor, p: Tensor) -> Tensor:
    """d in (4): a sum of positive terms."""
    return torch.tanh(a).square() + p * _tanh_derivative(a)


def _root(t: Tensor, p: Tensor) -> Tensor:
    root: Tensor = _Root.apply(*torch.broadcast_tensors(t, p))  # type: ignore[no-untyped-call]
    return root


class _Root(torch.autograd.Function):
    """The root a(t, p) of (5), differentiable any number of times by its implicit derivative."""

    @staticmethod
    def forward(t: Tensor, p: Tensor) -> Tensor:
        return _solve(t.abs(), p) * t.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, p = ctx.saved_tensors
        dt = grad / _layer_derivative(a, p)
        return dt, -torch.tanh(a) * dt

    @staticmethod
    def vmap(_info: Any, in_dims: tuple[int | None, int | None], *inputs: Tensor) -> tuple[Tensor, int]:
        t, p = (v if d is None else v.movedim(d, 0) for v, d in zip(inputs, in_dims, strict=True))
        return _root(t, p), 0


def _solve(t: Tensor, p: Tensor) -> Tensor:
    """The root a of (5) for t >= 0, to rounding: Newton in a bracket, bisection where a step leaves it."""
    limits = torch.finfo(t.dtype)
    c = p - 1.0
    ratio = t / p.clamp_min(limits.tiny)
    # for c < 0 and a <= 1, a - tanh(a) >= a^3 / 5 bounds the root where t / (1 + c) is useless
    cube = 5.0 * t / c.abs().clamp_min(limits.tiny)
    cubic = torch.where(cube <= 1.0, cube.clamp(max=1.0) ** (1.0 / 3.0), torch.inf)
    low = torch.where(c > 0, torch.maximum(t - c, ratio), t)
    high = torch.where(c > 0, t, torch.minimum(torch.minimum(t - c, ratio), cubic))
    a = torch.where(c > 0, low, high)
    for _ in range(_MAX_STEPS):
        h = torch.tanh(a)
        excess = (a - h) + p * h - t
        unsolved = excess.abs() > 4.0 * limits.eps * (a + p * h + t)
        if not bool(unsolved.any()):
            break
        low, high = torch.where(excess < 0, a, low), torch.where(excess < 0, high, a)
        step = a - excess / _layer_derivative(a, p)
        step = torch.where((step >= low) & (step <= high), step, 0.5 * (low + high))
        a = torch.where(unsolved, step, a)
    return a

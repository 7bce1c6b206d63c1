"""Any flow of the zuko library as a variational family: one density, or a batch of F = 1.

    log q(x) = log N(z; 0, I) + log|det dz/dx|,   z = F_lambda(x)          (1)
    x = F_lambda^{-1}(e),   e ~ N(0, I)                                    (2)
    score(x) = grad_x log q(x), by automatic differentiation               (3)

The parameters lambda are those of the zuko module by name. They are passed to a private copy of the module at
every call, so the user's module is never changed.

Score matching differentiates (3) once more in lambda, so F should be smooth: `init` uses SiLU networks, not
zuko's default ReLU. A spline flow has a continuous density whose score jumps at the knots of the splines.

Importing zuko turns off the argument checks of `torch.distributions` for the whole process. zuko is imported
when the first flow is made.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.distributions import AffineTransform, Independent, Normal, Transform
from torch.func import functional_call

from bayescore.checks import check_count, unknown_name
from bayescore.families.base import Family, Parameters
from bayescore.rng import generator

__all__ = ["ZukoFlow"]

_RECIPES = ("realnvp", "spline")


class ZukoFlow(Family):
    """The density of an unconditional zuko `Flow` whose base is a standard normal.

    Arguments:
        flow: a `zuko.lazy.Flow`, for instance `zuko.flows.MAF(3)`. It is copied.
    """

    name: ClassVar[str] = "zuko"
    lr: ClassVar[float] = 0.001

    def __init__(self, flow: nn.Module) -> None:
        if not isinstance(flow, _zuko().lazy.Flow):
            raise TypeError(f"ZukoFlow wraps a zuko Flow, a transform of a base; got {type(flow).__name__}")
        self._parameters: Parameters = {k: v.detach().clone() for k, v in flow.named_parameters()}
        if not self._parameters:
            raise ValueError(f"the flow {type(flow).__name__} has no parameters, so there is nothing to fit")
        self._module = _Evaluation(copy.deepcopy(flow).eval().requires_grad_(False))
        self._first_dims = next(iter(self._parameters.values())).dim()
        self._batched = False  # whether every parameter has a leading dimension of 1
        self._recipe: dict[str, Any] = {"flow": "custom"}
        self.dim = _standard_normal_dim(flow)
        self._once_differentiable = False
        try:
            self._once_differentiable = self._has_no_second_derivative()
        except (AttributeError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"the flow {type(flow).__name__} cannot be evaluated alone; build it without a context"
            ) from error

    @classmethod
    def init(
        cls,
        dim: int,
        flow: str = "realnvp",
        transforms: int = 3,
        hidden: Sequence[int] = (64, 64),
        *,
        seed: int | torch.Generator | None = 0,
        scale: float = 1.0,
        mean: Tensor | Sequence[float] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Coupling layers, affine ("realnvp") or splines ("spline"), roughly N(mean, scale^2 I) at first.

        A learned diagonal affine map comes last, x = shift + exp(log_scale) * y: splines act on [-5, 5] only.
        """
        recipe = {"flow": flow, "dim": dim, "transforms": transforms, "hidden": list(hidden)}
        if not (0 < scale < math.inf):
            raise ValueError(f"scale must be positive and finite; got {scale}")
        family = cls._from_recipe(recipe, seed).to(dtype=dtype, device=device)
        log_scale = torch.full((dim,), math.log(scale), dtype=dtype, device=device)
        shift = torch.zeros_like(log_scale)
        if mean is not None:
            shift = torch.as_tensor(mean, dtype=dtype, device=device).clone()
        if shift.shape != (dim,):
            raise ValueError(f"mean must have the shape ({dim},); got {tuple(shift.shape)}")
        affine = {"transform.transforms.0.shift": shift, "transform.transforms.0.log_scale": log_scale}
        return family.replace(family.parameters() | affine)

    @classmethod
    def _from_recipe(cls, recipe: dict[str, Any], seed: int | torch.Generator | None) -> Self:
        zuko = _zuko()
        flow, dim, transforms, hidden = (recipe[key] for key in ("flow", "dim", "transforms", "hidden"))
        if flow not in _RECIPES:
            raise unknown_name("flow recipe", flow, _RECIPES)
        check_count("dim", dim)
        check_count("transforms", transforms)
        for width in hidden:
            check_count("a hidden width", width)
        if flow == "realnvp" and dim == 1:
            raise ValueError(
                "a RealNVP layer moves some coordinates given the others, and dim=1 has only one; "
                'use flow="spline" or a PlanarFlow'
            )
        options = {"transforms": transforms, "hidden_features": tuple(hidden), "activation": nn.SiLU}
        inner_seed = int(torch.randint(2**62, (), generator=generator(seed, purpose="family")))
        # zuko draws from the global generator: seed it, and restore it afterwards
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(inner_seed)
            if flow == "realnvp":
                body = zuko.flows.RealNVP(dim, **options)
            else:
                body = zuko.flows.NSF(dim, passes=2, **options)  # two passes: coupling layers
        if dim == 1:  # no network: the splines' own parameters are drawn from N(0, 1), far from the identity
            for value in body.parameters():
                value.detach().mul_(0.1)
        affine = {"shift": torch.zeros(dim), "log_scale": torch.zeros(dim)}
        first = zuko.lazy.UnconditionalTransform(_standardise, **affine)
        family = cls(zuko.lazy.Flow([first, *body.transform.transforms], body.base))
        family._recipe = recipe
        return family

    # -- parameters ------------------------------------------------------------------------------

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([1] if self._batched else [])

    def parameters(self) -> Parameters:
        return dict(self._parameters)

    def replace(self, parameters: Parameters) -> Self:
        new = copy.copy(self)
        new._parameters = {key: parameters[key] for key in self._parameters}  # in the module's own order
        new._batched = next(iter(parameters.values())).dim() > self._first_dims
        return new

    def config(self) -> dict[str, Any]:
        return copy.deepcopy(self._recipe)

    @classmethod
    def rebuild(cls, config: dict[str, Any], parameters: Parameters) -> Self:
        if config["flow"] == "custom":
            raise ValueError(
                "this ZukoFlow was made around your own module, which a file does not hold; "
                "build the module again and use ZukoFlow(module).replace(parameters)"
            )
        family = cls._from_recipe(config, seed=0)
        own = family.parameters()
        batches = [torch.Size(), torch.Size([1])]
        fits = own.keys() == parameters.keys() and any(
            all(parameters[k].shape == batch + v.shape for k, v in own.items()) for batch in batches
        )
        if not fits:
            raise ValueError(f"the parameters do not have the names and shapes of the configuration {config}")
        return family.replace(parameters)

    @classmethod
    def stack(cls, members: Sequence[Self]) -> Self:
        if len(members) > 1:
            raise ValueError(
                f"a ZukoFlow holds one density, so {len(members)} of them make no batch; fit them one by one"
            )
        return super().stack(members)

    # -- density ---------------------------------------------------------------------------------

    def transform(self, noise: Tensor) -> Tensor:
        return self._evaluate("transform", noise)  # (2)

    def log_prob(self, x: Tensor) -> Tensor:
        return self._evaluate("log_prob", x)  # (1)

    def score(self, x: Tensor) -> Tensor:
        wanted = x.requires_grad or any(v.requires_grad for v in self._parameters.values())
        create_graph = torch.is_grad_enabled() and wanted
        if create_graph and self._once_differentiable:
            raise ValueError(
                f"a {type(self._module.flow).__name__} can be differentiated once, so its score cannot be; "
                "for score matching use a coupling or autoregressive flow, such as RealNVP, MAF or NSF"
            )
        with torch.enable_grad():
            point = x if x.requires_grad else x.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.log_prob(point).sum(), point, create_graph=create_graph)  # (3)
        return g

    def _evaluate(self, what: str, x: Tensor) -> Tensor:
        if x.dim() < 1 or x.shape[-1] != self.dim:
            raise ValueError(f"points must have the shape (..., {self.dim}); got {tuple(x.shape)}")
        state = {k: v[0] for k, v in self._parameters.items()} if self._batched else dict(self._parameters)
        for key, buffer in self._module.flow.named_buffers():
            state[key] = buffer.to(self.device, self.dtype if buffer.is_floating_point() else None)
        value: Tensor = functional_call(self._module, {f"flow.{k}": v for k, v in state.items()}, (what, x))
        return value

    def _has_no_second_derivative(self) -> bool:
        """Whether zuko integrates this flow numerically.

        zuko's quadrature and ODE solver are marked "once differentiable". torch puts a node named Error into
        the graph of such a gradient, but a gradient in lambda bypasses that node and would be silently wrong.
        """
        parameters = {k: v.detach().requires_grad_() for k, v in self._parameters.items()}
        with torch.enable_grad():
            x = torch.zeros(self.dim, dtype=self.dtype, device=self.device)
            todo, seen = [self.replace(parameters).score(x).grad_fn], set()
        while todo:
            node = todo.pop()
            if node is not None and node not in seen:
                seen.add(node)
                todo += [parent for parent, _ in node.next_functions]
        return any(node.name().endswith("::Error") for node in seen)

    def _describe(self) -> str:
        recipe = self._recipe
        if recipe["flow"] == "custom":
            return f"dim={self.dim}, {type(self._module.flow).__name__}"
        return f"dim={self.dim}, {recipe['flow']}, transforms={recipe['transforms']}"


class _Evaluation(nn.Module):
    """Builds the lazy distribution and evaluates it in one call, as `functional_call` needs it."""

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, what: str, x: Tensor) -> Tensor:
        density = self.flow()
        value: Tensor = density.log_prob(x) if what == "log_prob" else density.transform.inv(x)
        return value


def _standardise(shift: Tensor, log_scale: Tensor) -> Transform:
    return AffineTransform(shift, log_scale.exp(), event_dim=1).inv


def _standard_normal_dim(flow: nn.Module) -> int:
    """The dimension of the flow's base, which must be a fixed N(0, I)."""
    base = inner = flow.base()  # type: ignore[operator]
    while isinstance(inner, Independent):
        inner = inner.base_dist
    fixed = not any(True for _ in flow.base.parameters())  # type: ignore[union-attr]
    normal = isinstance(inner, Normal) and bool((inner.loc == 0).all() and (inner.scale == 1).all())
    if not (fixed and normal and inner.loc.dim() == 1):
        raise ValueError(f"the base of the flow must be a fixed standard normal on R^D; got {base}")
    return int(inner.loc.shape[0])


def _zuko() -> Any:
    try:
        import zuko
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("ZukoFlow needs zuko: pip install 'bayescore[flows]'") from error
    return zuko

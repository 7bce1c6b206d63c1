"""Any family over all weights of a network, moved by a functional method on mini-batch scores.

The weights are one vector theta in R^D (posteriors/family.py). With the mean loss l of a mini-batch, N data,
temperature tau and the prior N(0, s0^2 I),
    s_hat(theta) = -(N / tau) grad l(theta) - theta / s0^2                                                 (1)
is an unbiased estimate of the score of the tempered posterior, and that is all that a method asks of a
target: `step` makes one step of the method (methods/), for which the closure runs forward and backward once
per draw. Between two steps the module holds the centre of the family.

The family keeps its own precision: float64, as `init` gives it, because at small temperatures the scores of
(1) and their squares do not fit into float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayescore.checks import check_count
from bayescore.families import Family
from bayescore.methods import ADVI, Method, ProximalDescent, State
from bayescore.optim.distributed import check_whole
from bayescore.optim.options import check_num_data, positive
from bayescore.posteriors.family import FamilyPosterior, central_point, split_weights
from bayescore.rng import Streams

__all__ = ["FamilyOptimizer"]


class FamilyOptimizer(torch.optim.Optimizer):
    """One method on one family over all the parameters that it is given.

    Arguments:
        num_data: N, the size of the training set.
        family: q0 on R^D, D the number of weights; its centre need not be the module's weights.
        method: ProximalDescent or ADVI of `bs.methods`, whose schedule of lr is that of the parameter group.
        steps: T, the planned number of steps, for alpha_t = t/T; None: alpha is always 1/2.
        prior_sd: s0; float("inf") is flat.
        temperature: tau.
        seed: of the draws.
        max_skips: steps in a row that may be left out for scores that are not finite.

    >>> from bayescore.families import PlanarFlow
    >>> from bayescore.methods import ADVI
    >>> model = nn.Linear(2, 1)
    >>> opt = FamilyOptimizer(model.parameters(), 100, PlanarFlow.init(3, scale=0.1), ADVI(lr=1e-3))
    >>> x, y = torch.ones(5, 2), torch.zeros(5, 1)
    >>> def closure():
    ...     loss = (model(x) - y).square().mean()
    ...     loss.backward()
    ...     return loss
    >>> loss = opt.step(closure)
    >>> opt.posterior(model, "gaussian").family
    PlanarFlow(dim=3, layers=1, affine, float64, cpu)
    """

    def __init__(
        self,
        params: Any,
        num_data: int,
        family: Family,
        method: ProximalDescent | ADVI,
        *,
        steps: int | None = None,
        prior_sd: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
        max_skips: int = 50,
    ) -> None:
        check_num_data(num_data)
        positive("prior_sd", prior_sd, infinite=True)
        positive("temperature", temperature)
        check_count("max_skips", max_skips)
        if steps is not None:
            check_count("steps", steps)
        if not isinstance(method, ProximalDescent | ADVI):
            raise TypeError(f"{type(method).__name__} serves no mini-batches; use ProximalDescent or ADVI")
        if type(family).__name__ not in method.serves:
            raise TypeError(f"{type(method).__name__} serves {', '.join(method.serves)}; got {family!r}")
        lr = family.lr if method.lr is None else method.lr
        super().__init__(params, {"lr": lr})
        if len(self.param_groups) > 1:
            raise ValueError("one family holds all weights together; pass one group of parameters")
        weights = self.param_groups[0]["params"]
        check_whole(weights, "a density over all weights together needs")
        size = sum(p.numel() for p in weights)
        if family.dim != size or family.batch_shape:
            raise ValueError(f"the weights need one density on R^{size}; got {family!r}")
        self.num_data, self.prior_sd, self.temperature = num_data, prior_sd, temperature
        self.max_skips = max_skips
        self.method: ProximalDescent | ADVI = method
        if steps is None and isinstance(method, ProximalDescent) and method.alpha == "linear":
            self.method = dataclasses.replace(method, alpha=0.5)
        density = family.in_form(method.form).to(weights[0].device)
        self._state: State = method.init(type(density).stack([density]), steps or 1)
        self._streams = Streams([seed], dtype=density.dtype, device=density.device)
        self._counts = {"updates": 0, "skipped": 0, "skipped_in_a_row": 0}

    @property
    def family(self) -> Family:
        """The current q."""
        return self._state.family[0]

    @property
    def status(self) -> str:
        """One sentence: how many updates were made, and how many left out."""
        lost = self._counts["skipped"]
        left_out = f"; {lost} left out because a score was not finite" if lost else ""
        return f"{self._counts['updates']} updates of {self.family!r}{left_out}"

    def posterior(self, model: nn.Module, likelihood: Any = "categorical") -> FamilyPosterior:
        """The current posterior over the weights of `model`; later steps do not change it."""
        own = list(model.named_parameters())
        ours = {id(p) for p in self._weights}
        names = [name for name, p in own if id(p) in ours]
        if [id(p) for _, p in own if id(p) in ours] != [id(p) for p in self._weights]:
            raise ValueError(
                "the optimizer's weights are not those of the model in its order; "
                "pass the model whose parameters() the optimizer was given"
            )
        family = self.family
        copied = family.replace({key: value.clone() for key, value in family.parameters().items()})
        return FamilyPosterior(model, copied, names, likelihood=likelihood)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the method; the closure runs forward and backward, once per draw."""
        if closure is None:
            raise TypeError("step() needs a closure that runs forward and backward and returns the mean loss")
        lr = self.param_groups[0]["lr"]
        method: Method = dataclasses.replace(self.method, lr=lr, schedule="constant")
        scores = _MiniBatchScores(self, closure)
        try:
            with torch.no_grad():
                new, _ = method.step(self._state, scores, self._streams)
            if scores.finite and all(bool(value.isfinite().all()) for value in new.tensors().values()):
                self._state = new
                self._counts |= {"updates": self._counts["updates"] + 1, "skipped_in_a_row": 0}
            else:
                self._skip(lr)
        finally:
            self._write(central_point(self.family))
        return sum(scores.losses) / len(scores.losses)

    def _skip(self, lr: float) -> None:
        self._counts["skipped"] += 1
        self._counts["skipped_in_a_row"] += 1
        if self._counts["skipped_in_a_row"] >= self.max_skips:
            raise FloatingPointError(
                f"{self.max_skips} steps in a row had scores that were not finite; lower lr ({lr:g}), start "
                "narrower (scale=), or check the data"
            )

    @property
    def _weights(self) -> list[nn.Parameter]:
        weights: list[nn.Parameter] = self.param_groups[0]["params"]
        return weights

    @torch.no_grad()
    def _write(self, theta: Tensor) -> None:
        """Copy one point (D,) into the module."""
        parts = split_weights(theta, [p.shape for p in self._weights])
        for p, part in zip(self._weights, parts, strict=True):
            p.copy_(part)
        torch.clear_autocast_cache()  # it holds copies of weights that have just changed

    # -- checkpoints -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of the method, its random stream and its counters, beside torch's groups."""
        return super().state_dict() | {
            "method": self.method.name,
            "step": self._state.step,
            "tensors": self._state.tensors(),
            "stream": self._streams.state(),
            "counts": dict(self._counts),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method, family and weights, bitwise."""
        try:
            found, own = state_dict["tensors"], self._state.tensors()
            name, step, stream = state_dict["method"], state_dict["step"], state_dict["stream"]
            counts = {key: state_dict["counts"][key] for key in self._counts}
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is not a state dict of a FamilyOptimizer: {error!r}") from error
        if name != self.method.name:
            raise ValueError(f"the checkpoint was made by the method {name!r}, not {self.method.name!r}")
        for key in {**own, **found}:
            if key not in own or key not in found or found[key].shape != own[key].shape:
                raise ValueError(f"the checkpoint is of another family: its tensor {key} differs")
            if not found[key].isfinite().all():
                raise ValueError(f"the checkpoint is damaged: its tensor {key} is not finite")
        for key, value in {"step": step, **counts}.items():
            check_count(key, value, 0)
        self._streams.restore(stream)
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        tensors = {key: value.to(own[key]) for key, value in found.items()}
        self._state = dataclasses.replace(self._state.with_tensors(tensors), step=step)
        self._counts = counts


class _MiniBatchScores:
    """The scores (1) as a method asks for them: the weights become each point in turn."""

    has_density = False

    def __init__(self, optimizer: FamilyOptimizer, closure: Callable[[], Any]) -> None:
        self._optimizer, self._closure = optimizer, closure
        self.losses: list[float] = []
        self.finite = True

    def score(self, x: Tensor) -> Tensor:
        """s_hat at points (1, S, D)."""
        found = torch.stack([self._at(theta) for theta in x[0]]).unsqueeze(0)
        if not bool(found.isfinite().all()):
            self.finite = False
            return torch.zeros_like(x)
        return found

    def _at(self, theta: Tensor) -> Tensor:
        o = self._optimizer
        o._write(theta)
        o.zero_grad()
        with torch.enable_grad():
            loss = self._closure()
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in o._weights]
        gradient = torch.cat([part.detach().flatten() for part in parts]).to(theta)
        return gradient.mul_(-o.num_data / o.temperature).sub_(theta, alpha=o.prior_sd**-2.0)  # (1)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise TypeError(f"mini-batches have scores but no density (asked at points {tuple(x.shape)})")

    def hessian_product(self, x: Tensor, v: Tensor) -> Tensor:  # noqa: ARG002
        raise TypeError(f"mini-batches have scores but no Hessian (asked at points {tuple(x.shape)})")

"""What every network optimizer shares: the draw of weights, its gradient, the step, and the checkpoint.

    with opt.sample():            # weights theta = mean + sd * eps are written into the module
        loss.backward()           # any number of times: one draw, `.grad` becomes the mean-loss gradient
    opt.step(); opt.zero_grad()   # the mean has been back in the module since the block ended

Units. The user gives the mean loss l(theta) and N = num_data; tau is the temperature, N(m0, s0^2) the prior. With
c = tau/N the score of the posterior is
    s(theta) = -(1/c) (grad l(theta) + delta (theta - m0)),      delta = c/s0^2                       (1)
and everything is computed in per-datum units, c s, which stay in range for tau from 1 to 1e-6 and any N.

Rules for state: tensors live in `self.state[p]` in float32 (float64 for float64 weights), also where the weights are
bfloat16; counters and options live in `param_groups`; so a state dict is the whole of it. The module's
storage is kept: weights are written and restored by copying, never by adding and subtracting.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from bayescore.nn.posterior import Posterior
from bayescore.optim.exact import MEMORY
from bayescore.optim.checkpoint import check_checkpoint, restored_tensors
from bayescore.optim.noise import standard_normal
from bayescore.optim.options import check_group, prior_tensor, start_sd

__all__ = ["Member", "Shell"]


class Member(NamedTuple):
    """One trained parameter tensor: where it stands and what is known about it."""

    index: int  # over all groups, frozen parameters included
    group: dict[str, Any]
    position: int  # within its group
    weight: Tensor
    state: dict[str, Any]


class Shell(torch.optim.Optimizer):
    """Base of the network optimizers; subclasses give `_start`, `_collect` and `_apply`."""

    #: the fewest draws a step needs
    least_draws: ClassVar[int] = 1
    # GradScaler then hands over its scale instead of skipping the step, and earlier draws can be unscaled too
    _step_supports_amp_scaling = True

    def __init__(self, params: Any, num_data: int, options: dict[str, Any]) -> None:
        self._prepare()
        counters = {"step": 0, "updates": 0, "draws": 0, "absorbed": 0, "skipped": 0, "skipped_in_a_row": 0}
        super().__init__(params, {"num_data": num_data, **options, "method": type(self).__name__, **counters})

    def _prepare(self) -> None:
        self._open = False
        self._versions: dict[Tensor, int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._prepare()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            self._check(group)
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise
        for p in group["params"]:
            if not p.is_floating_point():
                raise TypeError(f"weights must be real floating point numbers; got {p.dtype}")

    # -- what a method adds --------------------------------------------------------------------------

    def _check(self, group: dict[str, Any]) -> None:
        """Raise unless the method's own options make sense."""

    def _start(self, member: Member, mean: Tensor) -> None:
        """Add the method's tensors to the state."""
        member.state["sd"] = torch.full_like(mean, start_sd(member.group))

    def _collect(self, member: Member, g: Tensor, eps: Tensor) -> None:
        """Add a draw to the running sums of a step with several draws."""
        for key, value in (("sum_g", g), ("sum_xg", eps * g), ("sum_e", eps), ("sum_ee", eps * eps)):
            kept = member.state.get(key)
            member.state[key] = value.clone() if kept is None else kept.add_(value)

    def _apply(self, member: Member, g: Tensor | None, eps: Tensor, draws: int) -> None:
        """Update one parameter: from its gradient g if there was one draw, else from the sums (g is None)."""
        raise TypeError(f"{type(self).__name__} has no update")

    def _precision_status(self) -> str:
        """Whether the standard deviations have been learned."""
        return ""

    def prior_mean(self, member: Member) -> Tensor:
        """m0 of one parameter, of its shape or of none."""
        if "prior_mean" in member.state:
            found: Tensor = member.state["prior_mean"]
            return found
        value = member.group["prior_mean"]
        return member.state["mean"].new_tensor(float(value) if isinstance(value, int | float) else 0.0)

    def slope_noise(self) -> list[tuple[int, float, int]]:
        """For every tensor: its size, the relative variance of one step's curvature estimate, the steps so far."""
        rows, t = [], self._head["updates"]
        for member in self._members():
            level, square = (member.state["moments"] / (1 - MEMORY ** max(t, 1))).tolist()
            noise = max(0.0, square - level**2) / max(1.0, 1 + level) ** 2
            rows.append((member.weight.numel(), noise, t))
        return rows

    # -- draws -----------------------------------------------------------------------------------------

    def _members(self) -> Iterator[Member]:
        index = -1
        for group in self.param_groups:
            for position, p in enumerate(group["params"]):
                index += 1
                if p.requires_grad:
                    member = Member(index, group, position, p, self.state[p])
                    self._synchronise(member)
                    yield member

    @torch.no_grad()
    def _synchronise(self, member: Member) -> None:
        """Start the state, or take over weights that somebody else has written since."""
        p, state = member.weight, member.state
        if self._open or self._versions.get(p) == p._version:
            return
        value = p.detach().to(torch.float64 if p.dtype == torch.float64 else torch.float32)
        if "mean" not in state:
            state["mean"] = value.clone(memory_format=torch.contiguous_format)
            prior = prior_tensor(member.group, member.position, state["mean"])
            if prior is not None:
                state["prior_mean"] = prior
            self._start(member, state["mean"])
        else:
            same = p.detach() == state["mean"].to(p.dtype)
            state["mean"] = torch.where(same, state["mean"], value)
        self._versions[p] = p._version

    def noise(self, member: Member, draw: int) -> Tensor:
        """eps of one parameter in draw number `draw` of the present step."""
        head = member.group
        return standard_normal(member.state["mean"], head["seed"], head["step"], draw, member.index)

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Write a draw of the weights into the module for the length of the block."""
        if self._open:
            raise RuntimeError("sample() was entered inside sample(); close the first block before the next")
        self._absorb()
        members = list(self._members())
        for member in members:
            member.weight.grad = None
        self._open = True
        try:
            with torch.no_grad():
                for member in members:
                    self._perturb(member)
            yield
        except BaseException:
            for member in members:
                member.weight.grad = None
            raise
        finally:
            with torch.no_grad():
                for member in members:
                    self._restore(member)
            self._open = False
        self._close(members)

    def _perturb(self, member: Member) -> None:
        theta = torch.addcmul(
            member.state["mean"], member.state["sd"], self.noise(member, member.group["draws"])
        )
        member.weight.copy_(theta)

    def _restore(self, member: Member) -> None:
        member.weight.copy_(member.state["mean"])
        self._versions[member.weight] = member.weight._version

    def _close(self, members: list[Member]) -> None:
        reached = [m for m in members if m.weight.grad is not None]
        if not reached:
            raise RuntimeError(
                "no gradient reached any parameter inside sample(); call loss.backward() inside the block "
                "(for a forward pass with drawn weights use opt.posterior(model).sample_())"
            )
        for member in reached:
            if member.group["accumulate"] > 1 and member.weight.grad is not None:
                member.weight.grad.div_(member.group["accumulate"])
        self._count("draws", 1)

    def _count(self, name: str, change: int) -> None:
        for group in self.param_groups:
            group[name] += change

    @property
    def _head(self) -> dict[str, Any]:
        return self.param_groups[0]

    @torch.no_grad()
    def _absorb(self) -> None:
        """Move the last block's gradient from `.grad` into the sums."""
        draw = self._head["draws"] - 1
        if draw < self._head["absorbed"]:
            return
        for member in self._members():
            if member.weight.grad is not None:
                g = member.weight.grad.to(member.state["mean"].dtype).contiguous()
                self._collect(member, g, self.noise(member, draw))
                member.weight.grad = None
        self._count("absorbed", 1)

    # -- step ------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the posterior from the draws since the last step.

        With a closure: make `samples` draws, call it inside each (it runs forward and backward), then step.
        Returns what the closure returned last.
        """
        if self._open:
            raise RuntimeError("step() was called inside sample(); close the block first")
        loss = None
        if closure is not None:
            for _ in range(self._head["samples"]):
                with self.sample(), torch.enable_grad():
                    loss = closure()
        draws = self._head["draws"]
        if draws < self.least_draws:
            raise RuntimeError(
                f"{type(self).__name__} needs {self.least_draws} draw(s) per step and there were {draws}; "
                "use `with opt.sample(): loss.backward()` that many times before opt.step(), "
                "or opt.step(closure)"
            )
        with torch.no_grad():
            try:
                self._finish(draws)
            finally:
                for state in self.state.values():
                    for key in [k for k in state if k.startswith("sum_")]:
                        del state[key]
                for group in self.param_groups:
                    group["draws"] = group["absorbed"] = 0
                self._count("step", 1)
        return loss

    def _finish(self, draws: int) -> None:
        members = [m for m in self._members() if m.weight.grad is not None or "sum_g" in m.state]
        if not any(m.weight.grad is not None for m in members):
            raise RuntimeError(
                "the gradient of the last sample() block is gone; call zero_grad() after step(), not before"
            )
        scale = self._scale(draws)
        if scale is None or not self._finite(members):
            self._skip()
            return
        if draws > 1:
            self._absorb()
        self._count("updates", 1)
        for group in self.param_groups:
            group["skipped_in_a_row"] = 0
        for member in members:
            self._update(member, draws, scale)

    def _update(self, member: Member, draws: int, scale: float) -> None:
        p, state = member.weight, member.state
        if draws == 1:
            assert p.grad is not None
            g = p.grad.to(state["mean"].dtype).contiguous()
            self._apply(member, g if scale == 1.0 else g / scale, self.noise(member, 0), 1)
        else:
            for key in [k for k in state if k.startswith("sum_") and "g" in k]:
                state[key].div_(scale ** key.count("g"))
            self._apply(member, None, state["sum_e"], draws)
        self._restore(member)

    def _scale(self, draws: int) -> float | None:
        """The factor a GradScaler put on the gradients; None if it found them not finite."""
        if not hasattr(self, "found_inf"):
            return 1.0
        if bool(self.found_inf):
            return None
        scale = getattr(self, "grad_scale", None)
        if scale is None and draws > 1:
            raise RuntimeError(
                "GradScaler.unscale_ reaches the last of several draws only; leave it out, or make one draw"
            )
        return 1.0 if scale is None else float(scale)

    def _finite(self, members: list[Member]) -> bool:
        parts = [m.weight.grad for m in members if m.weight.grad is not None]
        parts += [m.state["sum_g"] for m in members if "sum_g" in m.state]
        checks = [torch.isfinite(part).all() for part in parts if part is not None]
        return all(bool(check) for check in checks)

    def _skip(self) -> None:
        self._count("skipped", 1)
        self._count("skipped_in_a_row", 1)
        head = self._head
        if head["skipped"] == 1:
            warnings.warn(
                f"a gradient was not finite at step {head['step']}: this update was left out, "
                "and so will be others (opt.status counts them)",
                RuntimeWarning,
                stacklevel=4,
            )
        if head["skipped_in_a_row"] >= head["max_skips"]:
            raise FloatingPointError(
                f"{head['skipped_in_a_row']} updates in a row were left out because gradients were not finite; "
                "lower lr or init_sd, or check the data"
            )

    # -- reading and saving ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of trained weights."""
        return sum(p.numel() for group in self.param_groups for p in group["params"] if p.requires_grad)

    @property
    def status(self) -> str:
        """Where the run stands, in plain words."""
        head = self._head
        parts = [f"{head['updates']} updates of {self.size} weights"]
        if head["skipped"]:
            parts.append(f"{head['skipped']} left out because a gradient was not finite")
        return "; ".join([*parts, self._precision_status()]).rstrip("; ")

    def posterior(self, model: nn.Module, likelihood: Any = "categorical") -> Posterior:
        """The posterior over the weights of `model` as it stands now; later steps do not change it."""
        if self._open:
            raise RuntimeError("posterior() was called inside sample(); close the block first")
        members = {m.weight: m for m in self._members()}
        names = {name: members[p] for name, p in model.named_parameters() if p in members}
        if len(names) != len(members):
            raise ValueError(
                f"the optimizer trains {len(members)} tensors and the model holds {len(names)} of them; "
                "pass the model whose parameters the optimizer was given"
            )
        return self._posterior(model, names, likelihood)

    def _posterior(self, model: nn.Module, members: dict[str, Member], likelihood: Any) -> Posterior:
        from bayescore.nn.gaussian import GaussianPosterior

        mean = {name: m.state["mean"].clone() for name, m in members.items()}
        sd = {name: m.state["sd"].clone() for name, m in members.items()}
        return GaussianPosterior(model, mean, sd, likelihood=likelihood)

    def state_dict(self) -> dict[str, Any]:
        if self._open or self._head["draws"]:
            raise RuntimeError("state_dict() in the middle of a step: call step() first, then save")
        for _ in self._members():
            pass
        for group in self.param_groups:
            if isinstance(group["prior_mean"], dict):
                group["prior_mean"] = "given"
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method and the same parameters, bitwise."""
        if self._open:
            raise RuntimeError("load_state_dict() was called inside sample(); close the block first")
        check_checkpoint(state_dict, self.param_groups, type(self).__name__)
        super().load_state_dict(state_dict)
        for p, tensors in restored_tensors(state_dict, self.param_groups):
            self.state[p].update(tensors)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "mean" in self.state[p]:
                        p.copy_(self.state[p]["mean"])
        self._versions.clear()

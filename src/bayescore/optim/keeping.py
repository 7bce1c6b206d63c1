"""What a network optimizer hands out: the posterior over a module's weights, and checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayescore.optim.buckets import Member
from bayescore.optim.checkpoint import check_checkpoint, restored_tensors
from bayescore.optim.options import check_group
from bayescore.optim.sampling import Sampling
from bayescore.posteriors.base import Posterior

__all__ = ["Keeping"]

STOPPED = 1e-12  # a rate of 0, where a schedule has ended, is no mistake, nor what rounding leaves of it


class Keeping(Sampling):
    """Draws of weights, and what is kept of them."""

    def posterior(self, model: nn.Module, likelihood: Any = "categorical") -> Posterior:
        """The posterior over the weights of `model` as it stands now; later steps do not change it."""
        if self._open:
            raise RuntimeError("posterior() was called inside sample(); close the block first")
        self._settle()
        members = {m.weight: m for m in self._members(frozen=True)}
        names = {name: members[p] for name, p in model.named_parameters() if p in members}
        if len(names) != len(members):
            raise ValueError(
                f"the optimizer trains {len(members)} tensors and the model holds {len(names)} of them; "
                "pass the model whose parameters the optimizer was given"
            )
        return self._posterior(model, names, likelihood)

    def _posterior(self, model: nn.Module, members: dict[str, Member], likelihood: Any) -> Posterior:
        from bayescore.posteriors.gaussian import GaussianPosterior

        mean = {name: m.state.get("average", m.state["mean"]).clone() for name, m in members.items()}
        sd = {name: m.state["sd"].clone() for name, m in members.items()}
        return GaussianPosterior(model, mean, sd, likelihood=likelihood)

    def state_dict(self) -> dict[str, Any]:
        if self._open or self._head["draws"]:
            raise RuntimeError("state_dict() in the middle of a step: call step() first, then save")
        list(self._members())  # starts the state
        found = super().state_dict()
        for group in found["param_groups"]:
            if isinstance(group["prior_mean"], dict):
                group["prior_mean"] = "given"  # every trained tensor has its own in its state
        return found

    def _check_saved(self, saved: dict[str, Any], group: dict[str, Any]) -> None:
        """Raise unless a checkpoint's group makes sense in the place of a group."""
        lr = saved["lr"]
        stopped = isinstance(lr, float | int) and abs(lr) < STOPPED
        asked = {**saved, "params": group["params"], "lr": STOPPED if stopped else lr}
        check_group(asked)
        self._check(asked)
        if saved["draws"] or saved["absorbed"]:
            raise ValueError("it was written in the middle of a step")

    def _started(self, group: dict[str, Any], saved: dict[str, Any], j: int) -> dict[str, Tensor]:
        """What parameter j of a group starts with under the options of a checkpoint, without storage."""
        options = {name: saved.get(name, value) for name, value in group.items() if name != "params"}
        p = group["params"][j]
        mean = torch.empty_like(p, device="meta")
        member = Member(0, options, j, p, {"mean": mean})
        try:
            self._start(member, mean)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"the checkpoint is damaged: its options make no sense ({error})") from error
        if isinstance(options["prior_mean"], str):
            member.state["prior_mean"] = mean
        return member.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict of the same method and the same parameters, bitwise."""
        if self._open:
            raise RuntimeError("load_state_dict() was called inside sample(); close the block first")
        method = type(self).__name__
        check_checkpoint(state_dict, self.param_groups, method, self._check_saved, self._started)
        before = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, old in zip(self.param_groups, before, strict=True):
            if group["prior_mean"] == "given" and isinstance(old["prior_mean"], dict):
                group["prior_mean"] = old["prior_mean"]
            if "param_names" in old:
                group["param_names"] = old["param_names"]  # the module's here may be wrapped, or no longer
        for p, tensors in restored_tensors(state_dict, self.param_groups):
            self.state[p].update(tensors)
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    if "mean" in self.state[p]:
                        p.copy_(self.state[p]["mean"])
        self._versions.clear()

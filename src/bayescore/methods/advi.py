"""ADVI: gradient ascent on the ELBO through reparametrised draws (Kucukelbir et al. 2017).

    ELBO(lambda) = E_q [ log Phi(theta) - log q(theta) ],   theta = T_lambda(e)                           (1)
    grad = E [ (dT/dlambda)^T s(theta) ] + grad entropy              entropy in closed form               (2)
    grad = E [ (dT/dlambda)^T (s(theta) - g(theta)) - d log q / d lambda ]   otherwise                    (3)
    grad = E [ (dT/dlambda)^T (s(theta) - g(theta)) ]                sticking the landing                 (4)
Only scores of the target enter, so it runs on targets without a density; the reported loss is then the mean
squared score mismatch instead of -ELBO.

Draws from a mixture cannot be reparametrised directly. Two estimators:
    gumbel      theta = sum_k y_k T_k(e_k), y = softmax((log w + Gumbel)/temperature), in (3)             (5)
    stratified  sum_k w_k E_k [ log Phi - log q ], one draw per component and K score calls; unbiased,
                needs the density for the weights                                                         (6)

For a diagonal Gaussian (2) is elementwise: the rule of the network optimizer, rules/advi.py.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.families.diagonal import DiagonalGaussian
from bayescore.families.mixture import GaussianMixture
from bayescore.methods.base import Info, Method, Oracle, State
from bayescore.methods.gradient_step import GradientStep, Schedule
from bayescore.rng import Streams
from bayescore.rules.adam import corrections
from bayescore.rules.advi import ADVIOptions, advi_step
from bayescore.rules.draws import Draws
from bayescore.targets.base import Target

__all__ = ["ADVI", "ADVIState"]


@dataclass(frozen=True)
class ADVIState(State):
    first: Tensor  # (F, P)
    second: Tensor  # (F, P)


@dataclass(frozen=True)
class ADVI(Method):
    """Automatic differentiation variational inference: ascent on the ELBO.

    Arguments:
        draws: per step (per component for the stratified estimator).
        lr, schedule, optimizer, momentum: as in ProximalDescent.
        stick: drop the score term of q, "sticking the landing" (4).
        mixture: "gumbel" (5) or "stratified" (6).
        temperature: of the Gumbel-softmax relaxation.
    """

    name: ClassVar[str] = "advi"
    serves: ClassVar[tuple[str, ...]] = (
        "FullGaussian",
        "DiagonalGaussian",
        "LowRankGaussian",
        "SpikedGaussian",
        "GaussianMixture",
        "PlanarFlow",
        "CouplingFlow",
        "ZukoFlow",
    )

    draws: int = 1
    lr: float | None = None
    schedule: Schedule = "cosine"
    optimizer: str = "adam"
    momentum: float = 0.0
    stick: bool = False
    mixture: str = "gumbel"
    temperature: float = 0.05

    def __post_init__(self) -> None:
        check_count("draws", self.draws)
        if self.mixture not in ("gumbel", "stratified"):
            raise ValueError(f"mixture must be 'gumbel' or 'stratified'; got {self.mixture!r}")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature must be positive; got {self.temperature}")
        _ = self._descent(0.01)

    def _descent(self, default: float) -> GradientStep:
        lr = default if self.lr is None else self.lr
        return GradientStep(self.optimizer, lr, self.momentum, self.schedule)

    def check(self, family: Family, target: Target) -> None:
        super().check(family, target)
        if isinstance(family, GaussianMixture) and self.mixture == "stratified":
            if self.stick:
                raise ValueError(
                    "stick=True goes with mixture='gumbel'; the stratified estimator needs log q as it is"
                )
            if not target.has_density or target.stochastic:
                has = "a noisy score" if target.has_density else "scores only"
                raise TypeError(
                    "ADVI with mixture='stratified' needs the exact log density for the weights and "
                    f"{type(target).__name__} has {has}; use mixture='gumbel'"
                )

    def init(self, family: Family, steps: int) -> ADVIState:
        zeros = torch.zeros_like(family.flat())
        return ADVIState(family=family, step=0, horizon=steps, first=zeros, second=zeros)

    def step(self, state: ADVIState, oracle: Oracle, streams: Streams) -> tuple[ADVIState, Info]:
        q = state.family
        if isinstance(q, DiagonalGaussian) and self.optimizer == "adam" and not self.stick:
            return self._diagonal(state, q, oracle, streams)
        flat = state.family.flat()
        leaf = flat.clone().requires_grad_()
        with torch.enable_grad():
            q = state.family.from_flat(leaf)
            if isinstance(q, GaussianMixture) and self.mixture == "stratified":
                surrogate, loss = self._stratified(q, oracle, streams)
            else:
                surrogate, loss = self._reparametrised(q, oracle, streams)
        (grad,) = torch.autograd.grad(surrogate, leaf)
        descent = self._descent(state.family.lr)
        eta = descent.rate(state.step, state.horizon)
        first, second = descent.apply_(flat, grad, state.first, state.second, state.step + 1, eta)
        family = state.family.from_flat(flat)
        return dataclasses.replace(
            state, family=family, step=state.step + 1, first=first, second=second
        ), Info(loss)

    def _diagonal(
        self, state: ADVIState, q: DiagonalGaussian, oracle: Oracle, streams: Streams
    ) -> tuple[ADVIState, Info]:
        """(2) by the elementwise rule."""
        eps = q.noise(streams, self.draws)
        point = q.transform(eps)
        value, s = oracle.log_prob_and_score(point) if oracle.has_density else (None, oracle.score(point))
        loss = -q.entropy() - value.mean(-1) if value is not None else _mismatch(q, point, s)
        eta = self._descent(q.lr).rate(state.step, state.horizon)
        o = ADVIOptions(1.0, 0.0, eta, eta, *corrections(state.step + 1))
        (a_m, a_r), (b_m, b_r) = state.first.chunk(2, -1), state.second.chunk(2, -1)
        draws = Draws.of_scores(eps, s)
        (mean, sd, *moments), _ = advi_step(q.mean, q.sd, a_m, a_r, b_m, b_r, 0.0, draws, o)
        new = ADVIState(
            family=q.replace({"mean": mean, "log_sd": sd.log()}),
            step=state.step + 1,
            horizon=state.horizon,
            first=torch.cat(moments[:2], -1),
            second=torch.cat(moments[2:], -1),
        )
        return new, Info(loss)

    def _reparametrised(self, q: Family, oracle: Oracle, streams: Streams) -> tuple[Tensor, Tensor]:
        theta = (
            self._relaxed(q, streams)
            if isinstance(q, GaussianMixture)
            else q.transform(q.noise(streams, self.draws))
        )
        point = theta.detach()
        value, s = oracle.log_prob_and_score(point) if oracle.has_density else (None, oracle.score(point))
        entropy = q.entropy()
        if self.stick:
            frozen = q.from_flat(q.flat().detach())
            surrogate = -((s - frozen.score(point)) * theta).sum(-1).mean(-1)  # (4)
            log_q = frozen.log_prob(point).mean(-1)
        elif entropy is not None:
            surrogate = -(s * theta).sum(-1).mean(-1) - entropy  # (2)
            log_q = -entropy
        else:
            log_q = q.log_prob(theta).mean(-1)
            surrogate = log_q - (s * theta).sum(-1).mean(-1)  # (3)
        loss = _mismatch(q, point, s) if value is None else log_q - value.mean(-1)
        return surrogate.sum(), loss.detach()

    def _relaxed(self, q: GaussianMixture, streams: Streams) -> Tensor:
        """(5): draws (F, S, D) that are differentiable in the mixture weights too."""
        K, S = q.logits.shape[-1], self.draws
        gumbel = -(-streams.uniform(S, K).clamp_min(1e-300).log()).log()  # (F, S, K)
        y = ((q.logits.log_softmax(-1).unsqueeze(-2) + gumbel) / self.temperature).softmax(-1)
        draws = q.components.transform(streams.normal(K, S, q.dim))  # (F, K, S, D)
        return (y.movedim(-1, -2).unsqueeze(-1) * draws).sum(-3)

    def _stratified(self, q: GaussianMixture, oracle: Oracle, streams: Streams) -> tuple[Tensor, Tensor]:
        """(6): S draws from every component, its term weighted by w_k."""
        K, S = q.logits.shape[-1], self.draws
        theta = q.components.transform(streams.normal(K, S, q.dim))  # (F, K, S, D)
        points = theta.flatten(-3, -2)  # (F, K S, D)
        value, s = oracle.log_prob_and_score(points.detach())
        # value + s . (theta - theta.detach()) has the value and the gradient of log Phi(theta)
        log_phi = value + (s * (points - points.detach())).sum(-1)
        terms = (q.log_prob(points) - log_phi).unflatten(-1, (K, S)).mean(-1)  # (F, K)
        loss = (q.weights * terms).sum(-1)
        return loss.sum(), loss.detach()


def _mismatch(q: Family, point: Tensor, s: Tensor) -> Tensor:
    """The mean squared score mismatch (F,): the loss reported for targets without a density."""
    return (s - q.score(point)).square().sum(-1).mean(-1)

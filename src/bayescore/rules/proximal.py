"""The default rule for networks: score matching with a proximal term, at AdamW's price and scale of lr.

q = N(m, diag(sigma^2)); a step sees one draw theta = m + d, d = sigma eps, and the gradient g of the mean
loss of a mini-batch there. N is the number of data, tau the temperature in use, h the curvature of the mean
loss per weight. The noisy score of the target is s = -(N/tau) g; that of q at theta is -d/sigma^2, linear in
d. Two numbers are kept per weight besides m: Adam's moments a and v. sigma is not kept: it follows from v,

    sigma^2 = tau / (N h + 1/s0^2),    h = rho v^,    sigma <= 0.1 (the sum of the learning rates so far)  (1)

where v^, a^ are v, a with Adam's bias correction, rho is one number per tensor, and s0 = prior_scale times
the root mean square of the tensor's initial weights. A step is

    x = d (g - a^)                               a^ of the steps before                                   (2)
    f = g + c (m - m0)/(30 s0)^2,                c = temperature/N: the prior's part of the score
    a <- b1 a + (1 - b1) f,    v <- b2 v + (1 - b2) f^2/Q                                                 (3)
    m <- m - lr a^/(sqrt(v^) + 1e-8) - lr w (m - m0)              AdamW's step, at the drawn weights      (4)
    X <- <sum x>,   Y <- <sum v^ d^2>,   Z <- <sum x^2>           running sums over a tensor              (5)
    rho = X/Y, as far as its own standard error allows it         (9)
    tau = the largest temperature at which the noise costs no more than `nats`  (8)

**How it follows from the paper.** The paper minimises, from the draw of this step, the noisy proximal loss
    |s_q(theta) - s|^2 + alpha |s_q(theta) - s_{q_t}(theta)|^2                                            (6)
(eq:noisy_loss). With s_q(theta) = b - P (theta - m_t), b the intercept and P the slope, (6) is a linear
regression of the noisy scores on d whose new intercept and slope stay near the old ones.
 - Intercept. Its solution moves the mean by
       m_new - m_t = sigma^2/(1 + alpha) E s = -(sigma^2 N/tau) E g/(1 + alpha),   sigma^2 = 1/P the new one.
   One alpha per weight, 1 + alpha = sigma^2 N sqrt(v^)/(tau lr), and a running mean for E g, make it AdamW's
   step (4): lr is the trust that AdamW's user already chose. The draw's own score d/sigma^2 has mean zero and
   is left out of it; it would only add noise.
 - Slope. The regression of g - a^ on d with slopes h_i = rho v^_i, one unknown per tensor, weighted by
   1/v^_i, the inverse variance of g_i, has the solution
       rho = sum d_i (g_i - a^_i) / sum v^_i d_i^2                                                        (7)
   which is (5): by Stein's identity E d g = sigma^2 H_ii. Its proximal term is the memory of the sums
   (recursive least squares with forgetting 0.99), its start a prior on rho.
The paper has one alpha, t/T, for all weights and for both; it minimises (6) by gradient steps, and says
nothing of (8) to (10). What is ours: one alpha per weight for the intercept and another for the slope; Adam's
running means; Adam's squared gradients as the shape of the precision (for a model that fits, v is the Fisher
information over the batch size, so rho estimates the batch size and nobody has to give it); the pooled slope
(one draw's own slope has a relative variance of about N/(batch tau) per weight, hopeless for one weight and
good for a tensor); the bound of sigma; the two scales of the prior; Q; and the temperature control:

    cost = 1/2 <sum x>, over all tensors                          nats that the noise adds to the loss    (8)
    tau <- min(temperature, nats <tau>/(cost + its standard error)), by at most +5 % or -10 % a step
It is the score-matching slope again: 1/2 E d.g = 1/2 tr(H diag(sigma^2)). A width that a network cannot bear
shows at once, whatever its architecture and whether it is pretrained. At `nats` = inf, tau becomes the
temperature. Unless the user sets it, the noise of D weights and N data may cost
    nats = min(0.05, max(0.003, D/(100 N)))                                                              (11)
At temperature 1 a diagonal posterior of D weights that the data determine costs D/(2N). Below 0.003 that does
no harm. A network with about as many weights as data loses by it while it still learns: there the limit is a
fiftieth of that. Networks with many more weights than data overfit, and gain from up to about 0.1 nats.

The standard error of (7) with n steps in memory is sqrt(Z/n)/Y. rho is shrunk by it towards the network's
pooled ratio, with a relative error of 1, and that towards 32, a usual batch size:
    rho_T = (X_T/Y_T I + r p)/(I + p),    I = n Y_T^2/Z_T,  p = 1/r^2,  r the network's;  at least r/10   (9)

Q. Off its diagonal the Hessian turns the draw into gradient noise, sum_j H_ij^2 sigma_j^2, which swells v and
would shorten Adam's step. A batch's own noise is as large in Var(sum x) as in sum x^2, while tr((H Sigma)^2)
is in the first twice and in the second once, so that with R = Var(<sum x>)/<sum x^2>, held in [1, 2 - 1/3],
    Q = 1 + cost/(cost + 0.002) (1/(2 - R) - 1)   in [1, 3]                                              (10)
estimates by how much v is swollen. R is biased upwards where gradients are heavy-tailed: then the step is up
to sqrt(3) times longer than AdamW's.

The prior. Two scales, because widths and means are on different ones: s0 limits the width of a weight that
the data say nothing about, and a prior thirty times wider holds its mean. The second is weak, and needed:
where a classifier separates its data g vanishes, Adam still takes steps of size lr, and only the prior ends
the growth of the weights.

**Fixed points.** With exact scores of a diagonal Gaussian of precision P, N = tau = 1 and no prior, a draw at
the optimum has g = P d: v = P^2 sigma^2, X = sum P sigma^2, Y = sum P^2 sigma^4, and sigma^2 = 1/P gives
rho = 1 and sigma^2 = 1/(rho v). Without noise (tau -> 0) and prior, cost = 0, Q = 1, and (3), (4) are AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.rules.adam import EPSILON
from bayescore.rules.draws import Draws
from bayescore.rules.terms import Terms

__all__ = ["USUAL", "Network", "ProximalOptions", "Slopes", "proximal_step", "usual_nats", "width"]

MEMORY = 0.99  # of the sums (5)
QUICK = 0.98  # of the cost (8)
USUAL = 32.0  # centre of the prior of the network's slope
LEAST = 1.0  # of the network's slope: that of batches of one
LEAST_SHARE = 0.1  # of the network's slope, that a tensor's has at least
RISE, FALL = 0.05, 0.1  # largest relative change of tau in a step
LEAST_NATS, MOST_NATS, WEIGHT_NATS = 0.003, 0.05, 0.01  # of (11)
LOOSE = 30.0  # how much wider the prior of a mean is than that of a width
START = 1e-4  # of tau, relative to the temperature
REACH = 0.1  # largest sd, relative to the sum of the rates so far
MOST_SWOLLEN, HALF = 3.0, 0.002  # of (10)
SMALLEST = 1e-18  # least sd: stands for none, and float32 can divide by it and square its inverse
TINY = 1e-30


class ProximalOptions(NamedTuple):
    """Numbers of one step; `forget`, `keep`, `squares` belong to a parameter group, others to a tensor."""

    slope: Any  # rho N/tau, with v's bias correction before the step, of (1)
    prior: Any  # 1/(tau s0^2), of (1)
    reach: Any  # largest sd, of (1)
    forget: Any  # 1 - b1
    keep: Any  # b2
    squares: Any  # (1 - b2)/Q
    before: Any  # 1/(1 - b1^(t-1)), 0 in the first step
    rate: Any  # lr/(1 - b1^t)
    unbiased: Any  # 1/(1 - b2^t)
    pull: Any  # c/(30 s0)^2, of (3)


def usual_nats(weights: int, N: float) -> float:
    """(11)."""
    return min(MOST_NATS, max(LEAST_NATS, WEIGHT_NATS * weights / N))


def width(first: Tensor | None, second: Tensor, o: ProximalOptions) -> Tensor:  # noqa: ARG001
    """sigma of (1), from the state before a step."""
    return (second * o.slope).add_(o.prior).rsqrt_().clamp_max_(o.reach)  # addcmul of two numbers is slow


def proximal_step(
    mean: Tensor,
    first: Tensor,
    second: Tensor,
    prior_mean: Tensor | float,
    draws: Draws,
    o: ProximalOptions,
) -> tuple[tuple[Tensor, Tensor, Tensor], Terms]:
    """(2) to (4) without the decay: the new mean and moments, and the terms of (5)."""
    sd = width(first, second, o)
    x = torch.addcmul(draws.X, draws.e1, first * o.before, value=-1).mul_(sd)  # (2)
    f = torch.addcmul(draws.G, mean - prior_mean, o.pull)
    first = torch.lerp(first, f, o.forget)
    second = (second * o.keep).addcmul_(f * o.squares, f)  # (3)
    squares = second * o.unbiased
    new = torch.addcdiv(mean, first * o.rate, squares.sqrt().add_(EPSILON), value=-1)  # (4)
    return (new, first, second), (x, sd.square_().mul_(draws.e2).mul_(squares), x * x)


class Slopes(NamedTuple):
    """The numbers of one tensor."""

    x: float = 0.0  # X, Y and Z of (5)
    y: float = 0.0
    z: float = 0.0
    steps: float = 0.0  # t, the updates of this tensor so far
    scale: float = math.inf  # s0
    path: float = 0.0  # the sum of the learning rates so far

    def after(self, totals: Sequence[float], lr: float) -> Slopes:
        """The numbers after a step with these three totals of the terms."""
        x, y, z = totals
        return Slopes(
            MEMORY * self.x + (1 - MEMORY) * x,
            MEMORY * self.y + (1 - MEMORY) * y,
            MEMORY * self.z + (1 - MEMORY) * z,
            self.steps + 1,
            self.scale,
            self.path + lr,
        )

    def rho(self, pooled: float) -> float:
        """rho (9), given the network's."""
        weight = _weight(self.steps, MEMORY)
        found = _shrunk(self.x / weight, self.y / weight, self.z / weight, weight / (1 - MEMORY), pooled)
        return max(found, LEAST_SHARE * pooled)

    def width_options(
        self, pooled: float, tau: float, N: float, lr: float, b2: float
    ) -> tuple[float, float, float]:
        """The first three of `ProximalOptions`, given r of (9); lr is that of the coming step."""
        unbiased = 1 / (1 - b2**self.steps) if self.steps else 0.0
        slope, prior = self.rho(pooled) * unbiased * N / tau, 1 / (self.scale**2 * tau)
        most = SMALLEST**-2.0
        return min(slope, most), min(prior, most), max(REACH * (self.path or lr), SMALLEST)

    def adam_options(self, lr: float, betas: tuple[float, float], c: float) -> tuple[float, ...]:
        """The last four of `ProximalOptions`."""
        (b1, b2), t = betas, self.steps
        before, pull = 1 / (1 - b1**t) if t else 0.0, c / (LOOSE * self.scale) ** 2
        return before, lr / (1 - b1 ** (t + 1)), 1 / (1 - b2 ** (t + 1)), pull


class Network(NamedTuple):
    """The numbers of the whole network: running means of sums over all weights, and the temperature."""

    tau: float
    steps: float = 0.0
    x: float = 0.0  # sum x, sum v^ d^2, sum x^2 and (sum x)^2, memory 0.99
    y: float = 0.0
    z: float = 0.0
    xx: float = 0.0
    quick_x: float = 0.0  # sum x, sum x^2 and tau, memory 0.98
    quick_z: float = 0.0
    quick_tau: float = 0.0

    @classmethod
    def start(cls, temperature: float) -> Network:
        return cls(START * temperature)

    def is_possible(self) -> bool:
        """Whether these can be the numbers after a step: they may come from a damaged file."""
        squares = (self.y, self.z, self.xx, self.quick_z)
        return min(squares) >= 0 < min(self.tau, self.quick_tau, self.steps) and self.steps % 1 == 0

    def after(self, totals: Sequence[float], temperature: float, nats: float) -> Network:
        """The numbers after a step with these three totals of the terms over all tensors: (8)."""
        x, y, z = totals
        slow = (_towards(a, b, MEMORY) for a, b in zip(self[2:6], (x, y, z, x * x), strict=True))
        quick = (_towards(a, b, QUICK) for a, b in zip(self[6:], (x, z, self.tau), strict=True))
        new = Network(self.tau, self.steps + 1, *slow, *quick)
        wanted = nats * new.quick_tau / (_weight(new.steps, QUICK) * max(new.cost + new.cost_error, 1e-12))
        tau = max(min(wanted, self.tau * (1 + RISE)), self.tau * (1 - FALL))
        return new._replace(tau=min(tau, temperature))

    @property
    def cost(self) -> float:
        """What the noise adds to the loss (8), in nats."""
        return 0.5 * self.quick_x / _weight(self.steps, QUICK)

    @property
    def cost_error(self) -> float:
        """The standard error of `cost`."""
        weight = _weight(self.steps, QUICK)
        return 0.5 * math.sqrt(self.quick_z * (1 - QUICK)) / weight

    def slope(self) -> float:
        """r of (9)."""
        weight = _weight(self.steps, MEMORY)
        pooled = _shrunk(self.x / weight, self.y / weight, self.z / weight, weight / (1 - MEMORY), USUAL)
        return max(pooled, LEAST)

    def inflation(self) -> float:
        """Q (10)."""
        weight = _weight(self.steps, MEMORY)
        x, z, xx = self.x / weight, self.z / weight, self.xx / weight
        ratio = min(max((xx - x * x) / (z + TINY), 1.0), 2 - 1 / MOST_SWOLLEN)
        nats = max(self.cost, 0.0)
        return 1 + nats / (nats + HALF) * (1 / (2 - ratio) - 1)


def _towards(old: float, new: float, memory: float) -> float:
    return memory * old + (1 - memory) * new


def _weight(steps: float, memory: float) -> float:
    """The total weight in a running mean so far: dividing by it removes its bias."""
    return 1 - memory ** max(steps, 1.0)


def _shrunk(x: float, y: float, z: float, n: float, centre: float) -> float:
    information, prior = n * y * y / (z + TINY), centre**-2.0
    return (x / (y + TINY) * information + centre * prior) / (information + prior)

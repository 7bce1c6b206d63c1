"""The default rule for networks: score matching with a proximal term, at AdamW's price and scale of lr.

q = N(m, diag(sigma^2)); a step sees one draw theta = m + d, d = sigma eps, and the gradient g of the mean
loss of a mini-batch there. N is the number of data, tau the temperature in use, h the curvature of the mean
loss per weight. The noisy score of the target is s = -(N/tau) g; that of q at theta is -d/sigma^2, linear in
d. Two numbers are kept per weight besides m: Adam's moments a and v. sigma is not kept: it follows from v,

    sigma^2 = tau / (N h + 1/s0^2),    h = rho v^,    sigma <= 0.1 (the sum of the learning rates so far)  (1)

where v^, a^ are v, a with Adam's bias correction, rho is one number per tensor, and s0 = prior_scale times
the root mean square of the tensor's initial weights. A step is

    x = d (g - a^)                               a^ of the steps before                                   (2)
    a <- b1 a + (1 - b1) g,    v <- b2 v + (1 - b2) g^2/Q                                                 (3)
    m <- m - lr a^/(sqrt(v^) + 1e-8) - lr w (m - m0)              AdamW's step, at the drawn weights      (4)
    X <- <sum x>,   Y <- <sum v^ d^2>,   Z <- <sum x^2>           running sums over a tensor              (5)
    rho = X/Y, as far as its own standard error allows it         (9)
    tau = the largest temperature at which the noise costs no more than `nats`  (8)

**How it follows from the paper.** The paper minimises, from the draw of this step, the noisy proximal loss
    |s_q(theta) - s|^2 + alpha |s_q(theta) - s_{q_t}(theta)|^2                                            (6)
(eq:noisy_loss). With s_q(theta) = b - P (theta - m_t), b the intercept and P the slope, (6) is a linear
regression of the noisy scores on d whose new intercept and slope stay near the old ones.
 - Intercept. Its solution moves the mean by
       m_new - m_t = sigma^2/(1 + alpha) E s = -(sigma^2 N/tau) E g/(1 + alpha).
   One proximal weight per weight, 1 + alpha = sigma^2 N sqrt(v^)/(tau lr), and a running mean for E g, make
   it AdamW's step (4): lr is the trust that AdamW's user already chose. The draw's own score d/sigma^2 has
   mean zero and is left out of it; it would only add noise.
 - Slope. The regression of g - a^ on d with slopes h_i = rho v^_i, one unknown per tensor, weighted by
   1/v^_i, the inverse variance of g_i, has the solution
       rho = sum d_i (g_i - a^_i) / sum v^_i d_i^2                                                        (7)
   which is (5): by Stein's identity E d g = sigma^2 H_ii. Its proximal term is the memory of the sums
   (recursive least squares with forgetting 0.99), its start a prior on rho.
What is ours: Adam's squared gradients as the shape of the precision (for a model that fits, v is the Fisher
information over the batch size, so rho estimates the batch size and nobody has to give it), the pooled slope
(one draw's own slope has a relative variance of about N/(batch tau) per weight, hopeless for one weight and
good for a tensor), and the temperature control:

    cost = 1/2 <sum x>, over all tensors                          nats that the noise adds to the loss    (8)
    tau <- min(temperature, nats <tau>/(cost + its standard error)), by at most +5 % or -10 % a step
It is the score-matching slope again: 1/2 E d.g = 1/2 tr(H diag(sigma^2)). A width that a network cannot bear
shows at once, whatever its architecture and whether it is pretrained. At `nats` = inf, tau becomes the
temperature.

The standard error of (7) with n steps in memory is sqrt(Z/n)/Y. rho is shrunk by it towards the network's
pooled ratio, with a relative error of 1, and that towards 32, a usual batch size:
    rho_T = (X_T/Y_T I + r p)/(I + p),    I = n Y_T^2/Z_T,  p = 1/r^2,  r the network's;  at least r/10   (9)

Q. Off its diagonal the Hessian turns the draw into gradient noise, sum_j H_ij^2 sigma_j^2, which swells v and
would shorten Adam's step. A batch's own noise is as large in Var(sum x) as in sum x^2, while tr((H Sigma)^2)
is in the first twice and in the second once, so that with R = Var(<sum x>)/<sum x^2>, held in [1, 2 - 1/3],
    Q = 1 + cost/(cost + 0.002) (1/(2 - R) - 1)   in [1, 3]                                              (10)
estimates by how much v is swollen. R is biased upwards where gradients are heavy-tailed: then the step is up
to sqrt(3) times longer than AdamW's.

**Fixed points.** With exact scores of a diagonal Gaussian of precision P, N = tau = 1 and no prior, a draw at
the optimum has g = P d: v = P^2 sigma^2, X = sum P sigma^2, Y = sum P^2 sigma^4, and sigma^2 = 1/P gives
rho = 1 and sigma^2 = 1/(rho v). Without noise (tau -> 0) cost = 0, Q = 1, and (3), (4) are AdamW.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayescore.rules.adam import EPSILON
from bayescore.rules.draws import Draws
from bayescore.rules.terms import Terms

__all__ = [
    "CONTROL",
    "ProximalOptions",
    "adam_options",
    "control_step",
    "cost",
    "follow_slopes",
    "inflation",
    "initial_control",
    "network_slope",
    "proximal_step",
    "slopes",
    "width",
    "width_options",
]

MEMORY = 0.99  # of the sums (5)
QUICK = 0.98  # of the cost (8)
USUAL = 32.0  # centre of the prior of the network's slope
LEAST_SHARE = 0.1  # of the network's slope, that a tensor's has at least
RISE, FALL = 0.05, 0.1  # largest relative change of tau in a step
START = 1e-4  # of tau, relative to the temperature
REACH = 0.1  # largest sd, relative to the sum of the rates so far
MOST_SWOLLEN, HALF = 3.0, 0.002  # of (10)
SMALLEST = 1e-20  # least sd: stands for none, and can be divided by
TINY = 1e-30

#: numbers about the whole network: running means of sum x, sum v^ d^2, sum x^2, (sum x)^2 (memory 0.99), of
#: sum x, sum x^2 and tau (memory 0.98), then tau, and the number of steps
CONTROL = 9


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


def width(first: Tensor | None, second: Tensor, o: ProximalOptions) -> Tensor:  # noqa: ARG001
    """sigma of (1), from the state before a step."""
    return torch.minimum(torch.addcmul(o.prior, second, o.slope).rsqrt(), o.reach)


def proximal_step(
    mean: Tensor, first: Tensor, second: Tensor, draws: Draws, o: ProximalOptions
) -> tuple[tuple[Tensor, Tensor, Tensor], Terms]:
    """(2) to (4) without the decay: the new mean and moments, and the terms of (5)."""
    sd = width(first, second, o)
    x = sd * torch.addcmul(draws.X, draws.e1, first * o.before, value=-1)  # (2)
    first = torch.lerp(first, draws.G, o.forget)
    second = torch.addcmul(second * o.keep, draws.G * o.squares, draws.G)  # (3)
    squares = second * o.unbiased
    new = mean - o.rate * first / (squares.sqrt() + EPSILON)  # (4)
    return (new, first, second), (x, squares * (sd * sd * draws.e2), x * x)


def width_options(
    rho: Tensor, scale: Tensor, path: Tensor, t: Tensor, tau: Tensor | float, N: float, b2: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The first three of `ProximalOptions` after t steps.

    Arguments:
        rho, scale, path: of the tensors: (9), s0, and the sum of the learning rates so far.
    """
    unbiased = torch.where(t > 0, 1 / (1 - b2 ** t.clamp_min(1)), 0.0)
    return rho * unbiased * (N / tau), 1 / (scale.square() * tau), (REACH * path).clamp_min(SMALLEST)


def adam_options(t: Tensor, lr: float, betas: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor]:
    """The last three of `ProximalOptions`, for step number t (from 1) of each tensor."""
    b1, b2 = betas
    before = torch.where(t > 1, 1 / (1 - b1 ** (t - 1).clamp_min(1)), 0.0)
    return before, lr / (1 - b1**t), 1 / (1 - b2**t)


# -- numbers per tensor --------------------------------------------------------------------------------


def follow_slopes(sums: Tensor, steps: Tensor, totals: Tensor) -> tuple[Tensor, Tensor]:
    """The running sums (5) and the number of steps after one more; a row (X, Y, Z) per tensor."""
    return torch.lerp(sums, totals, 1 - MEMORY), steps + 1


def slopes(sums: Tensor, steps: Tensor, pooled: Tensor) -> Tensor:
    """rho of every tensor (9), given the network's."""
    x, y, z, n = _unbiased(sums, steps, MEMORY)
    return torch.maximum(_shrunk(x, y, z, n, pooled), LEAST_SHARE * pooled)


def _unbiased(sums: Tensor, steps: Tensor, memory: float) -> tuple[Tensor, ...]:
    """The running means without the bias of their start, and the number of steps in memory."""
    weight = 1 - memory ** steps.clamp_min(1)
    return (*(sums / weight.unsqueeze(-1)).unbind(-1), weight / (1 - memory))


def _shrunk(x: Tensor, y: Tensor, z: Tensor, n: Tensor, centre: Tensor | float) -> Tensor:
    information, prior = n * y * y / (z + TINY), centre**-2.0
    return (x / (y + TINY) * information + centre * prior) / (information + prior)


# -- numbers of the network ----------------------------------------------------------------------------


def initial_control(temperature: float, like: Tensor) -> Tensor:
    """The network's numbers before the first step, in the shape of `like` and one more dimension."""
    control = like.new_zeros(*like.shape, CONTROL)
    control[..., 7] = START * temperature
    return control


def network_slope(control: Tensor) -> Tensor:
    """r of (9)."""
    x, y, z, _, n = _unbiased(control[..., :4], control[..., 8], MEMORY)
    return _shrunk(x, y, z, n, USUAL).clamp_min(1.0)


def cost(control: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What the noise adds to the loss (8), its standard error, and the mean temperature it belongs to."""
    x, z, tau, n = _unbiased(control[..., 4:7], control[..., 8], QUICK)
    return 0.5 * x, 0.5 * (z / n).sqrt(), tau


def inflation(control: Tensor) -> Tensor:
    """Q (10)."""
    x, _, z, xx, _ = _unbiased(control[..., :4], control[..., 8], MEMORY)
    ratio = ((xx - x * x) / (z + TINY)).clamp(1.0, 2 - 1 / MOST_SWOLLEN)
    nats = cost(control)[0].clamp_min(0.0)
    return 1 + nats / (nats + HALF) * (1 / (2 - ratio) - 1)


def control_step(control: Tensor, totals: Tensor, temperature: float, nats: float) -> Tensor:
    """The network's numbers after a step whose terms have these totals (..., 3) over all tensors."""
    x, y, z = totals.to(control).unbind(-1)
    tau, steps = control[..., 7], control[..., 8]
    slow = torch.lerp(control[..., :4], torch.stack([x, y, z, x * x], -1), 1 - MEMORY)
    quick = torch.lerp(control[..., 4:7], torch.stack([x, z, tau], -1), 1 - QUICK)
    new = torch.cat([slow, quick, tau.unsqueeze(-1), steps.unsqueeze(-1) + 1], -1)
    nats_now, error, mean_tau = cost(new)
    wanted = nats * mean_tau / (nats_now + error).clamp_min(1e-12)
    new[..., 7] = torch.minimum(wanted, tau * (1 + RISE)).maximum(tau * (1 - FALL)).clamp_max(temperature)
    return new

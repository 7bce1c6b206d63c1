"""The search for a start under noise: climbs on averaged scores, in scales that it finds on the way.

The noise of a score is unknown, and may be as large as the largest score. It is measured by replicates: the
mean of n scores at one point has a standard error e, common to all coordinates (the rms over them).

Approach: every coordinate i has a step of its own, d_i. Where the mean score is at least two errors from zero
    x_i <- x_i + d_i sign(s_i),     d_i <- 1.5 d_i, or d_i / 3 after a change of sign                      (1)
and where it is not, the coordinate waits: it is drowned by the noise of others, which falls as they arrive.

Refinement: near the posterior its score is about linear, s(x) = h - P x with a symmetric P. Points are placed
in pairs along every direction of the Gaussian found so far, m -+ L e_j with L L^T = P_t^{-1}: the steep
directions, whose noise would drown the flat ones, are at their centre when a flat one is probed. The points
of the rounds since q last moved enter one regression, in the coordinates y in which P_t = I and m = 0, g
being L^T s there, with weights w_i = 1/(variance of the noise at x_i + (0.1 rms s_i)^2):
    M = sum w y y^T,   C = -sum w g y^T,   B = C M^{-1}      moments about the weighted means            (2)
    B_kj and B_jk averaged by their precisions, 1/(|L e_k|^2 (M^{-1})_jj)                                (3)
    P = L^{-T} B L^{-1},   m <- where the fitted score vanishes, as far as it is not noise               (4)
P_t enters (2) with the weight of as many points whose noise is as large as their scores, so what is not seen
stays as it is; a round doubles a standard deviation or divides it by 5 at most, and moves m by 3 of them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayescore.families.diagonal import DiagonalGaussian
from bayescore.initial.gaussians import GaussianFamily, local_gaussians
from bayescore.targets.counting import CountingOracle

__all__ = ["averaging_search"]

REPLICATES = 8  # scores of one mean
CURVATURE_DIM = 100  # the largest dimension for (2), which probes every direction
PROBE_ERROR = 0.3  # relative, of the mean score at a point of (2), if at most REPLICATES give it
APPROACHES = 60  # steps of (1)
APPROACH_SHARE = 0.3  # of the budget, at most
FIRST_STEP, LARGEST_STEP = 0.1, 100.0  # of (1)
WIDER, NARROWER = 4.0, 25.0  # the largest changes of P in a round: what is too narrow is safe
FARTHEST = 3.0  # standard deviations that m moves along an axis in a round
CLEAR = 8.0  # variances of the noise: a larger mean square of scores is not noise
CANDIDATES = 40  # the latest Gaussians of a search, among which the start is chosen
TOO_WIDE = 5.0  # times the expected scores
MODEL_ERROR = 0.1  # relative, of a linear score
NEAR = 6.0  # standard deviations: points that are farther from m than this are left out of (2)


def averaging_search(oracle: CountingOracle, q0: GaussianFamily, budget: int) -> GaussianFamily:
    """Candidates for a start, a batch in the family of q0, after at most `budget` score calls.

    The last one is where the search ended.
    """
    search = _Search(oracle, q0, budget)
    search.approach()
    if q0.dim <= CURVATURE_DIM and not isinstance(q0, DiagonalGaussian):
        search.refine()
    else:
        search.keep(torch.diag(search.scales()))
    points, factors = zip(*search.kept[-CANDIDATES:], strict=True)
    return local_gaussians(torch.cat(points), torch.stack(factors), q0)


class _Search:
    """Where the search is: x (1, D), and the factor L (D, D) of the covariance found so far."""

    def __init__(self, oracle: CountingOracle, q0: GaussianFamily, budget: int) -> None:
        self.oracle, self.budget, self.x = oracle, budget, q0.mean.unsqueeze(0)
        self.steps = torch.full_like(self.x[0], FIRST_STEP)
        self.factor = torch.diag(self.steps)
        self.kept: list[tuple[Tensor, Tensor]] = []

    def keep(self, factor: Tensor) -> None:
        """Remember where the search is as a candidate."""
        self.kept.append((self.x, factor))

    def mean_scores(self, points: Tensor, replicates: int) -> tuple[Tensor, Tensor]:
        """Means of n scores at points (P, D), and their standard errors (P,)."""
        P, D = points.shape
        scores = self.oracle.score(points.repeat(replicates, 1).unsqueeze(0))[0].reshape(replicates, P, D)
        scores = scores.nan_to_num(0.0, 0.0, 0.0)
        error = scores.var(0).mean(-1).sqrt() / math.sqrt(replicates)
        return scores.mean(0), error

    def approach(self) -> None:
        """(1), until no coordinate moves."""
        sign = torch.zeros_like(self.steps)
        limit = min(APPROACHES * REPLICATES, int(APPROACH_SHARE * self.budget))
        idle = 0
        while self.oracle.score_calls + REPLICATES <= limit and idle < 3:
            mean, error = self.mean_scores(self.x, REPLICATES)
            new = mean[0].sign() * (mean[0].abs() > 2 * error)
            turned, kept = new * sign < 0, new * sign > 0
            grown = (1.5 * self.steps).clamp_max(LARGEST_STEP)
            self.steps = torch.where(turned, self.steps / 3, torch.where(kept, grown, self.steps))
            self.x = self.x + self.steps * new
            sign = torch.where(new == 0, sign, new)
            settled = bool((self.steps[new != 0] < 1e-3).all())
            idle = idle + 1 if settled else 0
        narrow = 0.1 * self.steps.clamp(1e-3, 1.0)  # what is too narrow is safe
        self.factor = torch.diag(torch.minimum(narrow, 3 * narrow.min()))
        self.keep(self.factor)

    def scales(self) -> Tensor:
        """Standard deviations (D,) along the coordinates, from probes at the distance of the last steps."""
        D = len(self.steps)
        h = self.steps.clamp(1e-3, 1.0)
        signs = torch.ones_like(h)
        signs[::2] = -1.0
        up, down = self.mean_scores(torch.cat([self.x + h * signs, self.x - h * signs]), 4 * REPLICATES)[0]
        curvature = (down - up) * signs / (2 * h)
        typical = curvature.abs().median().clamp_min(1.0 / D)
        return torch.where(curvature > 0.01 * typical, curvature, typical).rsqrt()

    def refine(self) -> None:
        """Rounds of (2), (3) and (4), over a window of the latest half of the rounds, at least four."""
        D = len(self.steps)
        score, error = self.mean_scores(self.x, REPLICATES)
        replicates, largest = REPLICATES, float(score.abs().max())
        if largest:  # at a mode that is met exactly no score tells how large the noise is
            relative = float(error[0]) / largest * math.sqrt(REPLICATES)  # noise of one score
            replicates = max(2, min(REPLICATES, math.ceil(PROBE_ERROR**-2 * relative**2)))
        cost = replicates * (2 * D + 1)
        seen: list[tuple[Tensor, Tensor, Tensor]] = []
        while self.oracle.score_calls + cost <= self.budget:
            L = self.factor
            points = torch.cat([self.x, self.x - L.mT, self.x + L.mT])  # (2 D + 1, D)
            score, error = self.mean_scores(points, replicates)
            if self._too_wide(score):
                self.keep(self.factor)
                seen.clear()
                continue
            weight = 1 / (error.square() + (MODEL_ERROR**2) * score.square().mean(-1)).clamp_min(1e-300)
            seen.append((points, score, weight))
            recent = seen[-max(1, len(seen) // 2) :] if len(seen) > 8 else seen
            up, down = score[1:].reshape(2, D, D)
            noise = 0.25 * error[1:].square().reshape(2, D).sum(0)
            size = 0.25 * (up - down).square().mean(-1)  # (D,), of P L e_j
            size = torch.where(size > CLEAR * noise, size, 0.0)
            x, s, w = (torch.cat(parts) for parts in zip(*recent, strict=True))
            moved = self._regress(x, s, w, size)
            self.keep(self.factor)
            if moved:
                seen.clear()

    def _too_wide(self, score: Tensor) -> bool:
        """Whether scores at m -+ L e_j are larger than P_t and the score at m explain: L e_j then shrinks.

        The score is not linear there: the scales of a model change with its location.
        """
        size = score.square().mean(-1).sqrt()
        D = len(self.steps)
        expected = torch.linalg.inv(self.factor).square().mean(-1).sqrt() + size[0]
        excess = size[1:].reshape(2, D).amax(0) / expected  # (D,)
        self.factor = self.factor / torch.where(excess > TOO_WIDE, 3.0, 1.0)
        return bool((excess > TOO_WIDE).any())

    def _regress(self, x: Tensor, s: Tensor, w: Tensor, size: Tensor) -> bool:
        """(2), (3) and (4) from points and mean scores (n, D) with weights (n,).

        `size` (D,) is what this round has seen of the mean squares of P L e_j. P_t is believed up to these if
        they are larger than its own. Returns whether q moved far.
        """
        L = self.factor
        inverse = torch.linalg.inv(L)
        y = (x - self.x) @ inverse.mT  # (n, D), in whitened coordinates
        near = y.norm(dim=-1) < NEAR
        y, g, w = y[near], s[near] @ L, w[near]
        y_mean, g_mean = (w @ y) / w.sum(), (w @ g) / w.sum()
        yc, gc = y - y_mean, g - g_mean
        prior = 2 / torch.maximum(inverse.square().mean(-1), size)  # (D,), at P_t L e_j
        M = (yc.mT * w) @ yc + torch.diag(prior)
        C = -(gc.mT * w) @ yc + torch.diag(prior)  # in which P_t is I
        unit = M.diagonal().rsqrt()
        inner = torch.linalg.inv(unit.unsqueeze(-1) * M * unit) * unit.unsqueeze(-1) * unit  # M^{-1}
        B = C @ inner
        weight = 1 / (L.square().sum(0).unsqueeze(-1) * inner.diagonal())  # of entry (k, j)
        B = (weight * B + weight.mT * B.mT) / (weight + weight.mT)  # (3)
        l, W = torch.linalg.eigh(B)
        scale = l.clamp(1 / WIDER, NARROWER).rsqrt()
        self.factor = _axes(L @ (W * scale))
        pull = inverse.mT @ (g_mean + B @ y_mean)  # the fitted score at m
        step = self.factor.mT @ pull  # (4), in the new coordinates
        noise = self.factor.square().sum(0) / w.sum()
        step = step * step.square() / (step.square() + noise)  # what is noise is left out
        step = step.clamp(-FARTHEST, FARTHEST)
        self.x = self.x + step @ self.factor.mT
        return bool(step.abs().max() > 1 or l.amax() > 4 or l.amin() < 0.25)


def _axes(factor: Tensor) -> Tensor:
    """The factor of the same covariance whose columns are its principal axes: flat and steep ones apart."""
    U, S, _ = torch.linalg.svd(factor)
    return U * S

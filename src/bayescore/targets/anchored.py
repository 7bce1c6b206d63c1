"""Posterior of very many data around an anchor near its mode: mini-batch scores whose noise vanishes there.

With s the score of all data, s_B that of a mini-batch B (minibatch.py, (2)) and an anchor a,
    s_hat(theta) = s(a) + s_B(theta) - s_B(a)                                                            (1)
is unbiased, costs one pass over the data for s(a), and is exact at theta = a (control variates: Johnson and
Zhang 2013, Baker et al. 2019). At a distance of one posterior standard deviation its noise is a share of
about 1/sqrt|B| of the score, however many data there are; that of s_B is sqrt(N/|B|) times the score.

The log density is that of a small sample E of the data, with the score of all data and the curvature of a
larger sample C at the anchor, H_E and H_C being the Hessians there:
    log Phi(theta) = log Phi_E(theta) + (s(a) - s_E(a)) . d + d^T (H_C - H_E) d / 2,   d = theta - a     (2)
(Jordan, Lee and Yang 2019, with a second-order term). It serves for evaluation near the anchor.

The anchor: Newton's method on E; then, with P = -H_C taken where that ends,
    a <- a + P^{-1} s_C(a)  four times,   a <- a + P^{-1} s(a)  until  s(a)^T P^{-1} s(a) < D / 1000     (3)
of which only the latter take a pass over all data each. At the end P is taken once more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.checks import check_count
from bayescore.rng import Streams
from bayescore.targets.base import Target
from bayescore.targets.minibatch import MiniBatchPosterior

__all__ = ["AnchoredPosterior"]

MOST_DIM = 400  # of Newton's method
CLIMBS, HALVINGS = 50, 20  # the most Newton steps on a sample, and halvings of one
PASSES = 8  # the most of (3)
CLOSE = 1e-3  # of (3), per dimension
SAMPLED_STEPS = 4  # of (3) on C
SAMPLED_CLOSE = 1e-6  # the same on a sample, whose own error is larger


class AnchoredPosterior(Target):
    """A posterior with scores (1) and the log density (2); the anchor is found when it is made.

    Arguments:
        posterior: with a `batch_size`.
        start: where Newton's method begins, (D,); zeros by default.
        rows: |C|, how many data tell the curvature; the error of a standard deviation is then about
            1/sqrt(2 |C|). |E| is a twentieth of it, at least 10 D.
        seed: of the samples.

    `bs.fit(target)` begins at the Gaussian of (2) at the anchor, without a search.

        data = bs.targets.MiniBatchPosterior(log_likelihood, (X, y), log_prior, dim=50, batch_size=500)
        fit = bs.fit(bs.targets.AnchoredPosterior(data))
    """

    name = "anchored"
    stochastic = True

    def __init__(
        self, posterior: MiniBatchPosterior, *, start: Tensor | None = None, rows: int = 20_000, seed: int = 0
    ) -> None:
        if not isinstance(posterior, MiniBatchPosterior) or not posterior.stochastic:
            raise TypeError(f"an anchor serves a MiniBatchPosterior with a batch_size; got {posterior!r}")
        check_count("rows", rows)
        self.posterior, self.dim = posterior, posterior.dim
        self.dtype, self.device = posterior.dtype, posterior.device
        if self.dim > MOST_DIM:
            raise ValueError(f"an anchor is found in at most {MOST_DIM} dimensions; got {self.dim}")
        begin = torch.zeros(self.dim, dtype=self.dtype, device=self.device) if start is None else start
        if begin.shape != (self.dim,) or begin.dtype != self.dtype:
            got = f"{begin.dtype} {tuple(begin.shape)}"
            raise ValueError(f"start must be {self.dtype} of the shape ({self.dim},); got {got}")
        larger = posterior.subset(min(rows, posterior.num_data), seed)
        size = min(max(rows // 20, 10 * self.dim), posterior.num_data)
        #: the posterior of E
        self.subset = posterior.subset(size, seed)
        anchor, points = climb(self.subset, begin)
        precision = _positive_factor(-_hessian(larger, anchor))
        for _ in range(SAMPLED_STEPS):
            score = larger.log_prob_and_score(anchor.unsqueeze(0))[1][0]
            anchor = anchor + torch.cholesky_solve(score.unsqueeze(-1), precision).squeeze(-1)
        #: how many passes over all data the anchor took
        self.passes = 0
        while True:
            total = posterior.log_prob_and_score(anchor.unsqueeze(0))[1][0]  # s(a)
            self.passes += 1
            step = torch.cholesky_solve(total.unsqueeze(-1), precision).squeeze(-1)
            if float(total @ step) < CLOSE * self.dim or self.passes == PASSES:
                break
            anchor = anchor + step  # (3)
        self.anchor, self.total = anchor, total
        self.tilt = total - self.subset.log_prob_and_score(anchor.unsqueeze(0))[1][0]
        curvature = _hessian(larger, anchor)
        self.bend = curvature - _hessian(self.subset, anchor)
        precision = _positive_factor(-curvature)
        step = torch.cholesky_solve(total.unsqueeze(-1), precision).squeeze(-1)
        #: how often the log likelihood of a datum was evaluated at a point to find the anchor
        self.evaluations = size * (points + 1 + self.dim) + 2 * len(larger.data[0]) * self.dim
        self.evaluations += SAMPLED_STEPS * len(larger.data[0])
        self.evaluations += posterior.num_data * self.passes
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        factor = torch.linalg.solve_triangular(precision.mT, eye, upper=True)
        #: mean (D,) and factor of the covariance (D, D) of the Gaussian that (3) ends with
        self.gaussian = anchor + step, factor

    def log_prob(self, x: Tensor) -> Tensor:
        d = x - self.anchor
        return self.subset.log_prob(x) + d @ self.tilt + 0.5 * ((d @ self.bend) * d).sum(-1)  # (2)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(2) and its gradient."""
        value, score = self.subset.log_prob_and_score(x)
        d = x - self.anchor
        bent = d @ self.bend
        return value + d @ self.tilt + 0.5 * (bent * d).sum(-1), score + self.tilt + bent

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        """(1) at points (F, S, D)."""
        anchors = self.anchor.expand(x.shape[0], 1, self.dim)
        s = self.posterior.score(torch.cat([x, anchors], 1), streams)  # the points of a fit share B
        return self.total + s[:, :-1] - s[:, -1:]

    def __repr__(self) -> str:
        sizes = f"data={self.posterior.num_data}, batch_size={self.posterior.batch_size}"
        return f"{type(self).__name__}(dim={self.dim}, {sizes}, anchor after {self.passes} passes)"


def climb(target: MiniBatchPosterior, x: Tensor) -> tuple[Tensor, int]:
    """The mode (D,) of an exact posterior by Newton's method from x, and how many points were evaluated.

    A step that does not rise is halved.
    """
    value, points = float(target.log_prob(x.unsqueeze(0))), 1
    for _ in range(CLIMBS):
        score = target.log_prob_and_score(x.unsqueeze(0))[1][0]
        step = torch.cholesky_solve(score.unsqueeze(-1), _positive_factor(-_hessian(target, x))).squeeze(-1)
        points += 1 + target.dim
        if float(score @ step) < SAMPLED_CLOSE * target.dim:
            return x + step, points
        for size in (0.5**k for k in range(HALVINGS)):
            new = float(target.log_prob((x + size * step).unsqueeze(0)))
            points += 1
            if new > value:
                break
        else:
            return x, points
        x, value = x + size * step, new
    return x, points


def _hessian(target: MiniBatchPosterior, x: Tensor) -> Tensor:
    """grad^2 log Phi at x (D,), (D, D)."""
    eye = torch.eye(target.dim, dtype=x.dtype, device=x.device)
    H = target.hessian_product(x.expand(target.dim, target.dim), eye)
    return 0.5 * (H + H.mT)


def _positive_factor(P: Tensor) -> Tensor:
    """The Cholesky factor of P, its eigenvalues taken absolutely where it is not positive definite."""
    factor, failed = torch.linalg.cholesky_ex(P)
    if not failed:
        return factor
    l, W = torch.linalg.eigh(P)
    l = l.abs().clamp_min(1e-8 * l.abs().max())
    return torch.linalg.cholesky((W * l) @ W.mT)

"""Posterior of very many data around an anchor near its mode: mini-batch scores whose noise vanishes there.

With s the score of all data, s_B that of a mini-batch B (minibatch.py, (2)) and an anchor a,
    s_hat(theta) = s(a) + s_B(theta) - s_B(a)                                                            (1)
is unbiased, costs one pass over the data for s(a), and is exact at theta = a (control variates: Johnson and
Zhang 2013, Baker et al. 2019). At a distance of one posterior standard deviation its noise is a share of
about 1/sqrt|B| of the score, however many data there are; that of s_B is sqrt(N/|B|) times the score.

The log density is that of a fixed sample C of the data, tilted so that its score at a is that of all data,
    log Phi(theta) = log Phi_C(theta) + (s(a) - s_C(a)) . (theta - a)                                    (2)
(Jordan, Lee and Yang 2019). It serves for evaluation: its curvature is that of the sample.

The anchor: Newton's method on a tenth of C, then on C; then, with P = -grad^2 (2), a pass over all data each,
    a <- a + P^{-1} s(a)          until  s(a)^T P^{-1} s(a) < D / 100                                    (3)
"""

from __future__ import annotations

from functools import cached_property

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
CLOSE = 0.01  # of (3), per dimension
SAMPLED_CLOSE = 1e-6  # the same on a sample, whose own error is larger


class AnchoredPosterior(Target):
    """A posterior with scores (1) and the log density (2); the anchor is found when it is made.

    Arguments:
        posterior: with a `batch_size`.
        start: where Newton's method begins, (D,); zeros by default.
        rows: |C|, how many data the sample has; their share of error in a standard deviation is about
            1/sqrt(2 |C|).
        seed: of the sample.

    `bs.fit(target)` begins at the Gaussian of (2) at the anchor, without a search.

        data = bs.targets.MiniBatchPosterior(log_likelihood, (X, y), log_prior, dim=50, batch_size=500)
        fit = bs.fit(bs.targets.AnchoredPosterior(data))
    """

    name = "anchored"
    stochastic = True

    def __init__(
        self, posterior: MiniBatchPosterior, *, start: Tensor | None = None, rows: int = 10_000, seed: int = 0
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
        self.subset = posterior.subset(min(rows, posterior.num_data), seed)
        near = climb(posterior.subset(max(self.dim, len(self.subset.data[0]) // 10), seed), begin)
        anchor = climb(self.subset, near)
        precision = _precision(self.subset, anchor)
        #: how many passes over all data the anchor took
        self.passes = 0
        while True:
            total = posterior.log_prob_and_score(anchor.unsqueeze(0))[1][0]  # s(a)
            self.passes += 1
            step = torch.cholesky_solve(total.unsqueeze(-1), precision).squeeze(-1)
            far = float(total @ step) / self.dim
            if far < CLOSE or self.passes == PASSES:
                break
            anchor = anchor + step  # (3)
        self.anchor, self.total = anchor, total
        self.tilt = total - self.subset.log_prob_and_score(anchor.unsqueeze(0))[1][0]

    @cached_property
    def gaussian(self) -> tuple[Tensor, Tensor]:
        """Mean (D,) and covariance factor (D, D) of the Gaussian of (2) at the anchor."""
        precision = _precision(self.subset, self.anchor)
        mean = self.anchor + torch.cholesky_solve(self.total.unsqueeze(-1), precision).squeeze(-1)
        eye = torch.eye(self.dim, dtype=self.dtype, device=self.device)
        return mean, torch.linalg.solve_triangular(precision.mT, eye, upper=True)

    def log_prob(self, x: Tensor) -> Tensor:
        return self.subset.log_prob(x) + (x - self.anchor) @ self.tilt  # (2)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(2) and its gradient."""
        value, score = self.subset.log_prob_and_score(x)
        return value + (x - self.anchor) @ self.tilt, score + self.tilt

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        """(1) at points (F, S, D)."""
        anchors = self.anchor.expand(x.shape[0], 1, self.dim)
        s = self.posterior.score(torch.cat([x, anchors], 1), streams)  # the points of a fit share B
        return self.total + s[:, :-1] - s[:, -1:]

    def __repr__(self) -> str:
        sizes = f"data={self.posterior.num_data}, batch_size={self.posterior.batch_size}"
        return f"{type(self).__name__}(dim={self.dim}, {sizes}, rows={len(self.subset.data[0])})"


def climb(target: MiniBatchPosterior, x: Tensor) -> Tensor:
    """The mode (D,) of an exact posterior by Newton's method from x, halving a step that does not rise."""
    value = float(target.log_prob(x.unsqueeze(0)))
    for _ in range(CLIMBS):
        score = target.log_prob_and_score(x.unsqueeze(0))[1][0]
        step = torch.cholesky_solve(score.unsqueeze(-1), _precision(target, x)).squeeze(-1)
        if float(score @ step) < SAMPLED_CLOSE * target.dim:
            return x + step
        sizes = 0.5 ** torch.arange(HALVINGS, dtype=x.dtype, device=x.device)
        for size in sizes.tolist():
            new = float(target.log_prob((x + size * step).unsqueeze(0)))
            if new > value:
                break
        else:
            return x
        x, value = x + size * step, new
    return x


def _precision(target: MiniBatchPosterior, x: Tensor) -> Tensor:
    """The Cholesky factor of -grad^2 log Phi(x), its eigenvalues taken absolutely where it is not concave."""
    eye = torch.eye(target.dim, dtype=x.dtype, device=x.device)
    H = -target.hessian_product(x.expand(target.dim, target.dim), eye)
    H = 0.5 * (H + H.mT)
    factor, failed = torch.linalg.cholesky_ex(H)
    if not failed:
        return factor
    l, W = torch.linalg.eigh(H)
    l = l.abs().clamp_min(1e-8 * l.abs().max())
    return torch.linalg.cholesky((W * l) @ W.mT)

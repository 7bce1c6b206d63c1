"""The diagnosis of a fit: the tail of its importance ratios, and how far every parameter moves under weights.

With draws x_i ~ q, ratios r_i = Phi(x_i)/q(x_i) and Pareto-smoothed weights w_i that sum to one
(metrics/psis.py), every parameter has a mean m and a standard deviation s under q, and m_w, s_w under w:
    shift of the mean  (m_w - m) / s_w,      error  sqrt(sum w^2 (x - m_w)^2) / s_w                    (1)
    shift of the sd    log(s_w / s),         error  sqrt(sum w^2 ((x - m_w)^2 - s_w^2)^2) / (2 s_w^2)  (2)
and a quantile Q(p) at a level p, Q_w(p) under w, where sum over x_i <= Q_w(p) of w_i is p:
    shift of Q(p)      (Q_w(p) - Q(p)) / s_w,    error  (Q_w(p + d) - Q_w(p - d)) / (2 s_w),
                                                 d^2 = sum w^2 (1[x <= Q_w(p)] - p)^2                  (3)
The errors are those of Monte Carlo. Weights correct q only as far as its draws reach. With the tail index k
of r_i max(1, (x_i - m_w)^2/s_w^2) (metrics/psis.py), plus its standard error, a share of about
    f = n^(k - 1)                the condition n >= 10^(1/(1 - k)) of Vehtari et al. is f <= 0.1           (4)
of what weights have to correct is not seen in n draws, and after weighting is left of (1) and (2)
    |m_w - m| / s_w  f/(1 - f),          log(1 + |1 - s^2/s_w^2| f/(1 - f)) / 2                            (5)
If that is not good, resampled draws x_0 are also moved (moves.py). Let c be the larger of the correlation of
the ranks of x_0 and x_M, before and after M moves of the n draws of a pilot, and that of the ranks of
|x - median|, plus two errors 2/sqrt(n). What draws began with has decayed by c, so that the odds f/(1 - f) in
(5) become c f/(1 - f); and of what moves are seen to change, d_m = |mean x_M - mean x_0| / sd x_M and
d_s = |log(sd x_M / sd x_0)|, the part 1 - c of the whole, c/(1 - c) is still to come. Left is the larger of
    (5) with c f/(1 - f),          max(d_m, d_s) c/(1 - c)                                                (6)
Means and standard deviations decide the grade; quantiles are told in the table of parameters:
    good      all |(1)|, |(2)| <= 0.1 up to two errors, and all (5) <= 0.15     use q itself
    usable    all (5) or all (6) <= 0.15                                        use resampled draws
    poor      else: weights and moves cannot correct q, nor measure how far it is off
No limit is set to k-hat, the tail index of r_i alone: it does not say how much there is to correct.
Draws are added, 4,000 at first and 64,000 at most, until q is good by two errors and all f <= 0.1: from 4,000
draws, tail indices of one posterior can be anything from 0.5 to 3, for a few large ratios decide them.   (7)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayescore.metrics.estimate import Estimate
from bayescore.metrics.psis import smoothed_log_weights, tail_indices

__all__ = [
    "FIRST_DRAWS",
    "LEFT_LIMIT",
    "MOST_NUMBERS",
    "Diagnosis",
    "Shifts",
    "diagnose",
    "left_over",
    "memory",
    "quantile_shifts",
    "to_come",
    "unseen",
]

FIRST_DRAWS, MOST_DRAWS, GROWTH = 4000, 64_000, 4
MOST_NUMBERS = 16_000_000  # draws times parameters
SORTED_NUMBERS = 2_000_000  # of draws times parameters that are sorted together
LIMIT = 0.1  # of (1) in standard deviations, and of (2), about 10 %
LEFT_LIMIT = 0.15  # of (5)
MOST_UNSEEN = 0.999  # f in (4), where k is 1 or more
SEEN_ENOUGH = 0.1  # f with which no more draws are asked for
CONSTANT_SPREAD = 0.1  # nats: log ratios that vary less than this need no tail index to be trusted


@dataclass(frozen=True)
class Shifts:
    """(1) and (2) of K parameters, with their Monte Carlo errors; tensors (K,)."""

    mean: Tensor
    mean_error: Tensor
    sd: Tensor
    sd_error: Tensor

    @classmethod
    def of(cls, x: Tensor, weights: Tensor) -> Shifts:
        """Of draws (n, K) with weights (n,) that sum to one. Parameters that do not vary have none."""
        w = weights.unsqueeze(-1)
        m, s = x.mean(0), x.std(0)
        m_w = (w * x).sum(0)
        square = (x - m_w).square()
        variance = (w * square).sum(0)
        fixed = _fixed(m, s) | ~(variance > 0)
        safe = torch.where(fixed, 1.0, variance)
        shift = (m_w - m) / safe.sqrt()
        mean_error = ((w.square() * square).sum(0) / safe).sqrt()
        log_sd = 0.5 * safe.log() - torch.where(fixed, 1.0, s).log()
        sd_error = (w.square() * (square - variance).square()).sum(0).sqrt() / (2 * safe)
        parts = (shift, mean_error, log_sd, sd_error)
        return cls(*(torch.where(fixed, 0.0, part) for part in parts))

    @property
    def small(self) -> bool:
        """Whether (1) and (2) of all parameters are below the limit by two errors."""
        sizes = torch.cat([self.mean.abs(), self.sd.abs()])
        errors = 2 * torch.cat([self.mean_error, self.sd_error])
        return bool((sizes + errors <= LIMIT).all())

    def within(self, limit: float) -> bool:
        """Whether every shift is within a limit, up to twice its Monte Carlo error, and that is known well.

        The largest of many shifts is their noise, hence the two errors; an error of half the limit or more
        decides nothing.
        """
        sizes = torch.cat([self.mean.abs(), self.sd.abs()])
        errors = torch.cat([self.mean_error, self.sd_error])
        return bool((sizes - 2 * errors <= limit).all() and (errors <= limit / 2).all())


def unseen(log_ratios: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """f in (4) for every parameter (K,), of draws (n, K) with their weights (n,)."""
    n, found = len(x), []
    for part in x.split(max(1, SORTED_NUMBERS // n), 1):
        square = (part - weights @ part).square()  # (n, columns)
        variance = weights @ square
        scaled = square / torch.where(variance > 0, variance, 1.0)
        k, error = tail_indices(log_ratios.unsqueeze(-1) + scaled.clamp_min(1.0).log())
        found.append(((k + error - 1).clamp_max(0.0) * math.log(n)).exp())
    return torch.cat(found).clamp_max(MOST_UNSEEN)


def left_over(shifts: Shifts, f: Tensor, c: Tensor | float = 1.0) -> Tensor:
    """The larger of the two of (5) for every parameter (K,), with c of (6)."""
    odds = c * f / (1 - f)
    sd = 0.5 * (odds * (1 - (-2 * shifts.sd).exp()).abs()).log1p()
    return torch.maximum(shifts.mean.abs() * odds, sd)


def memory(before: Tensor, after: Tensor) -> Tensor:
    """c in (6) for every parameter (K,), of draws (n, K) before and after moves."""
    away = [(x - x.median(0).values).abs() for x in (before, after)]
    found = torch.maximum(_rank_correlation(before, after), _rank_correlation(*away))
    return (found + 2 / math.sqrt(len(before))).clamp(max=1.0)


def to_come(before: Tensor, after: Tensor, c: Tensor) -> Tensor:
    """The second of (6) for every parameter (K,); inf where a draw is not finite."""
    mean, sd = after.mean(0), after.std(0)
    seen = torch.maximum((mean - before.mean(0)).abs() / sd, (sd / before.std(0)).log().abs())
    left = torch.where(c < 1, seen.nan_to_num(math.inf, math.inf) * c / (1 - c), torch.inf)
    fixed = _fixed(mean, torch.maximum(sd, (before - mean).abs().amax(0)))
    return torch.where(fixed & mean.isfinite(), 0.0, left)


def _fixed(mean: Tensor, sd: Tensor) -> Tensor:
    """Whether a parameter does not vary but for rounding; also where it is not finite."""
    return ~(sd > 1e-12 * (1 + mean.abs()))


def _rank_correlation(x: Tensor, y: Tensor) -> Tensor:
    """The absolute correlation (K,) of the ranks in the columns of (n, K); 0 of numbers that do not vary."""
    a, b = (_ranks(z) - 0.5 * (len(z) - 1) for z in (x, y))
    norm = (a.square().sum(0) * b.square().sum(0)).sqrt()
    return torch.where(norm > 0, (a * b).sum(0).abs() / norm, 0.0)


def _ranks(x: Tensor) -> Tensor:
    """Ranks from 0 in the columns of (n, K); equal numbers have their mean."""
    columns = x.T.contiguous()
    ordered = columns.sort(1).values
    first, last = (torch.searchsorted(ordered, columns, right=right) for right in (False, True))
    return 0.5 * (first + last - 1).T.to(x.dtype)


def quantile_shifts(x: Tensor, weights: Tensor, levels: Sequence[float]) -> tuple[Tensor, Tensor]:
    """(3) of draws (n, K) with weights (n,) that sum to one: shifts and errors, (K, number of levels).

    Parameters that do not vary have none.
    """
    shifts, errors = [], []
    for part in x.split(max(1, SORTED_NUMBERS // len(x)), 1):
        values, order = part.sort(0)
        w = weights[order]  # (n, columns)
        mass = w.cumsum(0)  # what lies at or below a value
        s = (w * (values - (w * values).sum(0)).square()).sum(0).sqrt()
        fixed = _fixed(part.mean(0), part.std(0)) | ~(s > 0)
        safe = torch.where(fixed, torch.inf, s)
        for p in levels:
            at = _quantile(values, mass, torch.full_like(s, p))
            d = (w.square() * ((values <= at).to(w.dtype) - p).square()).sum(0).sqrt()
            reach = _quantile(values, mass, p + d) - _quantile(values, mass, p - d)
            shifts.append((at - values[math.ceil(p * len(values)) - 1]) / safe)
            errors.append(0.5 * reach / safe)
    return _by_level(shifts, len(levels)), _by_level(errors, len(levels))


def _by_level(parts: list[Tensor], levels: int) -> Tensor:
    """(K, levels) from the columns of the first block at each level, then of the second, ..."""
    return torch.cat([torch.stack(parts[i : i + levels], -1) for i in range(0, len(parts), levels)])


def _quantile(values: Tensor, mass: Tensor, level: Tensor) -> Tensor:
    """The values (K,) at levels (K,) of weighted draws: sorted values (n, K) and the mass up to each."""
    index = torch.searchsorted(mass.mT.contiguous(), level.unsqueeze(-1)).clamp_max(len(values) - 1)
    return values.gather(0, index.mT).squeeze(0)


@dataclass(frozen=True)
class Diagnosis:
    """What the importance ratios at draws of q say: log ratios (n,), k-hat, and parameters under weights."""

    log_ratios: Tensor
    khat: Estimate
    shifts: Shifts | None  # None where a ratio or a parameter is not finite
    unseen: Tensor | None  # f in (4), (K,)
    moves: int = 0  # of resampled draws, which the grade rests on: M in (6)
    after_moves: Tensor | None = None  # (6), (K,)
    score_calls: int = 0  # of the pilot

    @property
    def finite(self) -> bool:
        return bool(self.log_ratios.isfinite().all())

    @property
    def spread(self) -> float:
        """The standard deviation of the log ratios, in nats."""
        return float(self.log_ratios.std())

    @property
    def elbo(self) -> Estimate:
        """E_q[log Phi - log q] and its Monte Carlo error."""
        ratios = self.log_ratios
        return Estimate(float(ratios.mean()), float(ratios.std()) / math.sqrt(len(ratios)))

    @property
    def close(self) -> bool:
        """Whether log Phi and log q differ by a constant, so that no tail index is needed."""
        return self.finite and self.spread < CONSTANT_SPREAD

    @property
    def after_weights(self) -> Tensor | None:
        """(5): how far means and standard deviations may be off after weighting, (K,)."""
        return None if self.shifts is None or self.unseen is None else left_over(self.shifts, self.unseen)

    @property
    def left(self) -> Tensor | None:
        """How far means and sds of resampled draws may be off, (K,): (6) if they are moved, else (5)."""
        return self.after_moves if self.moves else self.after_weights

    @property
    def good(self) -> bool:
        """Whether q itself can be used."""
        if self.close:
            return True
        left = self.after_weights
        seen = left is not None and bool((left <= LEFT_LIMIT).all())
        return seen and self.shifts is not None and self.shifts.within(LIMIT)

    @property
    def usable(self) -> bool:
        """Whether resampled draws can be used."""
        return self.left is not None and bool((self.left <= LEFT_LIMIT).all())

    def with_moves(self, moves: int, before: Tensor, after: Tensor, score_calls: int) -> Diagnosis:
        """This diagnosis with a pilot of draws (n, K) before and after moves, at the cost of `score_calls`.

        It rests on moves where they leave little enough, or less than weights alone.
        """
        assert self.after_weights is not None
        assert self.shifts is not None
        assert self.unseen is not None
        c = memory(before, after)
        left = torch.maximum(left_over(self.shifts, self.unseen, c), to_come(before, after, c))  # (6)
        if float(left.max()) <= max(LEFT_LIMIT, float(self.after_weights.max())):
            return replace(self, moves=moves, after_moves=left, score_calls=score_calls)
        return replace(self, score_calls=score_calls)

    @property
    def undecided(self) -> bool:
        """(7): whether more draws could change the grade."""
        if not self.finite or self.shifts is None or self.unseen is None or self.close:
            return False
        return not (self.shifts.small and bool((self.unseen <= SEEN_ENOUGH).all()))


def diagnose(
    draw: Callable[[int, int], Tensor],
    log_ratio: Callable[[Tensor], Tensor],
    parameters: Callable[[Tensor], Tensor],
) -> Diagnosis:
    """The diagnosis, with as many draws as (7) asks for.

    Arguments:
        draw: from (n, number of the block) to draws (n, D); each block is independent of the others.
        log_ratio: from draws (n, D) to log Phi - log q, (n,).
        parameters: from draws (n, D) to what the user reads, (n, K).
    """
    ratios: list[Tensor] = []
    values: list[Tensor] = []
    wanted = FIRST_DRAWS
    while True:
        while sum(map(len, ratios)) < wanted:
            x = draw(FIRST_DRAWS, len(ratios))
            ratios.append(log_ratio(x).detach().cpu().double())
            values.append(parameters(x).detach().cpu().double())
        found = _judge(torch.cat(ratios), torch.cat(values))
        wanted *= GROWTH
        if wanted > MOST_DRAWS or wanted * values[0].shape[-1] > MOST_NUMBERS or not found.undecided:
            return found


def _judge(log_ratios: Tensor, values: Tensor) -> Diagnosis:
    log_weights, khat = smoothed_log_weights(log_ratios)
    if not (bool(log_ratios.isfinite().all()) and bool(values.isfinite().all())):
        return Diagnosis(log_ratios, khat, None, None)
    weights = log_weights.exp()
    return Diagnosis(log_ratios, khat, Shifts.of(values, weights), unseen(log_ratios, values, weights))

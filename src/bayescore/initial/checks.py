"""Checks of a target before a run: is it finite where q0 has its mass, and is its score a gradient?

    s(x) . v = d/dh log Phi(x + h v) at h = 0,  by a central difference                       (1)
A score without a density is evaluated far from q0 instead: if x . s(x) > 0 in every direction, the density
would grow without bound; most likely the score has the wrong sign                                  (2)
A log density that is linear in a coordinate cannot be normalised (targets/propriety.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayescore.families.base import Family
from bayescore.rng import Streams
from bayescore.targets.base import Target
from bayescore.targets.counting import CountedDensity
from bayescore.targets.propriety import REMEDY, improper_coordinates

__all__ = ["check_match", "check_target", "finite_points", "propriety_objection"]

RANDOM_POINTS = 100  # that are searched for finite ones
DRAWS = 20  # from q0, at which a target is checked


def check_match(target: Target, family: Family) -> None:
    """Refuse a family of another dimension, dtype or device than the target."""
    if target.dim != family.dim:
        raise ValueError(
            f"the target has {target.dim} dimensions and the family {family.dim}; make them equal"
        )
    if target.dtype != family.dtype:
        raise ValueError(
            f"the target works in {target.dtype} and the family in {family.dtype}; "
            f"use family.to({target.dtype})"
        )
    if target.device != family.device:
        raise ValueError(
            f"the target is on {target.device} and the family on {family.device}; "
            f"use family.to('{target.device}')"
        )


def finite_points(density: CountedDensity, centre: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """At most `count` finite points to climb from, (n, D): the centre and uniform points within 2 of it."""
    uniform = torch.rand(RANDOM_POINTS, len(centre), generator=rng, dtype=centre.dtype, device=centre.device)
    points = torch.cat([centre.unsqueeze(0), centre + 4 * uniform - 2])
    for some in (points[:count], points):  # the others are evaluated only if one of the first fails
        finite = density.log_prob_and_score(some)[0].isfinite()
        if finite.all():
            return some
    if not finite.any():
        raise ValueError(
            f"the log density or score is not finite at any of {len(points)} points around the start q0; "
            "move q0 to where the target lives (mean=, scale=) or check the target"
        )
    return points[finite][:count]


def check_target(target: Target, family: Family) -> int:
    """Check the target at draws from a batch of families (F,); returns the number of score calls per fit."""
    F = family.batch_shape[0]
    streams = Streams([104_729] * F, dtype=family.dtype, device=family.device)
    with torch.no_grad():
        x = family.transform(family.noise(streams, DRAWS))  # (F, 20, D)
    score = target.score(x, streams).detach()
    if score.shape != x.shape:
        raise ValueError(
            f"the score must have the shape of its points {tuple(x.shape)}; got {tuple(score.shape)}"
        )
    usable = score.isfinite().all(-1)
    if target.has_density:
        with torch.no_grad():
            value = target.log_prob(x)
        usable &= value.isfinite()
    if not usable.any(-1).all():
        what = "log density or score" if target.has_density else "score"
        raise ValueError(
            f"the {what} is not finite at any of {DRAWS} draws from the start q0; "
            "move q0 to where the target lives (mean=, scale=) or check the target"
        )
    if target.stochastic:
        return DRAWS
    if target.has_density:
        _check_gradient(target, x, score, usable, streams)
        return DRAWS
    _check_outward(target, x)
    return 2 * DRAWS


def _check_gradient(target: Target, x: Tensor, score: Tensor, usable: Tensor, streams: Streams) -> None:
    """(1) along one random direction per draw."""
    v = streams.normal(*x.shape[1:])
    v = v / v.norm(dim=-1, keepdim=True)
    eps = torch.finfo(x.dtype).eps
    h = eps ** (1 / 3) * (1 + x.norm(dim=-1, keepdim=True))
    numeric, noise = _slope(target, x, v, h)
    given = (score * v).sum(-1)
    far = (numeric - given).abs() > 0.02 * (numeric.abs() + given.abs()) + noise + 1e-6
    comparable = usable & numeric.isfinite()
    wrong = far & comparable
    if _mostly(wrong, comparable):
        # A density that a solver computes is not smooth on the scale of h, least of all at wild points: where
        # the quotients of two scales disagree, they say nothing about the score.
        wider, _ = _slope(target, x, v, 30 * h)
        rough = (wider - numeric).abs() > 0.02 * (wider.abs() + numeric.abs()) + noise + 1e-6
        comparable &= ~rough
        wrong &= ~rough
    if _mostly(wrong, comparable):
        i = wrong.nonzero()[0].tolist()
        a, b = float(given[*i]), float(numeric[*i])
        guess = "; its sign is flipped" if abs(a + b) < 0.02 * (abs(a) + abs(b)) else ""
        raise ValueError(
            f"the score is not the gradient of the log density{guess}: along a random direction it gives "
            f"{a:.6g} and the density changes by {b:.6g} (pass check=False if you know better)"
        )


def _slope(target: Target, x: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """The central difference quotient along v, and the error that rounding alone can cause in it."""
    with torch.no_grad():
        up, down = target.log_prob(x + h * v), target.log_prob(x - h * v)
    h = h.squeeze(-1)
    return (up - down) / (2 * h), 10 * torch.finfo(x.dtype).eps * torch.maximum(up.abs(), down.abs()) / h


def _mostly(wrong: Tensor, comparable: Tensor) -> bool:
    return bool(comparable.any()) and float(wrong[comparable].double().mean()) > 0.5


def _check_outward(target: Target, x: Tensor) -> None:
    """(2) at points a thousand standard deviations of q0 away."""
    centre = x.mean(-2, keepdim=True)
    d = x - centre
    far = centre + 1e3 * d
    outward = (target.score(far) * d).sum(-1)
    if (outward > 0).all():
        raise ValueError(
            f"the score points outwards at all of {DRAWS} points far from the start: no density decays like "
            "that, so its sign is probably flipped; a score is the gradient of +log density "
            "(pass check=False if you know better)"
        )


def propriety_objection(target: Target, draws: Tensor) -> str | None:
    """A reason not to trust any fit, if the log density is linear in a coordinate."""
    linear = improper_coordinates(target, draws)
    if not linear:
        return None
    return f"the log density is linear in {', '.join(linear)}, so it cannot be normalised; {REMEDY}"

"""What a search and a fit say about a density, in sentences: has it a mode, and can it be normalised?"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bayescore.initial.ascent import Place
from bayescore.targets.base import Target
from bayescore.targets.propriety import improper_coordinates

__all__ = ["coordinate_names", "escaped", "improper", "told"]

RISE = 0.02  # nats over the last five places that show a climb on its way
FAR = 1e6  # where a q that follows a density without a mode has run off
REMEDY = "give every parameter a prior"


def coordinate_names(target: Target) -> list[str]:
    """The names of the coordinates, x[1] and so on where there are none."""
    return getattr(target, "names", None) or [f"x[{i + 1}]" for i in range(target.dim)]


def told(target: Target, places: Sequence[Place], kind: str, score_calls: int) -> str:
    """What the climbs found."""
    last = places[-1]
    starts = "1 point" if len(last.x) == 1 else f"{len(last.x)} points"
    climbs = f"{kind} climbs from {starts} ({score_calls:,} score calls)"
    if last.at_mode.any():
        return f"start: {climbs} found a mode"
    i = int(last.value.argmax())
    moved = int((last.x[i] - places[0].x[i]).abs().argmax())
    where = f"{coordinate_names(target)[moved]} = {float(last.x[i, moved]):.3g}"
    begin = "The fit begins at the local Gaussian of the best ELBO on the way"
    if kind == "L-BFGS":
        return f"start: {climbs} were still rising at the end, at {where}. {begin}"
    if float(last.value[i] - places[max(0, len(places) - 6)].value[i]) > RISE:
        return (
            f"no mode: at the end of {climbs} the log density still rises, towards {where} on the "
            f"unconstrained scale; centred hierarchical models do that, and missing priors. {begin}"
        )
    return f"no mode: {climbs} ended where the density is not smooth or has no peak. {begin}"


def improper(target: Target, draws: Tensor) -> str | None:
    """A reason for doubt if the log density is linear in a coordinate."""
    free = improper_coordinates(target, draws)
    if not free:
        return None
    return f"the log density is linear in {', '.join(free)}, so it cannot be normalised; {REMEDY}"


def escaped(target: Target, draws: Tensor) -> str | None:
    """A reason for doubt if q, having found no mode, has followed the density out of sight."""
    reach = draws.abs().amax(0)
    if float(reach.max()) < FAR:
        return None
    where = f"{float(reach.max()):.1e} along {coordinate_names(target)[int(reach.argmax())]}"
    return f"q ran off to {where}: the density has no mode and probably cannot be normalised; {REMEDY}"

"""Fit a family to a target by a method: one fit, many as one batch, or the rest of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.loop import Callback, Loop, Metric, Options
from bayescore.methods import Method, ProximalScore
from bayescore.result import Fit, Outcome
from bayescore.start import check_match
from bayescore.status import Plateau
from bayescore.targets.base import Target, as_batch

__all__ = ["Plateau", "fit", "fit_many", "resume"]

T = TypeVar("T")


def fit(
    target: Target,
    family: Family,
    method: Method | None = None,
    *,
    steps: int = 1000,
    seed: int = 0,
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | Sequence[int] | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> Fit:
    """Fit `family` to `target`.

    Arguments:
        target: what to approximate.
        family: where to start, q0; it is not changed.
        method: how; ProximalScore() by default.
        steps: the number of iterations T, which schedules refer to.
        seed: of all randomness of this run.
        metrics: what to record, by name, each (family, target) to a number per fit; by default the ELBO over
            64 fixed draws where the target has a density. `loss`, score calls and seconds come always.
        record_every: steps between records, or the steps to record at; about 50 records by default.
        stop: end early when a recorded quantity no longer improves.
        callbacks: called with the fit so far at every record; a true answer ends the run.
        progress: show a progress bar; by default if standard error is a terminal.
        check: check the target at the start (its calls are in `fit.counts.check_calls`).

    Returns:
        the fit. Ctrl-C returns the fit so far, and `bs.resume` continues it.

    >>> import bayescore as bs
    >>> target = bs.targets.Gaussian.random(dim=3, seed=0)
    >>> fit = bs.fit(target, bs.families.FullGaussian.init(3), bs.methods.BaM(), steps=50)
    >>> fit.khat.value < 0.5
    True
    """
    return fit_many(
        target,
        family,
        method,
        steps=steps,
        seeds=[seed],
        metrics=metrics,
        record_every=record_every,
        stop=stop,
        callbacks=callbacks,
        progress=progress,
        check=check,
    )[0]


def fit_many(
    target: Target | Sequence[Target],
    family: Family | Sequence[Family],
    method: Method | None = None,
    *,
    steps: int = 1000,
    seeds: Sequence[int],
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | Sequence[int] | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> list[Fit]:
    """Run one fit per seed, as one batch where target and family can be batched, else one after the other.

    `target` and `family` are one for all, or one per seed. Everything else is as in `fit`. A fit's result is
    the same whichever others run beside it.
    """
    method = ProximalScore() if method is None else method
    _check_kinds(target, family, method)
    check_count("steps", steps)
    due = _due(record_every, steps)
    check_count("the number of seeds", len(seeds))
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"a seed is an int that a file can hold; got {seed!r}")
    targets = _spread("targets", target, len(seeds))
    families = _spread("families", family, len(seeds))
    for t, q in zip(targets, families, strict=True):
        check_match(t, q)
        method.check(q, t)
    options = Options(metrics, due, stop, tuple(callbacks), progress, check)
    try:
        batch_family = type(families[0]).stack(families)
        batch_target = as_batch(targets)
    except (TypeError, ValueError):
        if len(seeds) == 1:
            raise
        fits: list[Fit] = []
        for t, q, seed in zip(targets, families, seeds, strict=True):
            loop = Loop.start(t, type(q).stack([q]), method, steps, [seed], options)
            # one Ctrl-C is for all of them
            fits += loop.stop() if fits and fits[-1].outcome is Outcome.INTERRUPTED else loop.run()
        return fits
    method.check(batch_family, batch_target)
    return Loop.start(batch_target, batch_family, method, steps, seeds, options, targets).run()


def resume(
    fit: Fit,
    *,
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | Sequence[int] | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
) -> Fit:
    """Continue an interrupted, stopped or loaded fit to its planned number of steps.

    With the same options the result is bitwise that of the run that was never interrupted.
    """
    if fit.target is None:
        raise ValueError("a fit is resumed with its target; load it with Fit.load(path, target)")
    due = _due(record_every, fit.state.horizon)
    return Loop.resumed(fit, Options(metrics, due, stop, tuple(callbacks), progress, False)).run()[0]


def _due(record_every: int | Sequence[int] | None, steps: int) -> frozenset[int]:
    """The steps that are recorded; the last one always is."""
    if record_every is None:
        record_every = max(1, steps // 50)
    if isinstance(record_every, Sequence):
        return frozenset(record_every) | {steps}
    check_count("record_every", record_every)
    return frozenset(range(record_every, steps + 1, record_every)) | {steps}


_KINDS = (
    ("target", Target, "wrap a function as bs.targets.LogDensity(fn, dim=...)"),
    ("family", Family, "make one, such as bs.families.FullGaussian.init(dim)"),
    ("method", Method, "make one, such as bs.methods.ProximalScore()"),
)


def _check_kinds(*given: object) -> None:
    for value, (name, kind, remedy) in zip(given, _KINDS, strict=True):
        members = value if isinstance(value, list | tuple) else [value]
        for member in members:
            if isinstance(member, type):
                raise TypeError(
                    f"{name} must be an object, not the class {member.__name__}; call it to make one"
                )
            if not isinstance(member, kind):
                what = f"got {type(member).__name__}; {remedy}"
                raise TypeError(f"{name} must be a bayescore {kind.__name__}; {what}")


def _spread(name: str, value: T | Sequence[T], n: int) -> list[T]:
    """One value per fit."""
    if not isinstance(value, Sequence):
        batch = getattr(value, "batch_shape", ())
        if batch:
            raise ValueError(f"{name} must be single; got a batch of {batch[0]} (give a list instead)")
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{n} seeds need {n} {name}; got {len(value)}")
    return list(value)

"""Fit a family to a target by a method: one fit, many as one batch, or the rest of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from bayescore.checks import check_count
from bayescore.families.base import Family
from bayescore.inference.auto import Wishes, auto
from bayescore.inference.joining import join
from bayescore.inference.loop import Callback, Loop, Metric
from bayescore.inference.outcome import Outcome
from bayescore.inference.result import Fit
from bayescore.inference.stopping import Plateau
from bayescore.initial.checks import check_match
from bayescore.initial.finding import Start, can_search, find_start, standard
from bayescore.methods import BaM, Method
from bayescore.targets.base import Target, as_batch
from bayescore.targets.counting import Counts

__all__ = ["Plateau", "fit", "fit_many", "resume"]

T = TypeVar("T")


def fit(
    target: Target,
    family: Family | Start | None = None,
    method: Method | str | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | Sequence[int] | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> Fit:
    """Fit `family` to `target`; `bs.fit(target)` finds a start, a family and a method by itself.

    Arguments:
        target: what to approximate.
        family: where to start, q0, or what `bs.find_start` found; it is not changed. Without one the family
            is chosen by the dimension, and the start is found by a search where there is a density to climb.
        method: how: a method, or "auto" (the default), which begins near a mode, runs BaM where scores are
            exact and proximal score matching where they are noisy, keeps the best q and says in `fit.notes`
            what it did.
        steps: the number of iterations T, which schedules refer to; 1000 unless given, and what suits the
            method with "auto".
        seed: of all randomness of this run.
        metrics: what to record, by name, each (family, target) to a number per fit; by default the ELBO over
            64 fixed draws where the target has a density. `loss`, score calls and seconds come always.
        record_every: steps between records, or the steps to record at; about 50 records by default.
        stop: end early when a recorded quantity no longer improves.
        callbacks: called with the fit so far at every record; a true answer ends the run.
        progress: show a progress bar; by default if standard error is a terminal.
        check: check the target at the start (its calls are in `fit.counts.check_calls`).

    Returns:
        the fit. Ctrl-C returns the fit so far, and `bs.resume` continues the method that was running.

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
    family: Family | Start | Sequence[Family] | None = None,
    method: Method | str | None = None,
    *,
    steps: int | None = None,
    seeds: Sequence[int],
    metrics: Mapping[str, Metric] | None = None,
    record_every: int | Sequence[int] | None = None,
    stop: Plateau | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    check: bool = True,
) -> list[Fit]:
    """Run one fit per seed, as one batch where target and family can be batched, else one after the other.

    `target` and `family` are one for all, or one per seed. Everything else is as in `fit`; "auto" runs one
    after the other. A fit's result is the same whichever others run beside it.
    """
    _check_kind("target", target)
    if family is not None and not isinstance(family, Start):
        _check_kind("family", family)
    if method not in (None, "auto"):
        _check_kind("method", method)
    chosen = method if isinstance(method, Method) else None
    if steps is not None:
        check_count("steps", steps)
    wishes = Wishes(steps, metrics, record_every, stop, tuple(callbacks), progress, check)
    check_count("the number of seeds", len(seeds))
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"a seed is an int that a file can hold; got {seed!r}")
    targets = _spread("targets", target, len(seeds))
    if chosen is None:
        if isinstance(family, Start):
            raise TypeError('"auto" finds a start by itself; name a method to begin at a start of yours')
        given = [None] * len(seeds) if family is None else _spread("families", family, len(seeds))
        return _automatic(targets, given, seeds, wishes)
    if family is None or isinstance(family, Start):
        found = [family or _start(t, seed, check) for t, seed in zip(targets, seeds, strict=True)]
        families = [start.family for start in found]
        searched = any(start.counts.start_calls for start in found)
        begun = fit_many(
            targets,
            families,
            chosen,
            steps=steps,
            seeds=seeds,
            metrics=metrics,
            record_every=record_every,
            stop=stop,
            callbacks=callbacks,
            progress=progress,
            check=check and not searched,
        )
        return [join(done, [done], start) for done, start in zip(begun, found, strict=True)]
    families = _spread("families", family, len(seeds))
    for t, q in zip(targets, families, strict=True):
        check_match(t, q)
        chosen.check(q, t)
    steps = 1000 if steps is None else steps
    options = wishes.options(steps)
    try:
        batch_family = type(families[0]).stack(families)
        batch_target = as_batch(targets)
    except (TypeError, ValueError):
        if len(seeds) == 1:
            raise
        fits: list[Fit] = []
        for t, q, seed in zip(targets, families, seeds, strict=True):
            loop = Loop.start(t, type(q).stack([q]), chosen, steps, [seed], options)
            # one Ctrl-C is for all of them
            fits += loop.stop() if fits and fits[-1].outcome is Outcome.INTERRUPTED else loop.run()
        return fits
    chosen.check(batch_family, batch_target)
    return Loop.start(batch_target, batch_family, chosen, steps, seeds, options, targets).run()


def _start(target: Target, seed: int, check: bool) -> Start:
    q0 = standard(target)
    if can_search(target, q0):
        return find_start(target, q0, seed=seed, check=check)
    return Start(q0, Counts(), 0.0, False, (), ())


def _automatic(
    targets: Sequence[Target], starts: Sequence[Family | None], seeds: Sequence[int], wishes: Wishes
) -> list[Fit]:
    fits: list[Fit] = []
    for t, q, seed in zip(targets, starts, seeds, strict=True):
        if fits and fits[-1].outcome is Outcome.INTERRUPTED:  # one Ctrl-C is for all of them
            q0 = standard(t) if q is None else q
            options = wishes.options(1000)
            loop = Loop.start(as_batch([t]), type(q0).stack([q0]), BaM(), 1000, [seed], options, [t])
            fits += loop.stop()
        else:
            fits.append(auto(t, q, seed, wishes))
    return fits


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
    wishes = Wishes(None, metrics, record_every, stop, tuple(callbacks), progress, check=False)
    done = Loop.resumed(fit, wishes.options(fit.state.horizon)).run()[0]
    return replace(done, notes=fit.notes, doubts=fit.doubts)


_KINDS = {
    "target": (Target, "wrap a function as bs.targets.LogDensity(fn, dim=...)"),
    "family": (Family, "make one, such as bs.families.FullGaussian.init(dim)"),
    "method": (Method, "make one, such as bs.methods.BaM()"),
}


def _check_kind(name: str, value: object) -> None:
    kind, remedy = _KINDS[name]
    for member in value if isinstance(value, list | tuple) else [value]:
        if isinstance(member, type):
            raise TypeError(f"{name} must be an object, not the class {member.__name__}; call it to make one")
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

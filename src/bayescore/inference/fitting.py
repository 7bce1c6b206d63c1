"""Fit a family to a target by a method: one fit, many as one batch, or the remaining steps of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import TypeVar, Unpack

from bayescore.checks import check_count, unknown_name
from bayescore.families.base import Family
from bayescore.inference.auto import auto_fit, interrupted
from bayescore.inference.loop import Loop
from bayescore.inference.on_ray import call_on_ray
from bayescore.inference.options import FitKeywords, ResumeKeywords, RunOptions
from bayescore.inference.result import Fit, Outcome, join_stages
from bayescore.initial.checks import check_match
from bayescore.initial.finding import Start, default_family, make_start
from bayescore.methods import METHODS, Method
from bayescore.rng import check_seed
from bayescore.targets.base import Target, as_batch

__all__ = ["fit", "fit_many", "resume"]

T = TypeVar("T")


def fit(
    target: Target,
    family: Family | Start | None = None,
    method: Method | str | None = None,
    *,
    seed: int = 0,
    **options: Unpack[FitKeywords],
) -> Fit:
    """Fit `family` to `target`; `bs.fit(target)` chooses a family, a start and a method itself.

    Arguments:
        target: the density to approximate.
        family: q0, where the fit begins, or a start from `bs.find_start`; it is not changed. By default the
            family is chosen by the dimension, and a start is searched for if there is a density to climb.
        method: a method, the name of one (`bs.methods.METHODS`) for its default settings, or "auto" (the
            default), which begins near a mode, runs BaM for exact scores and proximal score matching for
            noisy ones, keeps the best q and says in `fit.notes` what it did.
        steps: the number of steps T, which schedules refer to; 1000 by default; "auto" chooses its own.
        seed: of all randomness of this run.
        metrics: what to record: functions by name, each from (family, target) to one number per fit; by
            default the ELBO over 64 fixed draws if the target has a density. `loss`, score calls and seconds
            are always recorded.
        record_every: steps between records, or the steps to record at; about 50 records by default.
        stop: end early when a recorded quantity no longer improves.
        callbacks: called with the fit so far at every record; a true return value ends the run.
        progress: show a progress bar; by default if standard error is a terminal.
        check: check the target before the run (its calls are in `fit.counts.check_calls`).
        effort: of "auto": "quick" takes one route from the start it finds, to a Gaussian; "normal", the
            default, also begins at a broad q0 where the first route finds no mode or ends far away, and
            fits a flow around the Gaussian where weights cannot correct it; "thorough" begins at dispersed
            places too, and takes more steps for the flow.

    Returns:
        the fit. Ctrl-C returns the fit so far, and `bs.resume` continues the method that was running.

    >>> import bayescore as bs
    >>> target = bs.targets.Gaussian.random(dim=3, seed=0)
    >>> fit = bs.fit(target, bs.families.FullGaussian.init(3), bs.methods.BaM(), steps=50)
    >>> fit.khat.value < 0.5
    True
    """
    return fit_many(target, family, method, seeds=[seed], **options)[0]


def fit_many(
    target: Target | Sequence[Target],
    family: Family | Start | Sequence[Family] | None = None,
    method: Method | str | None = None,
    *,
    seeds: Sequence[int],
    engine: str = "local",
    **options: Unpack[FitKeywords],
) -> list[Fit]:
    """Run one fit per seed, together if targets and families can be batched, else one after the other.

    With engine="ray" every fit is a task of a Ray cluster instead: the one to which `ray.init` has connected,
    or this machine's cores.

    `target` and `family` are one for all seeds, or one per seed. Everything else is as in `fit`; "auto" runs
    one after the other. The result of a fit does not depend on which others run with it.
    """
    _check_kind("target", target)
    if family is not None and not isinstance(family, Start):
        _check_kind("family", family)
    chosen = _chosen_method(method)
    run = RunOptions.from_keywords("fit", FitKeywords, options)
    if chosen is not None and "effort" in options:
        raise TypeError('effort= is for method="auto"; a method that you name is bounded by steps=')
    check_count("the number of seeds", len(seeds))
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, Integral):
            raise TypeError(f"a seed is an int that a file can hold; got {seed!r}")
        check_seed(int(seed))
    seeds = [int(seed) for seed in seeds]
    targets = _one_per_fit("targets", target, len(seeds))
    if engine not in ("local", "ray"):
        raise unknown_name("engine", engine, ("local", "ray"))
    if engine == "ray":
        one_for_all = family is None or isinstance(family, Start)
        families = [family] * len(seeds) if one_for_all else _one_per_fit("families", family, len(seeds))
        rows = zip(targets, families, seeds, strict=True)
        return call_on_ray(
            fit, [((t, q, method), {**options, "seed": s, "progress": False}) for t, q, s in rows]
        )
    if chosen is None:
        if isinstance(family, Start):
            raise TypeError('"auto" finds a start by itself; name a method to begin at a start of yours')
        given = [None] * len(seeds) if family is None else _one_per_fit("families", family, len(seeds))
        return _automatic(targets, given, seeds, run)
    if family is None:
        starts = [
            make_start(t, default_family(t, chosen.serves), seed=s, check=run.check)
            for t, s in zip(targets, seeds, strict=True)
        ]
    elif isinstance(family, Start):
        starts = [family] * len(seeds)
    else:
        starts = [Start(q) for q in _one_per_fit("families", family, len(seeds))]
    if any(start.searched for start in starts):  # the search has checked the target
        run = replace(run, check=False)
    fits = _by_method(targets, [start.family for start in starts], chosen, seeds, run)
    return [
        join_stages(done, [done], start) if start.searched else done
        for done, start in zip(fits, starts, strict=True)
    ]


def _automatic(
    targets: Sequence[Target], families: Sequence[Family | None], seeds: Sequence[int], options: RunOptions
) -> list[Fit]:
    """Automatic fits, one after the other."""
    fits: list[Fit] = []
    for target, family, seed in zip(targets, families, seeds, strict=True):
        stopped = bool(fits) and fits[-1].outcome is Outcome.INTERRUPTED  # one Ctrl-C is for all of them
        fits.append((interrupted if stopped else auto_fit)(target, family, seed, options))
    return fits


def _by_method(
    targets: Sequence[Target],
    families: Sequence[Family],
    method: Method,
    seeds: Sequence[int],
    options: RunOptions,
) -> list[Fit]:
    """Fits by one method, as one batch if they can be stacked, else one after the other."""
    for target, family in zip(targets, families, strict=True):
        check_match(target, family)
        method.check(family, target)
    steps = options.steps or 1000
    try:
        batch_family, batch_target = type(families[0]).stack(families), as_batch(targets)
    except (TypeError, ValueError):  # they cannot be batched
        if len(seeds) == 1:
            raise
    else:
        method.check(batch_family, batch_target)
        loop = Loop.from_families(batch_target, targets, batch_family, method, steps, seeds, options)
        return loop.run()
    fits: list[Fit] = []
    for target, family, seed in zip(targets, families, seeds, strict=True):
        batch_family, batch_target = type(family).stack([family]), as_batch([target])
        loop = Loop.from_families(batch_target, [target], batch_family, method, steps, [seed], options)
        stopped = bool(fits) and fits[-1].outcome is Outcome.INTERRUPTED  # one Ctrl-C is for all of them
        fits += loop.not_run() if stopped else loop.run()
    return fits


def resume(fit: Fit, **options: Unpack[ResumeKeywords]) -> Fit:
    """Continue an interrupted, stopped or loaded fit to its planned number of steps.

    The options are those of `fit`. If they are the same as in the first run, the result is bitwise that of a
    run that was never interrupted.
    """
    if fit.target is None:
        raise ValueError("a fit is resumed with its target; load it with Fit.load(path, target)")
    run = RunOptions.from_keywords("resume", ResumeKeywords, options)
    done = Loop.from_fit(fit, run).run()[0]
    return replace(done, notes=fit.notes, _objections=fit._objections)


def _chosen_method(method: Method | str | None) -> Method | None:
    """The method, constructed if a name is given; None for "auto"."""
    if method is None or method == "auto":
        return None
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown_name("method", method, ["auto", *METHODS])
        return METHODS[method]()
    _check_kind("method", method)
    return method


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


def _one_per_fit(name: str, value: T | Sequence[T], n: int) -> list[T]:
    """A list of n values, from one for all or one per fit."""
    if not isinstance(value, Sequence):
        batch = getattr(value, "batch_shape", ())
        if batch:
            raise ValueError(f"{name} must be single; got a batch of {batch[0]} (give a list instead)")
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{n} seeds need {n} {name}; got {len(value)}")
    return list(value)

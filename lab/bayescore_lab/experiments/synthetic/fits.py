"""How a group of synthetic runs is executed: tune on pilot targets, fit all seeds as one batch, measure.

forward KL    closed form for a Gaussian target, else over 100,000 fixed exact draws per target
as printed    the same over 500 draws, as in the paper (standard error about sqrt(2 KL/500))
bound         forward KL of the Gaussian with the target's mean and covariance: the best of any Gaussian
weight error  total variation between the target's weights and the mass q gives to its components,
              E_q[r_k(x)], r_k the target's responsibilities
hits          first recorded step at which the forward KL is below 0.05, 0.01, 0.001
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import DiagonalGaussian, Family, FullGaussian, GaussianMixture
from bayescore.inference.result import Outcome
from bayescore.metrics import ForwardKL, parameter_errors
from bayescore.targets.gaussians import Known
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.methods import low_dimensional_method

__all__ = ["execute"]

PILOT_SEED = 100_000  # pilot targets are never test targets
HITS = (0.05, 0.01, 0.001)


def execute(runs: Sequence[Run]) -> Iterator[RunOutcome]:
    """One outcome per run; the runs share their config."""
    config = dict(runs[0].config)
    rate, pilot = _tune(config)
    seeds = [run.seed for run in runs]
    fits = _fit(config, seeds, rate)
    for run, fit in zip(runs, fits, strict=True):
        metrics, trace = _measure(config, run.seed, fit)
        metrics |= {"learning_rate": rate if rate is not None else math.nan, "pilot": pilot}
        ended = fit.status if fit.outcome is Outcome.DIVERGED else "ok"
        yield RunOutcome(run, metrics, fit.score_calls, trace, ended, fit.seconds / len(fits))


def _tune(config: dict[str, Any]) -> tuple[float | None, dict[str, list[float]]]:
    """The learning rate with the best median over the pilot targets, and what each gave.

    Best is the fewest steps to the level that the config asks for, counted only where the run also ends below
    it (`hold_below`), then the lowest final forward KL.
    """
    rates = config["learning_rates"]
    if not rates:
        return None, {}
    seeds = [PILOT_SEED + i for i in range(config["pilots"])]
    level = config.get("hold_below")
    scores: dict[str, list[float]] = {}
    for rate in rates:
        fits = _fit(config, seeds, rate)
        finals = [_final(fit) for fit in fits]
        held = (
            [_hit(fit, level) if final < level else math.inf for fit, final in zip(fits, finals, strict=True)]
            if level
            else []
        )
        scores[str(rate)] = [_median(values) for values in (held, finals) if values]
    return min(rates, key=lambda rate: scores[str(rate)]), scores


def _target(config: dict[str, Any], seed: int) -> Known:
    spec = config["target"]
    if spec["kind"] == "gaussian":
        return bs.targets.Gaussian.random(spec["dim"], seed=seed)
    return bs.targets.GaussianMixture.random(
        spec["dim"], spec["components"], spread=spec.get("spread", 1.0), seed=seed
    )


def _family(config: dict[str, Any]) -> str:
    """The kind of family that the config asks for."""
    if config.get("diagonal"):
        return "diagonal"
    return "full" if config["family"]["kind"] == "gaussian" else "mixture"


def _start(config: dict[str, Any], seed: int, method: bs.methods.Method) -> Family:
    """q0: the same for all methods; one that needs a Gaussian starts from the moments of the mixture."""
    dim, spec = config["target"]["dim"], config["family"]
    scale = spec.get("scale", 1.0)
    if config.get("diagonal"):
        return DiagonalGaussian.init(dim, scale=scale, seed=seed)
    if spec["kind"] == "gaussian":
        q0 = FullGaussian.init(dim, scale=scale, seed=seed)
        if spec.get("small") is None:
            return q0
        covariance = torch.eye(dim, dtype=torch.float64)
        covariance[0, 0] = spec["small"] ** 2
        return FullGaussian.from_moments(q0.mean, covariance)
    mixture = GaussianMixture.init(dim, spec["components"], seed=seed)
    if "GaussianMixture" in method.serves:
        return mixture
    return FullGaussian.from_moments(mixture.mean, mixture.covariance)


def _fit(config: dict[str, Any], seeds: Sequence[int], rate: float | None) -> list[bs.Fit]:
    options = dict(config["options"])
    if rate is not None:
        options["learning_rate"] = rate
        if config["method"] == "proximal":  # a tuned arm is the paper's algorithm unless it says otherwise
            options.setdefault("metric", "euclidean")
    method = low_dimensional_method(config["method"], family=_family(config), **options)
    targets = [_target(config, seed) for seed in seeds]
    batch = type(targets[0]).stack(targets)
    metrics: dict[str, Any] = {"forward_kl": ForwardKL(batch, config["trace_draws"], seed=1)}
    if config["target"]["kind"] == "gaussian":
        metrics["mean_error"] = lambda q, _: parameter_errors(batch, q)[0]  # type: ignore[arg-type]
        metrics["covariance_error"] = lambda q, _: parameter_errors(batch, q)[1]  # type: ignore[arg-type]
    return bs.fit_many(
        targets,
        [_start(config, seed, method) for seed in seeds],
        method,
        steps=config["steps"],
        seeds=list(seeds),
        metrics=metrics,
        record_every=_record_steps(config["steps"], config["records"]),
        progress=False,
        check=False,
    )


def _record_steps(steps: int, records: int) -> list[int]:
    """About `records` steps, log-spaced."""
    ratio = steps ** (1 / max(1, records - 1))
    return sorted({min(steps, max(1, round(ratio**i))) for i in range(records)} | {steps})


def _measure(config: dict[str, Any], seed: int, fit: bs.Fit) -> tuple[dict[str, Any], dict[str, list[float]]]:
    target, family = _target(config, seed), fit.family
    final = ForwardKL(target, config["final_draws"], seed=2)
    history = fit.history
    metrics: dict[str, Any] = {
        "forward_kl": _value(final(family)),
        "forward_kl_500": _value(_printed(target, family)),
        "bound": _value(final(FullGaussian.from_moments(target.mean, target.covariance))),
    }
    for threshold in HITS:
        step = _hit(fit, threshold)
        metrics[f"hit_{threshold}"] = step
        metrics[f"calls_{threshold}"] = _calls(fit, step)
    if isinstance(target, bs.targets.Gaussian):
        metrics["mean_error"], metrics["covariance_error"] = map(_value, parameter_errors(target, family))  # type: ignore[arg-type]
    else:
        mass = target.density.responsibilities(family.sample(20_000, seed=3)).mean(-1)  # type: ignore[union-attr]
        metrics["weight_error"] = _value(0.5 * (mass - target.weights).abs().sum())  # type: ignore[attr-defined]
    if isinstance(family, GaussianMixture):
        metrics["least_weight"] = _value(family.weights.min())
    trace = {k: list(history.columns[k]) for k in ("score_calls", "step", "forward_kl")}
    trace |= {k: list(history.columns[k]) for k in ("mean_error", "covariance_error") if k in history}
    return metrics, trace


def _printed(target: Known, family: Family) -> Tensor:
    """The forward KL as the paper estimates it, over 500 draws."""
    x = target.sample(500, seed=4)
    return (target.log_prob(x) - family.log_prob(x)).mean()


def _hit(fit: bs.Fit, threshold: float) -> float:
    """The first recorded step below the threshold, or infinity."""
    for row in fit.history:
        if row["forward_kl"] < threshold and row["step"] > 0:
            return row["step"]
    return math.inf


def _calls(fit: bs.Fit, step: float) -> float:
    return step * fit.score_calls / max(1, fit.state.step)


def _final(fit: bs.Fit) -> float:
    value = float(fit.history["forward_kl"][-1])
    return value if math.isfinite(value) else math.inf


def _value(x: Tensor) -> float:
    value = float(x)
    return value if math.isfinite(value) else math.inf


def _median(values: Sequence[float]) -> float:
    """The upper median, which is one of the values: infinities need no arithmetic."""
    return sorted(values)[len(values) // 2]

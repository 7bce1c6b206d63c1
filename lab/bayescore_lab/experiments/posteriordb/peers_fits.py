"""How a run of posteriordb-peers is executed: the default fit, then its peers with as many scores.

The peers run in a process of their own (peers_worker.py), because JAX's 64-bit switch is global.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bayescore.inference.fitting import fit
from bayescore.metrics import smoothed_log_weights
from bayescore.rng import generator
from bayescore.targets import Target
from bayescore_lab.engine import Run, RunOutcome
from bayescore_lab.engine.workers import Worker
from bayescore_lab.experiments.posteriordb.all_fits import DRAWS, draw_errors, target_of
from bayescore_lab.experiments.posteriordb.more import AUTO
from bayescore_lab.experiments.posteriordb.peers_methods import POOL

__all__ = ["execute", "measure"]

FEWEST = 1000  # draws with a finite density, without which there are no weights
PATIENCE = 3600.0  # seconds without an answer after which the process counts as hung
WORKER = "bayescore_lab.experiments.posteriordb.peers_worker"


def execute(todo: Sequence[Run]) -> Iterator[RunOutcome]:
    """The arms of one posterior with one seed."""
    name, seed = todo[0].config["posterior"], todo[0].seed
    target = target_of(name)
    began = time.perf_counter()
    found = fit(target, seed=seed, progress=False)
    seconds = time.perf_counter() - began
    peers = [run for run in todo if run.method != AUTO]
    for run in todo:
        if run.method == AUTO:
            x = found.family.sample(POOL, generator(seed, purpose="measure"))
            with torch.no_grad():
                log_q = found.family.log_prob(x)
            metrics = measure(target, name, x, log_q, (x, log_q))
            metrics |= {"setting": type(found.family).__name__, "values": found.counts.density_evaluations}
            yield RunOutcome(run, metrics, found.score_calls, seconds=seconds)
    if not peers:
        return
    with Worker(WORKER, PATIENCE) as worker:
        for run in peers:
            answer = worker.ask(posterior=name, peer=run.method, seed=seed, budget=found.score_calls)
            yield RunOutcome(
                run, answer["metrics"], answer["scores"], ended=answer["ended"], seconds=answer["seconds"]
            )


def measure(
    target: Target, name: str, x: Tensor, log_q: Tensor, pool: tuple[Tensor, Tensor] | None
) -> dict[str, Any]:
    """ELBO and errors of draws (n, D) with their log q; `pool` is what the method itself weights, if any."""
    plain = _error(target, name, x[:DRAWS])
    weighted = _error(target, name, _weighted(target, *((x, log_q) if pool is None else pool)))
    with torch.no_grad():
        elbo = float((target.log_prob(x) - log_q).mean())
    return {
        "elbo": elbo,
        "error": plain if pool is None else weighted,
        "plain_error": plain,
        "weighted_error": weighted,
        "reference": plain is not None,
    }


def _error(target: Target, name: str, draws: Tensor | None) -> float | None:
    """The larger of the errors of means and log sds; None without a reference, infinite without draws."""
    if draws is None:
        return float("inf")
    found = draw_errors(target, name, draws)
    return max(found["mean_error"], found["sd_error"]) if found else None


def _weighted(target: Target, x: Tensor, log_q: Tensor) -> Tensor | None:
    """DRAWS of the draws, chosen by Pareto-smoothed weights; None if nearly all have no density."""
    with torch.no_grad():
        ratios = target.log_prob(x) - log_q
    finite = ratios.isfinite()
    if int(finite.sum()) < FEWEST:
        return None
    weights = smoothed_log_weights(ratios[finite])[0].exp()
    chosen = torch.multinomial(weights, DRAWS, replacement=True, generator=generator(0, purpose="choice"))
    return x[finite][chosen]

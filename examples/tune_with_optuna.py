"""Optuna chooses the trials of a tuning, and every trial is a run like any other, with its record.

    pip install './lab[tuning]'
    python examples/tune_with_optuna.py --trials 16 --jobs 2
    python examples/tune_with_optuna.py --trials 16 --jobs 2 --engine ray

The records are those of `bayescore reproduce mnist-tuning`, in the same file, and a trial is a run that is
recorded at most once: the sampler has a seed, so that the command, given again after a kill or with more
trials, asks for the same settings first and finds their records. Trials that run together are chosen
together, so that the settings depend on the number of jobs.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna

from bayescore_lab.engine import Run, plan, run_plans
from bayescore_lab.engine.on_ray import work_on_ray
from bayescore_lab.engine.records import RecordStore
from bayescore_lab.experiments.networks.mnist_tuning import EXPERIMENT

METHOD = "Plain"


def settings(trial: optuna.Trial) -> dict[str, float]:
    return {
        "lr": trial.suggest_float("lr", 1e-4, 1e-2, log=True),
        "weight_decay": trial.suggest_float("weight_decay", 1.0, 50.0, log=True),
    }


def validation_losses(options: Sequence[dict[str, float]], asked: argparse.Namespace) -> list[float]:
    """The validation NLL of every setting, from its record; what is not recorded yet is run."""
    listed = plan(EXPERIMENT, asked.profile, seeds=1, methods=[METHOD])
    like = next(iter(listed.runs.values()))
    runs = [Run(METHOD, like.seed, {**like.config, "options": each}) for each in options]
    wanted = plan(replace(EXPERIMENT, runs=lambda *_: runs), asked.profile, seeds=1, methods=[METHOD])
    pool = work_on_ray if asked.engine == "ray" else None
    tally = run_plans([wanted], asked.out, asked.jobs, pool=pool)
    if tally.failures:
        raise SystemExit(f"a trial failed, and the same command tries it again: {tally.failures[0].error}")
    records = wanted.choose(RecordStore(wanted.folder(asked.out)).read())
    return [float(record.metrics["validation_nll"]) for record in records]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=2, help="trials that are chosen and run together")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--profile", choices=tuple(EXPERIMENT.profiles), default="quick")
    parser.add_argument("--out", type=Path, default=Path("results"))
    asked = parser.parse_args()

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    while len(study.trials) < asked.trials:
        trials = [study.ask() for _ in range(min(asked.jobs, asked.trials - len(study.trials)))]
        losses = validation_losses([settings(trial) for trial in trials], asked)
        for trial, loss in zip(trials, losses, strict=True):
            study.tell(trial, loss)
    print(f"best of {len(study.trials)}: {study.best_params}, validation NLL {study.best_value:.4f}")


if __name__ == "__main__":
    main()

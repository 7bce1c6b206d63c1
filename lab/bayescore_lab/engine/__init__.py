"""Evidence: grids of runs that write records, and the tables, figures and verdicts made from them.

An experiment is one file that declares an `Experiment`. `run_plans` executes the missing runs of its grid
and appends records; `draw` reads records and writes tables, figures, quantile traces and a summary;
`build_report` puts summaries on one page. An experiment's file imports everything it needs from here.

    from bayescore_lab.engine import Claim, Experiment, RunOutcome, Profile, Run, below

Names are imported when they are first used: listing experiments needs neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bayescore.plotting.style import Look, figure_style, looks
    from bayescore_lab.engine.declare import (
        Claim,
        Experiment,
        Imported,
        PaperValue,
        Profile,
        Run,
        RunOutcome,
        find_experiments,
    )
    from bayescore_lab.engine.drawing import Drawn, draw
    from bayescore_lab.engine.figures import (
        Figure,
        captioned,
        panels,
        plot_points,
        plot_traces,
        shared_legend,
    )
    from bayescore_lab.engine.plans import Plan, plan
    from bayescore_lab.engine.records import Record, Records
    from bayescore_lab.engine.report import build_report
    from bayescore_lab.engine.runner import Tally, run_plans
    from bayescore_lab.engine.statistics import (
        Interval,
        bootstrap_interval,
        fraction_interval,
        geometric_mean_interval,
        holm,
        mean_interval,
        median_interval,
        paired_t,
        wilcoxon,
    )
    from bayescore_lab.engine.tables import Table, arm_table, significance_table
    from bayescore_lab.engine.traces import QuantileTrace, quantile_trace
    from bayescore_lab.engine.verdicts import (
        Criterion,
        Judgement,
        agrees,
        all_of,
        below,
        judge_interval,
        medians,
        mostly,
        ratio_within,
    )


__all__ = [
    "Claim",
    "Criterion",
    "Drawn",
    "Experiment",
    "Figure",
    "Imported",
    "Interval",
    "Judgement",
    "Look",
    "PaperValue",
    "Plan",
    "Profile",
    "QuantileTrace",
    "Record",
    "Records",
    "Run",
    "RunOutcome",
    "Table",
    "Tally",
    "agrees",
    "all_of",
    "arm_table",
    "below",
    "bootstrap_interval",
    "build_report",
    "captioned",
    "draw",
    "figure_style",
    "find_experiments",
    "fraction_interval",
    "geometric_mean_interval",
    "holm",
    "judge_interval",
    "looks",
    "mean_interval",
    "median_interval",
    "medians",
    "mostly",
    "paired_t",
    "panels",
    "plan",
    "plot_points",
    "plot_traces",
    "quantile_trace",
    "ratio_within",
    "run_plans",
    "shared_legend",
    "significance_table",
    "wilcoxon",
]

_HOMES = {
    "Claim": "bayescore_lab.engine.declare",
    "Drawn": "bayescore_lab.engine.drawing",
    "Experiment": "bayescore_lab.engine.declare",
    "Figure": "bayescore_lab.engine.figures",
    "Imported": "bayescore_lab.engine.declare",
    "Interval": "bayescore_lab.engine.statistics",
    "Judgement": "bayescore_lab.engine.verdicts",
    "Look": "bayescore.plotting.style",
    "RunOutcome": "bayescore_lab.engine.declare",
    "PaperValue": "bayescore_lab.engine.declare",
    "Plan": "bayescore_lab.engine.plans",
    "Profile": "bayescore_lab.engine.declare",
    "QuantileTrace": "bayescore_lab.engine.traces",
    "Record": "bayescore_lab.engine.records",
    "Records": "bayescore_lab.engine.records",
    "Criterion": "bayescore_lab.engine.verdicts",
    "Run": "bayescore_lab.engine.declare",
    "Table": "bayescore_lab.engine.tables",
    "Tally": "bayescore_lab.engine.runner",
    "agrees": "bayescore_lab.engine.verdicts",
    "all_of": "bayescore_lab.engine.verdicts",
    "arm_table": "bayescore_lab.engine.tables",
    "below": "bayescore_lab.engine.verdicts",
    "bootstrap_interval": "bayescore_lab.engine.statistics",
    "build_report": "bayescore_lab.engine.report",
    "captioned": "bayescore_lab.engine.figures",
    "draw": "bayescore_lab.engine.drawing",
    "figure_style": "bayescore.plotting.style",
    "find_experiments": "bayescore_lab.engine.declare",
    "fraction_interval": "bayescore_lab.engine.statistics",
    "geometric_mean_interval": "bayescore_lab.engine.statistics",
    "holm": "bayescore_lab.engine.statistics",
    "judge_interval": "bayescore_lab.engine.verdicts",
    "looks": "bayescore.plotting.style",
    "mean_interval": "bayescore_lab.engine.statistics",
    "median_interval": "bayescore_lab.engine.statistics",
    "medians": "bayescore_lab.engine.verdicts",
    "mostly": "bayescore_lab.engine.verdicts",
    "paired_t": "bayescore_lab.engine.statistics",
    "panels": "bayescore_lab.engine.figures",
    "plan": "bayescore_lab.engine.plans",
    "plot_points": "bayescore_lab.engine.figures",
    "plot_traces": "bayescore_lab.engine.figures",
    "quantile_trace": "bayescore_lab.engine.traces",
    "ratio_within": "bayescore_lab.engine.verdicts",
    "run_plans": "bayescore_lab.engine.runner",
    "shared_legend": "bayescore_lab.engine.figures",
    "significance_table": "bayescore_lab.engine.tables",
    "wilcoxon": "bayescore_lab.engine.statistics",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bayescore_lab.engine' has no attribute {name!r}")

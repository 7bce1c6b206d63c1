"""Evidence: grids of runs that write records, and the tables, figures and verdicts made from them.

An experiment is one file that declares an `Experiment`. `run_plans` executes what is missing of its grid
and appends records; `draw` reads records and writes tables, figures, quantile traces and a summary;
`build_report` puts summaries on one page. What an experiment's file needs is imported from here.

    from bayescore.experiments import Claim, Experiment, Outcome, Profile, Run, below
"""

from __future__ import annotations

from bayescore.experiments.comparison import arm_table, significance_table
from bayescore.experiments.declare import Claim, Experiment, Outcome, PaperValue, Profile, Run
from bayescore.experiments.drawing import Drawn, draw
from bayescore.experiments.figures import (
    Figure,
    captioned,
    panels,
    plot_points,
    plot_traces,
    shared_legend,
)
from bayescore.experiments.plan import Plan, plan
from bayescore.experiments.record import Record, Records
from bayescore.experiments.registry import find_experiments
from bayescore.experiments.report import build_report
from bayescore.experiments.rules import agrees, below, mostly, ratio_within
from bayescore.experiments.runner import Tally, run_plans
from bayescore.experiments.statistics import (
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
from bayescore.experiments.style import Look, figure_style, looks
from bayescore.experiments.tables import Table
from bayescore.experiments.traces import QuantileTrace, quantile_trace
from bayescore.experiments.verdicts import Judgement, Rule, all_of, judge_interval

__all__ = [
    "Claim",
    "Drawn",
    "Experiment",
    "Figure",
    "Interval",
    "Judgement",
    "Look",
    "Outcome",
    "PaperValue",
    "Plan",
    "Profile",
    "QuantileTrace",
    "Record",
    "Records",
    "Rule",
    "Run",
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

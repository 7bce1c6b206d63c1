"""Evidence: grids of runs that write records, and the tables, figures and verdicts made from them.

An experiment is one file that declares an `Experiment`. `run_plans` executes what is missing of its grid
and appends records; `draw` reads records and writes tables, figures, quantile traces and a summary;
`build_report` puts summaries on one page. What an experiment's file needs is imported from here.

    from bayescore_lab.engine import Claim, Experiment, Outcome, Profile, Run, below
"""

from __future__ import annotations

from bayescore.plotting.style import Look, figure_style, looks
from bayescore_lab.engine.comparison import arm_table, significance_table
from bayescore_lab.engine.declare import Claim, Experiment, Outcome, PaperValue, Profile, Run
from bayescore_lab.engine.drawing import Drawn, draw
from bayescore_lab.engine.figures import (
    Figure,
    captioned,
    panels,
    plot_points,
    plot_traces,
    shared_legend,
)
from bayescore_lab.engine.plan import Plan, plan
from bayescore_lab.engine.record import Record, Records
from bayescore_lab.engine.registry import find_experiments
from bayescore_lab.engine.report import build_report
from bayescore_lab.engine.rules import agrees, below, mostly, ratio_within
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
from bayescore_lab.engine.tables import Table
from bayescore_lab.engine.traces import QuantileTrace, quantile_trace
from bayescore_lab.engine.verdicts import Judgement, Rule, all_of, judge_interval

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

"""Verdict rules on constructed data: each of the three words where it belongs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from toy_tools import make_record

from bayescore_lab.engine import (
    Criterion,
    Interval,
    Judgement,
    Records,
    agrees,
    all_of,
    below,
    judge_interval,
    mostly,
    ratio_within,
)

NOISE = np.linspace(-1, 1, 20)


def arms(**values) -> Records:
    """Records whose metric `kl` takes these values, seed by seed."""
    return Records(
        replace(make_record(f"{name} {seed}", kl=float(value)), method=name, seed=seed)
        for name, column in values.items()
        for seed, value in enumerate(column)
    )


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.5 + 0.1 * NOISE, "reproduced"), (1 + NOISE, "partly"), (1.5 + 0.1 * NOISE, "not reproduced here")],
)
def test_below_follows_the_interval_of_the_paired_difference(ours, verdict):
    judgement = below("kl", "Ours", "ADVI").judge(arms(Ours=ours, ADVI=np.ones(20)))
    assert judgement.verdict == verdict
    assert judgement.numbers["n"] == 20
    assert judgement.numbers["low"] <= judgement.numbers["estimate"] <= judgement.numbers["high"]


def test_pairing_sees_a_small_gain_under_a_large_spread_over_targets():
    theirs = np.exp(5 * NOISE)
    records = arms(Ours=0.99 * theirs, ADVI=theirs)
    judgement = below("kl", "Ours", "ADVI").judge(records)
    assert judgement.verdict == "reproduced"
    assert "Ours is lower on 20 of 20" in judgement.sentence


def test_only_seeds_that_both_arms_have_are_compared():
    judgement = below("kl", "Ours", "ADVI").judge(arms(Ours=np.zeros(30), ADVI=np.ones(8)))
    assert judgement.numbers["n"] == 8


def test_a_run_that_broke_down_counts_as_worst():
    broken = np.where(np.arange(20) < 15, math.nan, 0.1)
    assert below("kl", "Ours", "GSM").judge(arms(Ours=np.ones(20), GSM=broken)).verdict == "reproduced"
    both = arms(Ours=np.full(20, math.nan), GSM=np.full(20, math.nan))
    neither = below("kl", "Ours", "GSM").judge(both)
    assert neither.verdict == "not reproduced here"
    assert neither.sentence == "Neither arm arrives on any of 20 seeds."


def test_two_that_never_arrive_have_no_ratio():
    never, rule = np.full(20, math.inf), ratio_within("kl", "ADVI", "Ours", 5, 20)
    assert rule.judge(arms(Ours=never, ADVI=never)).verdict == "not reproduced here"
    some = np.where(np.arange(20) < 6, math.inf, 1.0)
    judgement = rule.judge(arms(Ours=some, ADVI=10 * some))
    assert judgement.verdict == "reproduced"
    assert judgement.numbers["n"] == 14


def test_too_few_seeds_are_never_enough():
    judgement = below("kl", "Ours", "ADVI").judge(arms(Ours=np.zeros(5), ADVI=np.ones(5)))
    assert judgement.verdict == "partly"
    assert "too few for an interval" in judgement.sentence


def test_identical_arms_are_no_evidence():
    assert below("kl", "Ours", "ADVI").judge(arms(Ours=np.ones(20), ADVI=np.ones(20))).verdict == "partly"


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [(10 + NOISE, "reproduced"), (20 + 8 * NOISE, "partly"), (100 + NOISE, "not reproduced here")],
)
def test_a_ratio_must_lie_within_its_limits(theirs, verdict):
    rule = ratio_within("kl", "ADVI", "Ours", 5, 20)
    assert rule.judge(arms(Ours=np.ones(20), ADVI=theirs)).verdict == verdict


@pytest.mark.parametrize("centre", ["median", "mean", "geometric mean"])
@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (0.016 + 0.001 * NOISE, "reproduced"),
        (0.03 + 0.02 * NOISE, "partly"),
        (0.4 + 0.01 * NOISE, "not reproduced here"),
    ],
)
def test_agreement_is_up_to_a_factor(ours, verdict, centre):
    judgement = agrees("kl", "Ours", 0.0153, centre=centre).judge(arms(Ours=ours))
    assert judgement.verdict == verdict
    assert "the paper has 0.0153" in judgement.sentence


@pytest.mark.parametrize(
    ("failing", "verdict"), [(20, "reproduced"), (11, "partly"), (1, "not reproduced here")]
)
def test_mostly_counts_runs(failing, verdict):
    values = np.where(np.arange(20) < failing, math.nan, 1.0)
    rule = mostly(lambda record: math.isnan(record.metrics["kl"]), "the fit broke down", "GSM")
    judgement = rule.judge(arms(GSM=values))
    assert judgement.verdict == verdict
    assert judgement.sentence.startswith(f"In {failing} of 20 runs of GSM the fit broke down")


def fixed(verdict) -> Criterion:
    return Criterion("words", lambda records: Judgement(verdict, "sentence."))


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        (["reproduced", "reproduced"], "reproduced"),
        (["reproduced", "not reproduced here"], "partly"),
        (["partly", "not reproduced here"], "partly"),
        (["not reproduced here", "not reproduced here"], "not reproduced here"),
        (["reproduced", None], None),
    ],
)
def test_parts_make_a_whole(parts, whole):
    judgement = all_of(*map(fixed, parts)).judge(arms(Ours=[1.0]))
    assert judgement.verdict == whole
    assert judgement.sentence.startswith(f"(1) {parts[0]}: sentence. (2) ")


def test_without_the_arms_there_is_no_verdict():
    rules = [below("kl", "Ours", "ADVI"), ratio_within("kl", "ADVI", "Ours", 1, 2), agrees("kl", "ADVI", 1.0)]
    rules.append(mostly(lambda record: True, "it holds", "ADVI"))
    for rule in rules:
        judgement = rule.judge(arms(Ours=[1.0] * 9))
        assert judgement.verdict is None
        assert "do not have what the rule compares" in judgement.sentence


def test_a_rule_says_in_words_what_it_does():
    words = below("forward_kl", "Ours", "ADVI", level=0.9).words
    assert "forward kl of Ours minus forward kl of ADVI" in words
    assert "90% interval" in words
    with pytest.raises(ValueError, match="needs a `name`"):
        below(lambda record: 0.0, "Ours", "ADVI")


def test_an_interval_inside_outside_and_across():
    limits = (1.0, 2.0)
    assert judge_interval(Interval(1.5, 1.0, 2.0, 9), *limits) == "reproduced"
    assert judge_interval(Interval(1.5, 0.9, 1.6, 9), *limits) == "partly"
    assert judge_interval(Interval(3.0, 2.1, 4.0, 9), *limits) == "not reproduced here"
    assert judge_interval(Interval(1.5, -math.inf, math.inf, 2), *limits) == "partly"

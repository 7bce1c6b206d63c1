"""Bad input gets one clear sentence that names the value and the remedy, before any work is done."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import bayescore as bs
from bayescore.families import DiagonalGaussian, FullGaussian, LowRankGaussian
from bayescore.inference.options import FitKeywords, ResumeKeywords, RunOptions
from bayescore.methods import GSM, METHODS, BaM, Fisher, Score
from bayescore.targets import Banana, Gaussian, LogDensity, NoisyScore, ScoreFunction
from cases import EVERY, family, normal, same_run

TARGET, Q = Gaussian.random(3), FullGaussian.init(3)


def refused(error, sentence: str, *arguments: object, **options: object) -> None:
    with pytest.raises(error, match=sentence):
        bs.fit(*arguments, **options)  # type: ignore[arg-type]


# -- kinds and counts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((lambda x: -x, Q), TypeError, "target must be a bayescore Target; got function"),
        ((TARGET, torch.zeros(3)), TypeError, "family must be a bayescore Family; got Tensor"),
        ((TARGET, Q, 3), TypeError, "method must be a bayescore Method; got int"),
        ((TARGET, Q, "bamm"), ValueError, "no method called 'bamm'; did you mean 'bam'.*advi, auto, bam"),
        ((TARGET, Q, "automatic"), ValueError, "no method called 'automatic'; did you mean 'auto'"),
        ((TARGET, Q, BaM), TypeError, "method must be an object, not the class BaM; call it"),
        ((TARGET, FullGaussian), TypeError, "family must be an object, not the class FullGaussian; call it"),
        ((Banana, Q), TypeError, "target must be an object, not the class Banana; call it"),
        ((None, Q), TypeError, "target must be a bayescore Target; got NoneType"),
        ((TARGET, FullGaussian.stack([Q, Q])), ValueError, "single; got a batch of 2"),
    ],
)
def test_things_of_the_wrong_kind_are_named(arguments: tuple, error: type[Exception], sentence: str) -> None:
    refused(error, sentence, *arguments, steps=3)


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"steps": -1}, ValueError, "steps must be at least 1; got -1"),
        ({"steps": 0}, ValueError, "steps must be at least 1; got 0"),
        ({"steps": 1.5}, TypeError, "steps must be a whole number; got 1.5"),
        ({"steps": "many"}, TypeError, "steps must be a whole number; got 'many'"),
        ({"steps": 5, "record_every": 0}, ValueError, "record_every must be at least 1; got 0"),
        ({"steps": 5, "record_every": 0.5}, TypeError, "record_every must be a whole number; got 0.5"),
        ({"steps": 5, "seed": 1.5}, TypeError, "a seed is an int.*got 1.5"),
        ({"steps": 5, "seed": "a"}, TypeError, "a seed is an int.*got 'a'"),
    ],
)
def test_impossible_numbers_are_named(options: dict, error: type[Exception], sentence: str) -> None:
    refused(error, sentence, TARGET, Q, GSM(), **options)


@pytest.mark.parametrize("seed", [None, torch.Generator()], ids=["none", "generator"])
def test_a_seed_that_a_file_cannot_hold_is_refused_or_fully_served(seed: object) -> None:
    try:
        fit = bs.fit(TARGET, Q, GSM(), steps=2, seed=seed)  # type: ignore[arg-type]
    except TypeError as error:
        assert "seed" in str(error)  # noqa: PT017
        return
    assert fit.elbo is not None


def test_seeds_targets_and_families_have_to_match_in_number() -> None:
    with pytest.raises(ValueError, match="the number of seeds must be at least 1; got 0"):
        bs.fit_many(TARGET, Q, GSM(), steps=2, seeds=[])
    with pytest.raises(ValueError, match="3 seeds need 3 targets; got 2"):
        bs.fit_many([TARGET, TARGET], Q, GSM(), steps=2, seeds=[0, 1, 2])
    with pytest.raises(ValueError, match="1 seeds need 1 families; got 2"):
        bs.fit_many(TARGET, [Q, Q], GSM(), steps=2, seeds=[0])


@pytest.mark.parametrize(
    ("metric", "sentence"),
    [
        (lambda q, t: 1.0, "metric 'mine'.*float"),
        (lambda q, t: q.mean.norm(), r"metric 'mine'.*\(\)"),
        (lambda q, t: q.mean, r"metric 'mine'.*\(1, 3\)"),
    ],
    ids=["float", "scalar", "matrix"],
)
def test_a_metric_of_the_wrong_shape_is_named(metric, sentence: str) -> None:
    refused((TypeError, ValueError), sentence, TARGET, Q, GSM(), steps=2, metrics={"mine": metric})


@pytest.mark.parametrize("name", ["loss", "step", "score_calls", "seconds"])
def test_a_metric_cannot_take_the_name_of_a_column(name: str) -> None:
    refused(ValueError, f"'{name}'", TARGET, Q, GSM(), steps=2, metrics={name: bs.metrics.ELBO()})


@pytest.mark.parametrize(("word", "meant"), [("bamm", "bam"), ("proxima", "proximal"), ("ADVY", "advi")])
def test_an_unknown_method_is_answered_with_the_nearest(word: str, meant: str) -> None:
    with pytest.raises(
        ValueError, match=rf"no method called '{word}'; did you mean '{meant}'\? choose from advi, bam"
    ):
        bs.methods.by_name(word)
    assert bs.methods.by_name(meant) is METHODS[meant]


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    words = r"\(\) got an unexpected keyword argument"
    refused(TypeError, f"fit{words} 'step'; did you mean 'steps'", TARGET, step=3)
    fit = bs.fit(TARGET, Q, GSM(), steps=2)
    with pytest.raises(TypeError, match=f"resume{words} 'steps'; did you mean 'stop'"):
        bs.resume(fit, steps=3)  # type: ignore[call-arg]


def test_every_option_of_a_run_is_a_keyword_of_fit() -> None:
    assert {field.name for field in dataclasses.fields(RunOptions)} == set(FitKeywords.__annotations__)
    assert set(FitKeywords.__annotations__) - set(ResumeKeywords.__annotations__) == {
        "steps",
        "check",
        "effort",
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_name_stands_for_the_method_with_its_default_settings(name: str) -> None:
    kind = METHODS[name]
    q = next(family(k) for k in EVERY if type(family(k)).__name__ in kind.serves)
    by_name, by_object = (bs.fit(TARGET, q, method, steps=3) for method in (name, kind()))
    assert by_name.method == kind()
    same_run(by_name, by_object)


# -- target against family --------------------------------------------------------------------------------


def test_another_dimension_is_named() -> None:
    refused(
        ValueError,
        "the target has 3 dimensions and the family 4; make them equal",
        TARGET,
        FullGaussian.init(4),
    )


def test_another_dtype_is_named_with_the_remedy() -> None:
    refused(
        ValueError,
        r"works in torch.float64 and the family in torch.float32; use family.to\(torch.float64\)",
        TARGET,
        FullGaussian.init(3, dtype=torch.float32),
    )


def test_another_device_is_named_with_the_remedy() -> None:
    elsewhere = LogDensity(lambda x: -x.square().sum(-1), 3, device="meta")
    refused(ValueError, r"on meta and the family on cpu; use family.to\('meta'\)", elsewhere, Q)


@pytest.mark.parametrize("method", METHODS.values())
@pytest.mark.parametrize("kind", EVERY)
def test_a_method_given_a_family_it_cannot_serve_refuses_at_once_and_names_both(method, kind: str) -> None:
    q = family(kind)
    asked = []
    target = ScoreFunction(
        lambda x: asked.append(1) or -x, 3, log_density=lambda x: -0.5 * x.square().sum(-1)
    )
    if type(q).__name__ in method.serves:
        method().check(q, target)
        return
    sentence = f"{method.__name__} cannot fit a {type(q).__name__}; it serves {', '.join(method.serves)}"
    refused(TypeError, sentence, target, q, method(), steps=2)
    assert not asked


@pytest.mark.parametrize("method", [Fisher, Score])
def test_methods_that_need_the_hessian_refuse_scores_alone_and_noise(method) -> None:
    name = method.__name__
    sentence = (
        f"{name} differentiates the score and ScoreFunction has scores but no density; use ProximalDescent"
    )
    refused(TypeError, sentence, ScoreFunction(lambda x: -x, 3), Q, method(), steps=2)
    refused(TypeError, "NoisyScore has noisy scores; use", NoisyScore(TARGET, 0.1), Q, method(), steps=2)


# -- memory -----------------------------------------------------------------------------------------------


def of_dimension(q, dim: int):
    """The family as if it had that dimension, without its memory."""
    q = q.replace(q.parameters())
    q.dim = dim
    return q


@pytest.mark.parametrize("method", [GSM(), BaM()])
def test_a_full_gaussian_too_large_for_the_memory_is_refused_with_a_remedy(method) -> None:
    target = LogDensity(lambda x: -x.square().sum(-1), 10**6)
    with pytest.raises(MemoryError, match=r"needs about \d+\.\d GB, and \d+\.\d GB are free; use .*low-rank"):
        method.check(of_dimension(Q, 10**6), target)


@pytest.mark.parametrize("method", [GSM(), BaM()])
def test_a_full_gaussian_of_five_thousand_dimensions_is_refused_or_warned_about(method) -> None:
    target = LogDensity(lambda x: -x.square().sum(-1), 5000)
    with pytest.warns(UserWarning, match=r"needs about 1\.\d GB"):
        method.check(of_dimension(Q, 5000), target)


def test_families_too_large_for_the_memory_are_refused_before_they_are_made() -> None:
    with pytest.raises(
        MemoryError, match=r"a full Gaussian in 1000000 dimensions needs about .* GB.*low-rank family"
    ):
        FullGaussian.init(10**6)
    with pytest.raises(MemoryError, match=r"a mixture of full Gaussians.*use diagonal=True"):
        bs.families.GaussianMixture.init(10**6, 2)
    assert DiagonalGaussian.init(10**6).dim == 10**6


def test_small_families_raise_no_warning_about_memory() -> None:
    BaM().check(LowRankGaussian.init(5000, 5), LogDensity(lambda x: -x.square().sum(-1), 5000))
    BaM().check(DiagonalGaussian.init(5000), LogDensity(lambda x: -x.square().sum(-1), 5000))


def test_the_first_argument_may_be_a_point_away_from_the_origin() -> None:
    mean = normal(3)
    fit = bs.fit(TARGET, FullGaussian.init(3, mean=mean), GSM(), steps=1)
    assert fit.family.mean.shape == (3,)


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, 10**400])
def test_a_seed_that_no_file_can_hold_is_refused_before_the_fit(seed: int) -> None:
    with pytest.raises(ValueError, match=r"a seed must be from -2\^63 to 2\^64 - 1; got "):
        bs.fit(Gaussian.random(2, seed=0), seed=seed)
    with pytest.raises(ValueError, match="a seed must be from"):
        Gaussian.random(2, seed=seed)


def test_steps_that_no_file_can_hold_are_refused_before_the_fit() -> None:
    with pytest.raises(ValueError, match=r"steps must be at most 9,007,199,254,740,992; got"):
        bs.fit(TARGET, Q, BaM(), steps=2**53 + 1)
    with pytest.raises(ValueError, match=r"steps must be at most .*; got a number of 3322 bits"):
        bs.fit(TARGET, Q, BaM(), steps=10**1000)

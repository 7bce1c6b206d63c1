"""What every rule is: a pure elementwise function of tensors that knows nothing but torch."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import bayescore.rules
from bayescore.rules import Draws, adam, advi, bam, calibrated, inner, proximal, ridge
from bayescore.rules.adam import corrections
from cases import normal

FILES = sorted(Path(bayescore.rules.__file__).parent.glob("*.py"))
DIM, S = 6, 2
Inputs = dict[str, Tensor]


def inputs() -> Inputs:
    """A diagonal Gaussian, draws with their scores, and everything that any rule keeps, one row of D each."""
    names = [
        "mean",
        "prior_mean",
        "first_m",
        "first_r",
        "d",
        "e",
        "half",
        "momentum",
        "one",
        "slope",
        "centre",
    ]
    tensors = dict(zip(names, normal(len(names), DIM, seed=4), strict=True))
    positive = ["sd", "second_m", "second_r", "z2", "g2", "weight", "lam", "rho", "a", "start"]
    tensors |= dict(zip(positive, 0.1 + normal(len(positive), DIM, seed=5).square(), strict=True))
    tensors["rho"] = tensors["rho"].clamp_max(1)
    return {**tensors, "eps": normal(S, DIM, seed=6), "score": normal(S, DIM, seed=7)}


def draws(x: Inputs) -> Draws:
    return Draws.of_scores(x["eps"], x["score"])


def take(x: Inputs, *names: str) -> list[Tensor]:
    return [x[name] for name in names]


MOMENTS = ("first_m", "first_r", "second_m", "second_r")
INNER = inner.InnerOptions(0.5, 0.1, 0.3, 0.01, 0.02, 0.9, 0.1, inner.inner_corrections(3, 4))
ADVI = advi.ADVIOptions(0.5, 0.1, 0.01, 0.02, *corrections(3))


def paired_options(x: Inputs) -> bam.PairedOptions:
    return bam.PairedOptions(0.5, 0.1, 3.0, 0.2, S, x["lam"])


def calibrated_options(x: Inputs, squares: bool) -> calibrated.CalibratedOptions:
    numbers = calibrated.step_options(3, 0.1, x["start"], 0.5, 3.0, 0.9, (8, 100) if squares else None)
    return calibrated.CalibratedOptions(*numbers, 1 + x["a"], x["rho"], 10 + x["a"])


def proximal_options(x: Inputs) -> proximal.ProximalOptions:
    """The three of a group are numbers, the seven of a tensor one per weight, as in a bucket of several."""
    return proximal.ProximalOptions(
        *take(x, "rho", "a", "sd"), 0.1, 0.9, 0.05, *take(x, "weight", "lam", "start", "weight")
    )


#: every rule, called with the inputs
RULES: dict[str, Callable[[Inputs], object]] = {
    "adam": lambda x: adam.adam_moments(*take(x, "first_m", "second_m", "mean"), 2.0, x["sd"]),
    "sgd": lambda x: adam.sgd_velocity(*take(x, "first_m", "mean"), 0.9),
    "draws of scores": draws,
    "draws of one": lambda x: Draws.of_one(x["mean"], x["eps"][0]),
    "advi": lambda x: advi.advi_step(*take(x, "mean", "sd", *MOMENTS, "prior_mean"), draws(x), ADVI),
    "inner gradient": lambda x: inner.inner_gradient(
        *take(x, "d", "a", "sd", "one", "slope"), draws(x), INNER
    ),
    "inner adam": lambda x: inner.inner_steps(
        *take(x, "mean", "sd", *MOMENTS, "prior_mean"), draws(x), INNER
    ),
    "inner sgd": lambda x: inner.inner_steps(
        *take(x, "mean", "sd", "first_m", "first_r"), None, None, x["prior_mean"], draws(x), INNER
    ),
    "bam root": lambda x: bam.bam_root(*take(x, "slope", "z2", "lam")),
    "bam": lambda x: bam.bam_step(*take(x, "mean", "sd", "e", "z2", "d", "g2", "lam")),
    "paired slope": lambda x: bam.paired_slope(*take(x, "sd", "half", "d", "e"), paired_options(x)),
    "paired bam": lambda x: bam.paired_step(
        *take(x, "mean", "sd", "half", "prior_mean", "one", "slope", "d", "e"), paired_options(x)
    ),
    "solve": lambda x: ridge.solve(*take(x, "one", "slope", "centre", "weight"), 3.0),
    "shrink": lambda x: ridge.shrink(x["slope"]),
    "ridge": lambda x: ridge.ridge_step(x["mean"], x["sd"], draws(x), x["a"], 0.1),
    "calibrated": lambda x: calibrated.calibrated_step(
        *take(x, "mean", "sd", "momentum", "prior_mean"), draws(x), calibrated_options(x, False)
    ),
    "calibrated with squares": lambda x: calibrated.calibrated_step(
        *take(x, "mean", "sd", "momentum", "prior_mean"), draws(x), calibrated_options(x, True)
    ),
    "calibrated without momentum": lambda x: calibrated.calibrated_step(
        *take(x, "mean", "sd"), None, x["prior_mean"], draws(x), calibrated_options(x, False)
    ),
    "width": lambda x: proximal.width(None, x["second_m"], proximal_options(x)),
    "proximal": lambda x: proximal.proximal_step(
        *take(x, "mean", "first_m", "second_m", "prior_mean"), draws(x), proximal_options(x)
    ),
}


def leaves(result: object) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    return [leaf for part in result or () for leaf in leaves(part)]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_leaves_its_inputs_unchanged(name: str) -> None:
    x, before = inputs(), inputs()
    made = leaves(RULES[name](x))
    assert made
    assert all(torch.equal(x[key], before[key]) for key in x)
    for leaf in made:  # and shares no memory with them: writing into a result changes no input
        if leaf.data_ptr() not in {value.data_ptr() for value in x.values()}:
            leaf.fill_(torch.nan)
    assert all(torch.equal(x[key], before[key]) for key in x)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_of_a_slice_is_the_slice_of_the_rule(name: str) -> None:
    """Elementwise: a network may be cut into buckets anywhere."""
    whole, part = (
        leaves(RULES[name]({key: value[..., cut] for key, value in inputs().items()}))
        for cut in (slice(None), slice(2, 5))
    )
    for mine, other in zip(part, whole, strict=True):
        torch.testing.assert_close(mine, other[..., 2:5], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_keeps_the_shape_and_the_precision_of_its_inputs(name: str) -> None:
    single = RULES[name]({key: value.float() for key, value in inputs().items()})
    for leaf in leaves(single):
        assert leaf.dtype == torch.float32
        assert leaf.shape == (DIM,)


def test_every_public_function_on_tensors_is_among_the_rules() -> None:
    """The others are numbers of a step, or keep the slope statistics, which they change in place."""
    source = inspect.getsource(inspect.getmodule(inputs))  # type: ignore[arg-type]
    modules = [adam, advi, bam, calibrated, inner, proximal, ridge]
    public = {
        f"{m.__name__.split('.')[-1]}.{name}" for m in modules for name in m.__all__ if name[0].islower()
    }
    others = {
        "adam.corrections",
        "inner.inner_corrections",
        "calibrated.step_options",
        "calibrated.trust",
        "bam.paired_lam",
        "proximal.usual_nats",
    }
    assert {name for name in public if f"{name}(" in source} | others == public


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_rules_import_torch_and_rules_only(path: Path) -> None:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module)
    allowed = ("__future__", "typing", "collections.abc", "math", "torch", "bayescore.rules")
    strangers = {name for name in found if not any(name == a or name.startswith(f"{a}.") for a in allowed)}
    assert not strangers

"""One rule, two shells: with default settings a network optimizer takes the steps of the functional method.

The functional target has its prior inside its score, so the network's is flat; the network's mean loss is
-(temperature/num_data) log p. Both are given the same noise. Where the two have different default rates, lr
is given to both. The default schedule of a functional method, a cosine, is one of torch's schedulers for the
network.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from small_networks import large_from, levels
from torch import Tensor

import bayescore
from bayescore import methods, optim
from bayescore.families import DiagonalGaussian
from bayescore.inference.fitting import fit
from bayescore.methods import Method
from bayescore.optim.base import BayesianOptimizer
from bayescore.rng import Streams
from bayescore.rules import advi, calibrated, inner, proximal
from bayescore.rules import bam as bam_rules
from bayescore.rules.adam import adam_moments
from bayescore.targets import ScoreFunction
from bayescore.targets.counting import CountingOracle

DIM, STEPS, SEED, SD = 7, 6, 11, 0.3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
Trajectory = list[tuple[Tensor, Tensor]]  # mean and sd after every step


def numbers(seed: int) -> Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCALE, CENTRE = numbers(1).exp(), numbers(2)


def score(x: Tensor) -> Tensor:
    """Of a target that is not Gaussian."""
    return -SCALE.to(x) * (x - CENTRE.to(x)) - 0.1 * x**3


class NotedStreams(Streams):
    """Random numbers that a network of this dtype can have too, and which they were.

    With `coarse`, those that a large tensor can have.
    """

    def __init__(self, dtype: torch.dtype, coarse: bool) -> None:
        super().__init__([SEED])
        self.rounded, self.coarse = dtype, coarse
        self.given: list[Tensor] = []

    def normal(self, *shape: int) -> Tensor:
        eps = super().normal(*shape).to(self.rounded)
        self.given.append((levels(eps) if self.coarse else eps).double())
        return self.given[-1]


def functional_path(
    method: Method, dtype: torch.dtype, coarse: bool = False
) -> tuple[Trajectory, list[Tensor]]:
    """The path of a method, and the noise (draws, DIM) of every step."""
    streams = NotedStreams(dtype, coarse)
    oracle = CountingOracle(ScoreFunction(score, DIM), streams)
    start = numbers(3).to(dtype).double()
    q = DiagonalGaussian(start[None], torch.full((1, DIM), SD, dtype=torch.float64).log())
    state, path = method.init(q, STEPS), []
    for _ in range(STEPS):
        state, _ = method.step(state, oracle, streams)
        assert isinstance(state.family, DiagonalGaussian)
        path.append((state.family.mean[0], state.family.sd[0]))
    noise = [eps[0] for eps in streams.given]
    if isinstance(method, methods.PairedBaM):  # every noise serves twice, each time with its mirror image
        noise = [torch.stack([eps, -eps], 1).flatten(0, 1) for eps in noise for _ in range(2)]
    return path, noise


def network_path(opt: BayesianOptimizer, noise: list[Tensor], cosine: bool) -> Trajectory:
    (p,) = opt.param_groups[0]["params"]
    c = opt.param_groups[0]["temperature"] / opt.param_groups[0]["num_data"]
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        opt, lambda t: 0.5 * (1 + math.cos(math.pi * t / STEPS)) if cosine else 1.0
    )
    path = []
    for eps in noise:
        opt.noise = lambda bucket, draw, eps=eps: eps[draw].to(p.dtype)  # type: ignore[method-assign, misc]
        for _ in eps:
            with opt.sample():
                p.grad = -c * score(p.detach())
        opt.step()
        scheduler.step()
        (member,) = opt._members()
        path.append((opt.state[p]["mean"].double().clone(), opt._sd(member).double()))
    return path


@dataclass(frozen=True)
class Twins:
    """A functional method and a network optimizer, what is given to one, and what to both."""

    method: type[Method]
    optimizer: type[BayesianOptimizer]
    rule: str
    rules: ModuleType
    draws: tuple[int, ...] = (1, 2)
    cosine: bool = True
    both: dict[str, Any] = field(default_factory=dict)
    functional: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    #: lr of the network for one of the functional method, by c = temperature/num_data
    lr: Callable[[float], float] | None = None


FLAT = {"init_sd": SD, "prior_sd": math.inf}
PAIRS = {
    "proximal": Twins(
        methods.ProximalScore,
        optim.ProximalScore,
        "proximal_step",
        proximal,
        both={"lr": 0.1},  # so that the widths, which start from nothing, show in a few steps
        network={"prior_scale": 1e18, "weight_decay": 0.0, "nats": math.inf},
    ),
    "calibrated": Twins(
        methods.CalibratedScore,
        optim.CalibratedScore,
        "calibrated_step",
        calibrated,
        network=FLAT,
        lr=lambda c: 0.1 / c,  # 0.1 is the default of both; SGD's rate is that of the mean loss
    ),
    "descent": Twins(
        methods.ProximalDescent,
        optim.ProximalDescent,
        "inner_steps",
        inner,
        both={"lr": 0.01, "inner_steps": 20},  # N
        network={"steps": STEPS, **FLAT},  # T
    ),
    "advi": Twins(
        methods.ADVI,
        optim.ADVI,
        "advi_step",
        advi,
        both={"lr": 0.01},
        network=FLAT,
    ),
    "bam": Twins(
        methods.PairedBaM,
        optim.PairedBaM,
        "paired_step",
        bam_rules,
        draws=(2, 4),
        cosine=False,
        network=FLAT,
    ),
    "published-bam": Twins(
        methods.BaM,
        optim.BaM,
        "bam_step",
        bam_rules,
        draws=(2, 3),
        cosine=False,
        functional={"regularisation": 0.2},  # the functional default depends on D
        network={"lr": 0.2, **FLAT},
    ),
}
CASES = [(name, draws) for name, twins in PAIRS.items() for draws in twins.draws]


def given(twins: Twins, draws: int, default: int, **options: Any) -> dict[str, Any]:
    """Options, with the number of draws where it is not the default."""
    return {**twins.both, **options, **({} if draws == default else {"draws": draws})}


def method_of(twins: Twins, draws: int) -> Method:
    return twins.method(**given(twins, draws, twins.draws[0], **twins.functional))


def optimizer_of(twins: Twins, draws: int, dtype: torch.dtype, data: int, temperature: float) -> Any:
    options = given(twins, draws, twins.draws[0], **twins.network)
    if twins.lr is not None and (data, temperature) != (1, 1.0):
        options["lr"] = twins.lr(temperature / data)
    if temperature != 1.0:
        options["temperature"] = temperature
    p = torch.nn.Parameter(numbers(3).to(dtype))
    return twins.optimizer([p], data, **options)


def agree(found: Trajectory, expected: Trajectory, tolerance: float) -> None:
    for step, (one, two) in enumerate(zip(found, expected, strict=True)):
        for a, b, what in zip(one, two, ("mean", "sd"), strict=True):
            torch.testing.assert_close(
                a, b, rtol=tolerance, atol=tolerance, msg=lambda m, s=step, w=what: f"{w} of step {s}: {m}"
            )


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("data", "temperature"), [(1, 1.0), (1000, 0.1)])
@pytest.mark.parametrize(("name", "draws"), CASES)
def test_the_network_takes_the_steps_of_the_functional_method(
    name: str,
    draws: int,
    data: int,
    temperature: float,
    dtype: torch.dtype,
    size: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if size == "large":  # its draws are added to the mean and taken back
        large_from(DIM, monkeypatch)
    if name == "advi" and data > 1:  # the one number with units: 1e-8 beside a gradient of the mean loss
        monkeypatch.setattr("bayescore.rules.advi.adam_moments", lambda *moments: adam_moments(*moments, 0.0))
    if name == "proximal" and data > 1:
        monkeypatch.setattr(proximal, "EPSILON", 0.0)
    twins = PAIRS[name]
    expected, noise = functional_path(method_of(twins, draws), dtype, coarse=size == "large")
    assert not torch.allclose(expected[-1][0], expected[0][0], atol=1e-3)
    assert not torch.allclose(expected[-1][1], torch.full((DIM,), SD, dtype=torch.float64), rtol=1e-4)
    opt = optimizer_of(twins, draws, dtype, data, temperature)
    if name == "proximal":
        change_units(monkeypatch, temperature / data)
    agree(network_path(opt, noise, twins.cosine), expected, TOLERANCE[dtype])


def change_units(monkeypatch: pytest.MonkeyPatch, c: float) -> None:
    """Give the numbers with units of rules/proximal.py those of a mean loss that is c times another.

    A cost has the units of the loss; a slope rho is a curvature over a squared gradient.
    """
    for name, power in (("HALF", 1), ("USUAL", -1), ("LEAST", -1)):
        monkeypatch.setattr(proximal, name, getattr(proximal, name) * c**power)


@pytest.mark.parametrize("name", PAIRS)
def test_fit_takes_the_same_steps(name: str) -> None:
    twins = PAIRS[name]
    method = method_of(twins, twins.draws[0])
    q = DiagonalGaussian(numbers(3), torch.full((DIM,), SD, dtype=torch.float64).log())
    done = fit(ScoreFunction(score, DIM), q, method, steps=STEPS, seed=SEED, check=False, progress=False)
    path, _ = functional_path(method, torch.float64)
    assert isinstance(done.family, DiagonalGaussian)
    agree([(done.family.mean, done.family.sd)], path[-1:], 1e-12)


# -- each update is written once ---------------------------------------------------------------------------

SOURCE = Path(bayescore.__file__).parent


@pytest.mark.parametrize("name", PAIRS)
def test_both_shells_call_the_same_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = PAIRS[name]
    rule, calls = getattr(twins.rules, twins.rule), []

    def noted(*args: Any) -> Any:
        calls.append(args)
        return rule(*args)

    for kind in (twins.method, twins.optimizer):
        assert getattr(module_of(kind), twins.rule) is rule
        monkeypatch.setattr(module_of(kind), twins.rule, noted)
    _, noise = functional_path(method_of(twins, twins.draws[0]), torch.float64)
    assert len(calls) == STEPS
    network_path(optimizer_of(twins, twins.draws[0], torch.float64, 1, 1.0), noise, twins.cosine)
    assert len(calls) == 2 * STEPS


def module_of(kind: type) -> ModuleType:
    return sys.modules[kind.__module__]


def test_every_network_optimizer_has_a_functional_twin_but_sgld() -> None:
    kinds = {getattr(optim, name) for name in optim.__all__}
    alone = {optim.SGLD, optim.FamilyOptimizer}  # the second runs the functional method itself
    assert kinds - {twins.optimizer for twins in PAIRS.values()} == alone


def floats(path: Path) -> set[float]:
    tree = ast.parse(path.read_text())
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, float)}


@pytest.mark.parametrize(
    ("number", "home"),
    [(0.999, "rules/adam.py"), (1e-8, "rules/adam.py"), (0.125, "rules/ridge.py")],
    ids=["Adam's memory", "Adam's epsilon", "the ridge step's (4)"],
)
def test_the_numbers_of_a_rule_stand_in_its_file_alone(number: float, home: str) -> None:
    rooms = [path for room in ("rules", "methods", "optim") for path in sorted((SOURCE / room).glob("*.py"))]
    found = {path.relative_to(SOURCE).as_posix() for path in rooms if number in floats(path)}
    assert found - {"optim/status.py"} == {home}  # where 0.999 is a share of the prior's sd

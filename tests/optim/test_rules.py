"""The network rules are the library's: reference == fast pass == functional method, under one noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayescore.families import DiagonalGaussian
from bayescore.methods import ADVI as FunctionalADVI
from bayescore.methods import BaM as FunctionalBaM
from bayescore.methods import ProximalScore as FunctionalProximal
from bayescore.methods.bam import bam_diagonal
from bayescore.methods.ridge import proximal_ridge
from bayescore.optim import ADVI, BaM, ProximalScore
from bayescore.optim.base import Shell
from bayescore.oracle import CountingOracle
from bayescore.rng import Streams
from bayescore.targets import ScoreFunction

DIM = 7
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCALE = numbers(DIM, seed=1).exp()
CENTRE = numbers(DIM, seed=2)


def score(x: Tensor) -> Tensor:
    """Of a target that is not Gaussian."""
    return -SCALE.to(x) * (x - CENTRE.to(x)) - 0.1 * x**3


class Given(Streams):
    """A stream that gives noise fixed beforehand."""

    def __init__(self, eps: Tensor) -> None:
        super().__init__([0], dtype=eps.dtype)
        self.eps = eps

    def normal(self, *shape: int) -> Tensor:
        return self.eps.reshape(1, *shape)


def one_step(opt: Shell, p: torch.nn.Parameter, eps: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a network optimizer whose mean loss is -log p / num_data, under the given noise."""
    opt.noise = lambda member, draw: eps[draw].clone()  # type: ignore[method-assign]
    data = opt.param_groups[0]["num_data"]
    for _ in eps:
        with opt.sample():
            p.grad = -score(p.detach()) / data
    opt.step()
    return opt.state[p]["mean"], opt.state[p]["sd"]


def start(dtype: torch.dtype, draws: int) -> tuple[torch.nn.Parameter, Tensor]:
    return torch.nn.Parameter(numbers(DIM, seed=3).to(dtype)), numbers(draws, DIM, seed=4).to(dtype)


def functional_step(method: object, p: Tensor, sd: float, eps: Tensor) -> tuple[Tensor, Tensor]:
    q = DiagonalGaussian(p.detach().double(), torch.full((DIM,), sd, dtype=torch.float64).log())
    oracle = CountingOracle(ScoreFunction(score, DIM), 1)
    state = method.init(DiagonalGaussian.stack([q]), 1000)  # type: ignore[attr-defined]
    new, _ = method.step(state, oracle, Given(eps.double()))  # type: ignore[attr-defined]
    return new.family.mean[0], new.family.sd[0]


def agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


FLAT = {"prior_sd": math.inf, "init_sd": 0.3}
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("data", [1, 1000])
def test_exact_step_is_the_ridge_step(dtype: torch.dtype, draws: int, data: int) -> None:
    p, eps = start(dtype, draws)
    q, sd = p.detach().double().clone(), torch.full((DIM,), 0.3, dtype=torch.float64)
    theta = q + sd * eps.double()
    mean, log_sd = proximal_ridge(q, sd.log(), eps.double(), score(theta), 150.0, 9.0)
    opt = ProximalScore([p], data, lr=0.1, momentum=0.0, damping=150.0, curvature="score", **FLAT)
    agree(one_step(opt, p, eps), (mean, log_sd.exp()), dtype)


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
def test_exact_step_is_that_of_the_functional_method(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(FunctionalProximal(solver="exact", samples=draws), p, 0.3, eps)
    # the functional method raises both dampings by how far the scores are from q's own
    theta = p.detach().double() + 0.3 * eps.double()
    wide = max(10.0, 0.5 * DIM**0.5) * float((0.3 * score(theta) + eps.double()).square().mean().sqrt())
    a, b = 100 / draws + wide, 10 / draws + wide
    opt = ProximalScore([p], 10, lr=1 / (1 + b), momentum=0.0, damping=a, curvature="score", **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_gradient_solver_is_algorithm_1(dtype: torch.dtype, draws: int, optimizer: str) -> None:
    p, eps = start(dtype, draws)
    rate = 0.01 if optimizer == "adam" else 1e-4
    method = FunctionalProximal(
        inner_steps=4, samples=draws, alpha=0.5, learning_rate=rate, decay="constant", floor=0.0,
        optimizer=optimizer, momentum=0.5, metric="euclidean",
    )  # fmt: skip
    expected = functional_step(method, p, 0.3, eps)
    opt = ProximalScore(
        [p], 1, solver="gradient", inner_steps=4, alpha=0.5, lr=rate, sd_rate=1.0, floor=0.0,
        optimizer=optimizer, momentum=0.5, **FLAT,
    )  # fmt: skip
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
def test_advi_step_is_that_of_the_functional_method(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(
        FunctionalADVI(samples=draws, learning_rate=0.01, decay="constant"), p, 0.3, eps
    )
    opt = ADVI([p], 1, lr=0.01, sd_rate=1.0, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.parametrize("draws", [2, 5])
def test_uncentred_bam_step_is_that_of_the_functional_method(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(FunctionalBaM(batch=draws, regularisation=0.7), p, 0.3, eps)
    opt = BaM([p], 100, lr=0.7, centred=False, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


def test_bam_with_a_prior_is_bam_of_the_posterior() -> None:
    p, eps = start(torch.float64, 3)
    q, sd = p.detach().clone(), torch.full((DIM,), 0.3, dtype=torch.float64)
    theta = q + sd * eps
    lam = torch.tensor(0.7, dtype=torch.float64)
    mean, log_sd = bam_diagonal(q, sd.log(), theta, score(theta) - (theta - 0.2) / 4, lam)
    opt = BaM([p], 100, lr=0.7, centred=False, prior_mean=0.2, prior_sd=2.0, init_sd=0.3)
    agree(one_step(opt, p, eps), (mean, log_sd.exp()), torch.float64)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's compiler loads its old one
def test_the_compiled_pass_gives_the_numbers_of_the_eager_one() -> None:
    results = []
    for compiled in (False, True):
        for draws in (1, 2):
            p, eps = start(torch.float32, draws)
            opt = ProximalScore([p], 50, compiled=compiled, batch_size=5)
            one_step(opt, p, eps)
            results.append(one_step(opt, p, eps))
            assert ("compiled" in opt.status) == compiled
    for eager, fast in zip(results[:2], results[2:], strict=True):
        for a, b in zip(eager, fast, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_failing_compiler_leaves_the_eager_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> object:
        def fail(*args: object) -> None:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    p, eps = start(torch.float64, 1)
    expected = one_step(ProximalScore([p], 50, compiled=False), p, eps)
    p, eps = start(torch.float64, 1)
    opt = ProximalScore([p], 50, compiled=True)
    found = one_step(opt, p, eps)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert "compiling failed" in opt.status

"""The network rules are the library's: reference == fast pass == functional method, under one noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_networks import OPTIMIZERS
from torch import Tensor

from bayescore import methods
from bayescore.families import DiagonalGaussian
from bayescore.inference.fitting import fit
from bayescore.methods import Method, ProximalRidge
from bayescore.methods.bam import bam_diagonal
from bayescore.optim import ADVI, BaM, CalibratedScore, PairedBaM, ProximalDescent
from bayescore.optim.base import BayesianOptimizer
from bayescore.optim.engine import _compiled
from bayescore.optim.noise import LARGE_TENSOR, CounterKey
from bayescore.rng import Streams
from bayescore.rules import Draws
from bayescore.rules.calibrated import CalibratedOptions, calibrated_step, step_options
from bayescore.rules.ridge import ridge_step
from bayescore.targets import ScoreFunction

DIM, SEED = 7, 11
OPTIONS = {name: make([torch.nn.Parameter(torch.zeros(1))], 1).options() for name, make in OPTIMIZERS.items()}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCALE = numbers(DIM, seed=1).exp()
CENTRE = numbers(DIM, seed=2)


def score(x: Tensor) -> Tensor:
    """Of a target that is not Gaussian."""
    return -SCALE.to(x) * (x - CENTRE.to(x)) - 0.1 * x**3


def one_step(opt: BayesianOptimizer, p: torch.nn.Parameter, eps: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a network optimizer whose mean loss is -log p / num_data, under the given noise."""
    opt.noise = lambda member, draw: eps[draw].clone()  # type: ignore[method-assign]
    data = opt.param_groups[0]["num_data"]
    for _ in eps:
        with opt.sample():
            p.grad = -score(p.detach()) / data
    opt.step()
    return opt.state[p]["mean"], opt.state[p]["sd"]


def start(dtype: torch.dtype, draws: int) -> tuple[torch.nn.Parameter, Tensor]:
    """A parameter, and the noise (draws, DIM) that `bs.fit` has in its first step."""
    return torch.nn.Parameter(numbers(DIM, seed=3).to(dtype)), Streams([SEED]).normal(draws, DIM)[0].to(dtype)


def functional_step(method: Method, p: Tensor, sd: float) -> tuple[Tensor, Tensor]:
    """Mean and sd after one step of `bs.fit` with the diagonal family."""
    q = DiagonalGaussian(p.detach().double(), torch.full((DIM,), sd, dtype=torch.float64).log())
    done = fit(ScoreFunction(score, DIM), q, method, steps=1, seed=SEED, check=False, progress=False)
    assert isinstance(done.family, DiagonalGaussian)
    return done.family.mean, done.family.sd


def agree(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


# a rate lr is the share lr c/init_sd^2 of a Newton step, with c = 1/num_data and init_sd = 0.3
FLAT = {"prior_sd": math.inf, "init_sd": 0.3}
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curvature of every draw is used as it is: rho = k = 1 and a = damping, of rules/calibrated.py."""

    def trust(statistics: Tensor, sizes: Tensor, damping: float, squares: bool) -> Tensor:
        return statistics.new_tensor([math.inf, 1.0, damping])[:, None].expand(3, len(statistics))

    monkeypatch.setattr("bayescore.optim.calibrated.trust", trust)


@BOTH
@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("data", [1, 1000])
def test_a_step_that_trusts_its_curvature_is_the_ridge_step(
    dtype: torch.dtype, draws: int, data: int
) -> None:
    p, eps = start(dtype, draws)
    q, sd = p.detach().double().clone(), torch.full((DIM,), 0.3, dtype=torch.float64)
    seen = Draws.of_scores(eps.double(), score(q + sd * eps.double()))
    expected = ridge_step(q, sd, seen, 150.0, 9.0)
    opt = CalibratedScore([p], data, lr=0.1 * 0.09 * data, momentum=0.0, damping=150.0, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.usefixtures("trusting")
@pytest.mark.parametrize("draws", [1, 3])
def test_a_step_that_trusts_its_curvature_is_that_of_fit(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(ProximalRidge(draws=draws), p, 0.3)
    # the functional method raises both dampings by how far the scores are from q's own
    theta = p.detach().double() + 0.3 * eps.double()
    wide = max(10.0, 0.5 * DIM**0.5) * float((0.3 * score(theta) + eps.double()).square().mean().sqrt())
    a, b = 100 / draws + wide, 10 / draws + wide
    opt = CalibratedScore([p], 10, lr=0.9 / (1 + b), momentum=0.0, damping=a, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@pytest.mark.parametrize("draws", [1, 3])
def test_the_rule_for_networks_contains_the_ridge_step(draws: int) -> None:
    """With c = 1, a flat prior, rho = k = 1 and no momentum, where eta = lr/v0 is 1/(1 + b)."""
    mean, sd, eps = numbers(DIM, seed=3), numbers(DIM, seed=4).exp(), numbers(draws, DIM, seed=5)
    seen = Draws.of_scores(eps, score(mean + sd * eps))
    lr = 0.1 * float(sd.min()) ** 2
    ceiling, rho, a = (torch.tensor(value, dtype=sd.dtype) for value in (math.inf, 1.0, 150.0))
    o = CalibratedOptions(*step_options(1, lr, sd.square(), 1.0, math.inf, 0.0, None), ceiling, rho, a)
    (moved, narrow, momentum), _ = calibrated_step(mean, sd, None, 0.0, seen, o)
    assert momentum is None
    agree((moved, narrow), ridge_step(mean, sd, seen, 150.0, sd.square() / lr - 1), torch.float64)


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_descent_is_algorithm_1(dtype: torch.dtype, draws: int, optimizer: str) -> None:
    p, eps = start(dtype, draws)
    rate = 0.01 if optimizer == "adam" else 1e-4
    options: dict[str, Any] = {
        "inner_steps": 4, "alpha": 0.5, "lr": rate, "floor": 0.0, "optimizer": optimizer, "momentum": 0.5,
    }  # fmt: skip
    expected = functional_step(methods.ProximalDescent(draws=draws, schedule="constant", **options), p, 0.3)
    opt = ProximalDescent([p], 1, sd_rate=1.0, **options, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.parametrize("draws", [1, 3])
def test_advi_step_is_that_of_fit(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(methods.ADVI(draws=draws, lr=0.01, schedule="constant"), p, 0.3)
    opt = ADVI([p], 1, lr=0.01, sd_rate=1.0, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


@BOTH
@pytest.mark.parametrize("draws", [2, 5])
def test_published_bam_step_is_that_of_fit(dtype: torch.dtype, draws: int) -> None:
    p, eps = start(dtype, draws)
    expected = functional_step(methods.BaM(draws=draws, regularisation=0.7), p, 0.3)
    opt = BaM([p], 100, lr=0.7, **FLAT)
    agree(one_step(opt, p, eps), expected, dtype)


def test_bam_with_a_prior_is_bam_of_the_posterior() -> None:
    p, eps = start(torch.float64, 3)
    q, sd = p.detach().clone(), torch.full((DIM,), 0.3, dtype=torch.float64)
    theta = q + sd * eps
    lam = torch.tensor(0.7, dtype=torch.float64)
    expected = bam_diagonal(q, sd, theta, score(theta) - (theta - 0.2) / 4, lam)
    opt = BaM([p], 100, lr=0.7, prior_mean=0.2, prior_sd=2.0, init_sd=0.3)
    agree(one_step(opt, p, eps), expected, torch.float64)


def test_paired_bam_step_is_published_bam_where_the_mean_score_is_zero() -> None:
    """On all the data and at the optimum's mean, (4) of rules/bam.py is (1)."""
    target = numbers(DIM, seed=5).exp()
    p = torch.nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
    opt = PairedBaM([p], 1, lr=0.2, damping=3.0, **FLAT)
    eps = numbers(DIM, seed=6)
    opt.noise = lambda member, draw: eps * (1 - 2 * (draw % 2))  # type: ignore[method-assign]
    for _ in range(2):
        for _ in range(2):
            with opt.sample():
                p.grad = target * p.detach()
        opt.step()
    slope = (0.09 * target**2 * 0.09 - 1) * eps.square() / 2
    lam = 1 / (4 + 10 * slope.square().mean().sqrt())
    theta = 0.3 * torch.stack([eps, -eps])
    _, sd = bam_diagonal(torch.zeros_like(eps), torch.full_like(eps, 0.3), theta, -target * theta, lam)
    torch.testing.assert_close(opt.state[p]["sd"], sd, rtol=1e-12, atol=0)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of these tests count as large: the noise of their large tensors is counter-based."""
    monkeypatch.setattr("bayescore.optim.noise.LARGE_NETWORK", LARGE_TENSOR)


def trained(
    shell: str, draws: int, dtype: torch.dtype = torch.float32, **options: object
) -> BayesianOptimizer:
    """Three steps on more weights than one slice has, with counter-based noise.

    The weights are as large as a network's: a draw that is kept carries its noise to theta's last digit over
    sd, and compiled and eager draws differ in that digit.
    """
    p = torch.nn.Parameter(0.1 * numbers(LARGE_TENSOR + 1000, seed=0).to(dtype))
    if "init_sd" in OPTIONS[shell]:
        options.setdefault("init_sd", 0.05)
    opt = OPTIMIZERS[shell]([p], 50, prior_mean=0.1, **options)
    for _ in range(3):
        for _ in range(draws):
            with opt.sample():
                p.grad = p.detach().tanh() / 10
        opt.step()
    return opt


def same(one: BayesianOptimizer, two: BayesianOptimizer) -> None:
    for a, b in zip(one.state.values(), two.state.values(), strict=True):
        for key in a:
            tolerance = TOLERANCE[a["mean"].dtype]  # beside an element near 0, that of the tensor's size
            size = max(1.0, float(b[key].abs().max()))
            torch.testing.assert_close(a[key], b[key], rtol=tolerance, atol=0.1 * tolerance * size)


def test_without_momentum_none_is_kept_and_the_step_is_the_first_one_of_any_momentum() -> None:
    found = []
    for momentum in (0.0, 0.9):
        p, eps = start(torch.float64, 1)
        opt = CalibratedScore([p], 50, lr=0.1, momentum=momentum)
        opt.state_dict()  # makes the state
        opt.param_groups[0]["momentum"] = 0.9  # as a schedule might: nothing is there to be kept
        found.append(one_step(opt, p, eps)[:1])
        assert ("momentum" in opt.state[p]) == bool(momentum)
    torch.testing.assert_close(*found, rtol=1e-12, atol=0)


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_slices_give_the_numbers_of_the_whole(
    shell: str, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = max(draws, 2 if "bam" in shell else 1)
    sliced = trained(shell, draws, compiled=False)
    monkeypatch.setattr("bayescore.optim.engine.SLICE", 10**9)
    same(sliced, trained(shell, draws, compiled=False))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # torch's compiler loads its old one
@pytest.mark.parametrize("draws", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "shell", ["proximal", *(pytest.param(s, marks=pytest.mark.slow) for s in OPTIMIZERS if s != "proximal")]
)
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_the_compiled_pass_gives_the_numbers_of_the_eager_one(
    shell: str, draws: int, dtype: torch.dtype
) -> None:
    draws = max(draws, 2 if "bam" in shell else 1)
    fast = trained(shell, draws, dtype, compiled=True)
    assert fast.status.endswith("update compiled")
    same(fast, trained(shell, draws, dtype, compiled=False))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_every_rule_can_be_traced_by_the_compiler(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler without its code generation: what costs the seconds."""
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda rule, **o: compiler(rule, backend="aot_eager", **o))
    fast = trained(shell, 2, compiled=True)
    assert fast.status.endswith("update compiled")
    same(fast, trained(shell, 2, compiled=False))


def test_small_networks_are_not_compiled_and_large_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch, "compile", lambda rule, **o: asked.append(rule) or rule)
    monkeypatch.setattr("bayescore.optim.engine._compiled", _compiled.__wrapped__)
    monkeypatch.setattr("bayescore.optim.noise.LARGE_NETWORK", 10 * LARGE_TENSOR)
    trained("proximal", 1)
    assert not asked
    monkeypatch.setattr("bayescore.optim.noise.LARGE_NETWORK", LARGE_TENSOR)
    trained("proximal", 1)
    assert asked


def test_small_networks_draw_from_torchs_generator_and_large_ones_by_counting() -> None:
    for size, kind in ((LARGE_TENSOR - 1, Tensor), (LARGE_TENSOR, CounterKey)):
        p = torch.nn.Parameter(torch.zeros(size))
        opt = CalibratedScore([p], 50, compiled=False)
        with opt.sample():
            (bucket,) = opt._buckets
            assert isinstance(opt.noise(bucket, 0), kind)
            p.grad = torch.zeros(size)


def test_a_failing_compiler_leaves_the_eager_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> object:
        def fail(*args: object) -> None:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr("bayescore.optim.engine._compiled", _compiled.__wrapped__)
    p, eps = start(torch.float64, 1)
    expected = one_step(CalibratedScore([p], 50, compiled=False), p, eps)
    p, eps = start(torch.float64, 1)
    opt = CalibratedScore([p], 50, compiled=True)
    found = one_step(opt, p, eps)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert "compiling failed" in opt.status

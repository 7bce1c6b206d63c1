"""Random families, targets and statistics that the tests share."""

from __future__ import annotations

import math
import subprocess
import sys

import torch
from torch import Tensor

import bayescore as bs
from bayescore.families import (
    CouplingFlow,
    DiagonalGaussian,
    Family,
    FullGaussian,
    GaussianMixture,
    LowRankGaussian,
    PlanarFlow,
    SpikedGaussian,
    ZukoFlow,
)
from bayescore.rng import Streams
from bayescore.targets.counting import CountingOracle

F64 = torch.float64

GAUSSIANS = ("full", "precision", "diagonal", "low-rank")
MIXTURES = ("mixture", "mixture-precision", "mixture-diagonal")
FLOWS = ("planar", "bare-planar", "coupling", "realnvp", "spline")
BATCHABLE = (*GAUSSIANS, "spiked", *MIXTURES, "planar", "bare-planar", "coupling")
EVERY = (*GAUSSIANS, "spiked", *MIXTURES, *FLOWS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers from a seed, other ones than the library draws from it."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + 10**9), dtype=F64)


def covariance(dim: int, seed: int = 0, condition: float | None = None) -> Tensor:
    """A random covariance matrix, with the given condition number if there is one."""
    rotation, _ = torch.linalg.qr(normal(dim, dim, seed=seed))
    if condition is None:
        spectrum = (0.5 * normal(dim, seed=seed + 1)).exp()
    else:
        spectrum = torch.logspace(0, -math.log10(condition), dim, dtype=F64)
    product = (rotation * spectrum) @ rotation.T
    return 0.5 * (product + product.T)


def gaussian(dim: int, seed: int = 0) -> FullGaussian:
    return FullGaussian.from_moments(normal(dim, seed=seed + 2), covariance(dim, seed))


def family(kind: str, dim: int = 3, seed: int = 0, *, components: int = 3, rank: int = 2) -> Family:
    """A density of the given kind, some way from its start."""
    seed = 31 * seed + 1000
    if kind == "full":
        return gaussian(dim, seed)
    if kind == "precision":
        return gaussian(dim, seed).in_form("precision")
    if kind == "diagonal":
        return DiagonalGaussian(normal(dim, seed=seed), 0.4 * normal(dim, seed=seed + 1))
    if kind == "low-rank":
        columns = normal(dim, min(rank, dim), seed=seed + 2)
        return LowRankGaussian(normal(dim, seed=seed), 0.4 * normal(dim, seed=seed + 1), columns)
    if kind == "spiked":
        columns, h = normal(dim, min(rank, dim), seed=seed + 2), normal(min(rank, dim), seed=seed + 3)
        return SpikedGaussian(normal(dim, seed=seed), 0.4 * normal(dim, seed=seed + 1), h, columns)
    if kind.startswith("mixture"):
        inner = "diagonal" if kind == "mixture-diagonal" else "full"
        parts = [family(inner, dim, seed + 7 * k) for k in range(components)]
        mixture = GaussianMixture(0.5 * normal(components, seed=seed), type(parts[0]).stack(parts))
        return mixture.in_form("precision") if kind == "mixture-precision" else mixture
    if kind in ("planar", "bare-planar"):
        u, w = normal(2, 2, dim, seed=seed)
        w = w / w.norm(dim=-1, keepdim=True) * (1 + torch.sigmoid(u[:, :1]))
        b = normal(2, seed=seed + 1)
        if kind == "bare-planar":
            return PlanarFlow(u, w, b)
        return PlanarFlow(u, w, b, normal(dim, seed=seed + 2), 0.4 * normal(dim, seed=seed + 3))
    if kind == "coupling":
        q = CouplingFlow.around(gaussian(dim, seed), layers=2, hidden=4, seed=seed)
        held = {key: q.parameters()[key] for key in ("location", "factor")}
        moved = q.from_flat(q.flat() + 0.2 * normal(q.flat().numel(), seed=seed + 1))
        return q.replace({**moved.parameters(), **held})
    flow = ZukoFlow.init(dim, kind, transforms=2, hidden=(8,), seed=seed)
    size = flow.flat().numel()
    return flow.from_flat(flow.flat() + 0.2 * normal(size, seed=seed + 1))


def batch(kind: str, size: int, dim: int = 3, seed: int = 0) -> Family:
    """A batch of random densities."""
    members = [family(kind, dim, seed + 100 * i) for i in range(size)]
    return type(members[0]).stack(members)


def grad_x(q: Family, x: Tensor) -> Tensor:
    """The gradient of log q by automatic differentiation."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(q.log_prob(x).sum(), x)[0]


def kl(mean: Tensor, cov: Tensor, other_mean: Tensor, other_cov: Tensor) -> Tensor:
    """KL(N(mean, cov) | N(other_mean, other_cov)), straight from its formula."""
    ratio, shift = torch.linalg.solve(other_cov, cov), (other_mean - mean).unsqueeze(-1)
    square = (shift.mT @ torch.linalg.solve(other_cov, shift)).squeeze((-2, -1))
    trace = ratio.diagonal(dim1=-2, dim2=-1).sum(-1)
    return 0.5 * (trace + square - mean.shape[-1] + torch.logdet(other_cov) - torch.logdet(cov))


def z_score(values: Tensor, expected: Tensor | float = 0.0) -> Tensor:
    """How many standard errors the mean over the first dimension is from what is expected."""
    error = values.std(0) / math.sqrt(len(values))
    return (values.mean(0) - expected) / error.clamp_min(1e-300)


def streams(size: int = 1, seed: int = 0) -> Streams:
    return Streams([seed + i for i in range(size)])


def walk(
    method: bs.methods.Method,
    q: Family,
    target: bs.targets.Target,
    *,
    steps: int = 1,
    horizon: int = 10,
    seed: int = 0,
    seeds: list[int] | None = None,
) -> Family:
    """The batch of families after some steps of a method from q, without the loop around it."""
    seeds = [seed] if seeds is None else seeds
    start = q if q.batch_shape else type(q).stack([q] * len(seeds))
    state = method.init(start.in_form(method.form), horizon)
    random = Streams(seeds, dtype=q.dtype)
    oracle = CountingOracle(target, random)
    with torch.no_grad():
        for _ in range(steps):
            state, _ = method.step(state, oracle, random)
    return state.family


def one_step(method: bs.methods.Method, q: Family, target: bs.targets.Target, *, seed: int = 0) -> Family:
    """The single family after one step."""
    return walk(method, q, target, seed=seed)[0]


def first_draws(method: bs.methods.Method, q: Family, draws: int, seed: int = 0) -> Tensor:
    """The points (S, D) at which the first step asks for scores."""
    q = type(q).stack([q]).in_form(method.form)
    return q.transform(q.noise(streams(1, seed), draws))[0]


class Exact(bs.targets.Target):
    """The density of a family, as a target: every identity at the optimum can be tested on it."""

    name = "exact"
    normalised = True

    def __init__(self, density: Family) -> None:
        self.density, self.dim, self.dtype = density, density.dim, density.dtype

    @property
    def batch_shape(self) -> torch.Size:
        return self.density.batch_shape

    def log_prob(self, x: Tensor) -> Tensor:
        return self.density.log_prob(x)

    def score(self, x: Tensor, streams: Streams | None = None) -> Tensor:
        with torch.no_grad():
            return self.density.score(x)

    def log_prob_and_score(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.log_prob(x).detach(), self.score(x)

    def sample(self, n: int, seed: int | torch.Generator | None = None) -> Tensor:
        return self.density.sample(n, seed)

    @classmethod
    def stack(cls, members: list[Exact]) -> Exact:  # type: ignore[override]
        return cls(type(members[0].density).stack([m.density for m in members]))


def scores_only(target: bs.targets.Target) -> bs.targets.ScoreFunction:
    """The same target without its density."""
    return bs.targets.ScoreFunction(lambda x: target.score(x), target.dim)


def run_python(code: str, *words: str) -> str:
    """Run code in a process of its own and return what it printed; for what could end the interpreter."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"
    return done.stdout


#: every method with every kind of family it serves, small enough to run in a blink
RUNS: dict[str, tuple[bs.methods.Method, str]] = {
    "whitened full": (bs.methods.WhitenedDescent(inner_steps=3), "full"),
    "whitened diagonal": (bs.methods.WhitenedDescent(inner_steps=3, draws=2), "diagonal"),
    "whitened adam": (bs.methods.WhitenedDescent(inner_steps=3, optimizer="adam"), "full"),
    "whitened adam diagonal": (bs.methods.WhitenedDescent(inner_steps=3, optimizer="adam"), "diagonal"),
    "whitened sgd": (bs.methods.WhitenedDescent(inner_steps=20, optimizer="sgd", lr=1e-4), "full"),
    "descent full": (bs.methods.ProximalDescent(inner_steps=3), "full"),
    "descent diagonal": (bs.methods.ProximalDescent(inner_steps=3, draws=2), "diagonal"),
    "descent low-rank": (bs.methods.ProximalDescent(inner_steps=2), "low-rank"),
    "descent mixture": (bs.methods.ProximalDescent(inner_steps=2), "mixture"),
    "descent planar": (bs.methods.ProximalDescent(inner_steps=2), "planar"),
    "descent zuko": (bs.methods.ProximalDescent(inner_steps=1), "realnvp"),
    "descent sgd": (bs.methods.ProximalDescent(optimizer="sgd", momentum=0.5, lr=1e-4), "full"),
    "descent sgd diagonal": (bs.methods.ProximalDescent(optimizer="sgd", momentum=0.5, lr=1e-4), "diagonal"),
    "descent clip": (bs.methods.ProximalDescent(inner_steps=2, clip=2.0, draws=3), "full"),
    "descent reset": (bs.methods.ProximalDescent(inner_steps=2, reset=True), "full"),
    "ridge": (bs.methods.ProximalRidge(), "diagonal"),
    "proximal score diagonal": (bs.methods.ProximalScore(), "diagonal"),
    "calibrated score diagonal": (bs.methods.CalibratedScore(), "diagonal"),
    "advi full": (bs.methods.ADVI(), "full"),
    "advi stick": (bs.methods.ADVI(stick=True, draws=2), "diagonal"),
    "advi gumbel": (bs.methods.ADVI(), "mixture"),
    "advi stratified": (bs.methods.ADVI(mixture="stratified"), "mixture-diagonal"),
    "advi diagonal": (bs.methods.ADVI(), "diagonal"),
    "advi low-rank": (bs.methods.ADVI(), "low-rank"),
    "advi planar": (bs.methods.ADVI(), "planar"),
    "gsm": (bs.methods.GSM(), "full"),
    "bam full": (bs.methods.BaM(), "full"),
    "bam wide": (bs.methods.BaM(draws=5), "full"),
    "bam diagonal": (bs.methods.BaM(), "diagonal"),
    "bam low-rank": (bs.methods.BaM(draws=3), "low-rank"),
    "curvature": (bs.methods.CurvatureMatching(pairs=2), "spiked"),
    "advi coupling": (bs.methods.ADVI(stick=True), "coupling"),
    "paired bam diagonal": (bs.methods.PairedBaM(draws=4), "diagonal"),
    "fisher": (bs.methods.Fisher(), "full"),
    "fisher planar": (bs.methods.Fisher(), "planar"),
    "score": (bs.methods.Score(draws=2), "full"),
    "score low-rank": (bs.methods.Score(), "low-rank"),
}


def same_run(a: bs.Fit, b: bs.Fit, tolerance: float = 0.0) -> None:
    """Two fits are bitwise one run: parameters, state, counts, status, history without the clock.

    A tolerance is for matrix products that the BLAS library rounds otherwise in a batch than alone.
    """
    mine, theirs = a.state.tensors(), b.state.tensors()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        if tolerance:
            torch.testing.assert_close(value, theirs[key], rtol=tolerance, atol=tolerance, equal_nan=True)
            continue
        assert torch.equal(value.nan_to_num(7.0), theirs[key].nan_to_num(7.0)), (
            f"{key} differs by {float((value - theirs[key]).abs().max()):.3g}"
        )
    assert a.state.step == b.state.step
    assert a.counts == b.counts
    assert (a.outcome, a.status) == (b.outcome, b.status)
    assert torch.equal(a.streams, b.streams)
    columns, others = a.history.to_dict(), b.history.to_dict()
    assert columns.keys() == others.keys()
    for name in columns.keys() - {"seconds"}:
        limits = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
        torch.testing.assert_close(a.history[name], b.history[name], **limits)

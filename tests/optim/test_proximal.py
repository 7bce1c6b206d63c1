"""ProximalScore: AdamW without noise, its rule written once more, and the noise that a network bears."""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_networks import NETWORKS, Case, large_from, levels, train
from torch import Tensor, nn

from bayescore.optim import ProximalScore
from bayescore.optim.engine import Bucket
from bayescore.optim.noise import generator_normal, stream_name
from bayescore.rules.proximal import Network, Slopes

MLP = NETWORKS["mlp"]
F64 = torch.float64


def sds(opt: ProximalScore) -> dict[Tensor, Tensor]:
    """The sd of every weight, by parameter."""
    return {member.weight: opt._sd(member) for member in opt._members()}


def network_of(opt: ProximalScore) -> Network:
    """The numbers of the whole network, which every group has."""
    first, *others = [group["network"] for group in opt.param_groups]
    assert all(other == first for other in others)
    return Network(*first)


def slopes_of(opt: ProximalScore, p: Tensor) -> Slopes:
    return Slopes(*opt.state[p]["statistics"].tolist())


def parts(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices that decay, and vectors with their own rate and betas that do not."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    return [
        {"params": matrices, "weight_decay": 0.3},
        {"params": vectors, "lr": 3e-2, "betas": (0.8, 0.99), "weight_decay": 0.0},
    ]


# -- without noise it is AdamW -----------------------------------------------------------------------------

NO_NOISE = 1e-12  # a temperature


def warm_up_and_decay(t: int) -> float:
    return min(t / 20, 1.0) * 0.5 * (1 + math.cos(math.pi * t / 200))


def scheduled(opt: torch.optim.Optimizer, case: Case, model: nn.Module, step: Callable[[], Any]) -> None:
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, warm_up_and_decay)
    for i in range(200):
        if isinstance(opt, ProximalScore):
            with opt.sample():
                case.loss(model, *case.batch(seed=i, dtype=F64)).backward()
        else:
            case.loss(model, *case.batch(seed=i, dtype=F64)).backward()
        step()
        opt.zero_grad()
        schedule.step()


@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("case", ["mlp", "conv", "tied"])
def test_without_noise_two_hundred_steps_are_those_of_adamw(
    case: str, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With groups, decay, betas, and a schedule that begins at a rate of zero."""
    if not small:
        large_from(20, monkeypatch)
    model, twin = (NETWORKS[case].module(F64) for _ in range(2))
    opt = ProximalScore(parts(model), 50, lr=1e-2, temperature=NO_NOISE)
    adamw = torch.optim.AdamW(parts(twin), lr=1e-2)
    scheduled(opt, NETWORKS[case], model, lambda: opt.step())
    scheduled(adamw, NETWORKS[case], twin, lambda: adamw.step())
    start = NETWORKS[case].module(F64)
    for a, b, c in zip(model.parameters(), twin.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert a.dim() < 2 or float((a - c).detach().abs().max()) > 0.1


def test_its_defaults_are_those_of_adamw() -> None:
    ours, theirs = (kind(MLP.module().parameters(), **o) for kind, o in KINDS)
    for name in ("lr", "betas", "weight_decay"):
        assert ours.param_groups[0][name] == theirs.param_groups[0][name]


KINDS: list[tuple[Any, dict[str, int]]] = [(ProximalScore, {"num_data": 50}), (torch.optim.AdamW, {})]


def test_the_decay_points_to_the_start_if_that_is_the_prior_mean() -> None:
    lr, decay = 1e-2, 0.5
    model, twin = MLP.module(F64), MLP.module(F64)
    start = [p.detach().clone() for p in twin.parameters()]
    opt = ProximalScore(
        model.parameters(), 50, lr=lr, weight_decay=decay, prior_mean="current", temperature=NO_NOISE
    )
    adam = torch.optim.Adam(twin.parameters(), lr=lr)

    def step() -> None:
        before = [p.detach().clone() for p in twin.parameters()]
        adam.step()
        with torch.no_grad():
            rate = adam.param_groups[0]["lr"]
            for p, old, home in zip(twin.parameters(), before, start, strict=True):
                p -= rate * decay * (old - home)

    scheduled(opt, MLP, model, lambda: opt.step())
    scheduled(adam, MLP, twin, step)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# -- the rule, written once more ---------------------------------------------------------------------------


def remembered(values: list[float], memory: float) -> float:
    """The running mean without the bias of its start, from all that was seen."""
    weights = [memory**k for k in reversed(range(len(values)))]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def root_mean_square(weights: Tensor) -> float:
    found = float(weights.square().mean().sqrt())
    return found if found > 1e-6 else weights[0].numel() ** -0.5 if weights.dim() > 1 else 1.0


class Reference:
    """(1) to (10) of rules/proximal.py, tensor by tensor, from the history of every sum."""

    def __init__(
        self, model: nn.Module, groups: list[dict[str, Any]], N: int, tau: float, nats: float
    ) -> None:
        self.model, self.N, self.temperature, self.nats = model, N, tau, nats
        self.tau = 1e-4 * tau
        self.taus: list[float] = []
        self.rows: list[dict[str, Any]] = []
        for group in groups:
            matrix = None
            for p in group["params"]:
                home = p.detach().clone()
                if p.dim() > 1:
                    matrix = home
                matrices = [q.detach() for g in groups for q in g["params"] if q.dim() > 1]
                if p.dim() > 1 or matrix is not None or not matrices:
                    size = root_mean_square(home if matrix is None else matrix)
                else:  # no matrix before it
                    size = statistics.median(root_mean_square(q) for q in matrices)
                self.rows.append(
                    {
                        **group, "p": p, "m": home.clone(), "m0": home, "a": 0 * home, "v": 0 * home, "t": 0,
                        "s0": group["prior_scale"] * size, "path": 0.0, "x": [], "y": [], "z": [],
                    }
                )  # fmt: skip

    def sums(self, name: str) -> list[float]:
        """Over all tensors, step by step: all of them have had every step."""
        return [sum(values) for values in zip(*(row[name] for row in self.rows), strict=True)]

    def shrunk(self, x: list[float], y: list[float], z: list[float], centre: float) -> float:
        if not x:
            return centre
        n = sum(0.99**k for k in range(len(x)))
        X, Y, Z = (remembered(values, 0.99) for values in (x, y, z))
        information, prior = n * Y**2 / Z, 1 / centre**2
        return (X / Y * information + centre * prior) / (information + prior)

    def sd(self, row: dict[str, Any]) -> Tensor:
        r = max(1.0, self.shrunk(self.sums("x"), self.sums("y"), self.sums("z"), 32.0))
        rho = max(r / 10, self.shrunk(row["x"], row["y"], row["z"], r))  # (9)
        v = row["v"] / (1 - row["betas"][1] ** row["t"]) if row["t"] else row["v"]
        sd = (self.tau / (self.N * rho * v + row["s0"] ** -2)).sqrt()  # (1)
        return sd.clamp(max=0.1 * (row["path"] or row["lr"]))

    def cost(self) -> tuple[float, float]:
        x, z = self.sums("x"), self.sums("z")
        n = sum(0.98**k for k in range(len(x)))
        return 0.5 * remembered(x, 0.98), 0.5 * math.sqrt(remembered(z, 0.98) / n)

    def inflation(self) -> float:
        x, z = self.sums("x"), self.sums("z")
        if not x:
            return 1.0
        variance = remembered([value**2 for value in x], 0.99) - remembered(x, 0.99) ** 2
        R = min(max(variance / remembered(z, 0.99), 1.0), 2 - 1 / 3)
        cost = max(self.cost()[0], 0.0)
        return 1 + cost / (cost + 0.002) * (1 / (2 - R) - 1)  # (10)

    def step(self, eps: list[list[Tensor]], loss: Callable[[nn.Module], Tensor]) -> None:
        """One step from draws with this noise: eps[s][i] of draw s and tensor i."""
        widths, Q = [self.sd(row) for row in self.rows], self.inflation()
        offsets, gradients = [], []
        for noise in eps:
            offsets.append([sd * e for sd, e in zip(widths, noise, strict=True)])
            for row, d in zip(self.rows, offsets[-1], strict=True):
                row["p"].data.copy_(row["m"] + d)
            gradients.append(torch.autograd.grad(loss(self.model), [row["p"] for row in self.rows]))
        for i, row in enumerate(self.rows):
            (b1, b2), t, lr = row["betas"], row["t"] + 1, row["lr"]
            pairs = [(d[i], g[i]) for d, g in zip(offsets, gradients, strict=True)]
            before = row["a"] / (1 - b1 ** (t - 1)) if t > 1 else 0 * row["a"]
            x = sum(d * (g - before) for d, g in pairs) / len(pairs)  # (2)
            away = row["m"] - row["m0"]
            g = sum(g for _, g in pairs) / len(pairs)
            g = g + self.temperature / self.N / (30 * row["s0"]) ** 2 * away
            row["a"] = b1 * row["a"] + (1 - b1) * g
            row["v"] = b2 * row["v"] + (1 - b2) * g**2 / Q  # (3)
            v = row["v"] / (1 - b2**t)
            move = lr * row["a"] / (1 - b1**t) / (v.sqrt() + 1e-8)
            row["m"] = row["m"] - move - lr * row["weight_decay"] * (row["m"] - row["m0"])  # (4)
            square = sum(d**2 for d, _ in pairs) / len(pairs)
            for name, term in (("x", x), ("y", v * square), ("z", x**2)):
                row[name].append(float(term.sum()))  # (5)
            row["t"], row["path"] = t, row["path"] + lr
            row["p"].data.copy_(row["m"])
        self.taus.append(self.tau)
        wanted, held = math.inf, sum(self.cost())
        if held > 0:
            wanted = self.nats * remembered(self.taus, 0.98) / held  # (8)
        self.tau = min(max(wanted, 0.9 * self.tau), 1.05 * self.tau, self.temperature)


def given_noise(step: int, draw: int, number: int, shape: torch.Size) -> Tensor:
    rng = torch.Generator().manual_seed(1000 * step + 100 * draw + number)
    return levels(torch.randn(shape, generator=rng, dtype=F64))


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("size", ["small", "large", "sliced"])
@pytest.mark.parametrize(
    ("case", "temperature", "nats"),
    [("mlp", 1.0, 0.1), ("conv", 1e4, 1e-3), ("attention", 1e4, math.inf), ("tied", 100.0, 1e-4)],
    ids=["growing", "falling", "unlimited", "small limit"],
)
def test_thirty_steps_are_those_of_the_equations(
    case: str, temperature: float, nats: float, size: str, draws: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if size != "small":
        large_from(20, monkeypatch)
    if size == "sliced":
        monkeypatch.setattr("bayescore.optim.engine.SLICE", 7)
    net = NETWORKS[case]
    model, twin = net.module(F64).eval(), net.module(F64).eval()  # without dropout and batch statistics
    for p in itertools.chain(model.parameters(), twin.parameters()):
        p.requires_grad_(True)
    # gradients of an attention's keys' biases are rounding errors, which Adam would amplify beside a prior
    same = {"lr": 1e-2, "betas": (0.9, 0.999), "prior_scale": 1e6 if case == "attention" else 0.5}
    opt = ProximalScore(parts(model), 50, temperature=temperature, nats=nats, prior_mean="current", **same)
    reference = Reference(twin, [{**same, **group} for group in parts(twin)], 50, temperature, nats)

    def noise(bucket: Bucket, draw: int) -> Tensor:
        step = opt.param_groups[0]["step"]
        flat = [given_noise(step, draw, m.number, m.weight.shape).flatten() for m in bucket.members]
        return torch.cat(flat)

    monkeypatch.setattr(opt, "noise", noise)
    shapes = [row["p"].shape for row in reference.rows]
    for i in range(30):
        batch = net.batch(seed=i, dtype=F64)
        for _ in range(draws):
            with opt.sample():
                net.loss(model, *batch).backward()
        opt.step()
        opt.zero_grad()
        eps = [[given_noise(i, s, j, shape) for j, shape in enumerate(shapes)] for s in range(draws)]
        reference.step(eps, lambda module, batch=batch: net.loss(module, *batch))
        weights = [p for group in opt.param_groups for p in group["params"]]
        for p, row in zip(weights, reference.rows, strict=True):
            torch.testing.assert_close(p.detach(), row["m"], rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(sds(opt)[p], reference.sd(row), rtol=1e-9, atol=1e-13)
        assert network_of(opt).tau == pytest.approx(reference.tau, rel=1e-9)
        assert network_of(opt).inflation() == pytest.approx(reference.inflation(), rel=1e-9)
    assert all(float(sd.max()) > 1e-3 for sd in sds(opt).values())  # the noise was there to be seen


# -- exact posteriors --------------------------------------------------------------------------------------


class Quadratic(nn.Module):
    """A mean loss 1/2 (w - centre)^T H (w - centre), for one tensor or two."""

    def __init__(self, H: Tensor, tensors: int = 1) -> None:
        super().__init__()
        self.H = H
        self.centre = torch.linspace(-1, 1, len(H), dtype=H.dtype)
        self.weights = nn.ParameterList(torch.zeros(len(H) // tensors, dtype=H.dtype) for _ in range(tensors))

    def loss(self) -> Tensor:
        d = torch.cat(tuple(self.weights)) - self.centre
        return 0.5 * d @ self.H @ d

    def steps(self, opt: ProximalScore, count: int) -> None:
        for _ in range(count):
            with opt.sample():
                self.loss().backward()
            opt.step()
            opt.zero_grad()


def annealed(opt: ProximalScore, model: Quadratic, steps: int) -> None:
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, steps)
    for _ in range(steps):
        model.steps(opt, 1)
        schedule.step()


@pytest.mark.parametrize("N", [1, 100])
def test_a_run_ends_at_the_exact_posterior_of_a_diagonal_gaussian(N: int) -> None:
    """Precisions over a factor of 50, in two tensors."""
    precision = torch.logspace(-0.85, 0.85, 60, dtype=F64)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    model = Quadratic(torch.diag(precision[order]) / N, tensors=2)
    opt = ProximalScore(
        model.parameters(), N, lr=0.03, nats=math.inf, weight_decay=0.0, prior_scale=1e18, seed=1
    )
    annealed(opt, model, 3000)
    exact = precision[order] ** -0.5
    found = torch.cat([sds(opt)[p] for p in model.weights])
    torch.testing.assert_close(found, exact, rtol=0.15, atol=0)
    assert float((found / exact).log().mean().abs()) < 0.03
    mean = torch.cat(tuple(model.weights)).detach()
    assert float(((mean - model.centre) / exact).abs().max()) < 0.2
    assert f"at temperature {1:g}" in opt.status


# -- the cost ----------------------------------------------------------------------------------------------


def coupled(seed: int = 0) -> Tensor:
    """A Hessian whose off-diagonal elements matter."""
    root = torch.randn(40, 60, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return root @ root.T / 60


@pytest.mark.parametrize("hessian", ["diagonal", "coupled"])
def test_the_cost_is_half_the_trace_of_the_hessian_and_the_covariance(hessian: str) -> None:
    H = torch.diag(torch.logspace(-1, 1, 40, dtype=F64)) if hessian == "diagonal" else coupled()
    model = Quadratic(H)
    opt = ProximalScore(model.parameters(), 100, lr=1e-2, nats=math.inf, seed=2)
    model.steps(opt, 600)
    found, expected, error = [], [], []
    for _ in range(400):
        found.append(network_of(opt).cost)
        error.append(network_of(opt).cost_error)
        (sd,) = sds(opt).values()
        expected.append(float(0.5 * (H.diagonal() * sd.square()).sum()))
        model.steps(opt, 1)
    mean = sum(found) / 400
    assert mean == pytest.approx(sum(expected) / 400, rel=0.1)
    spread = (sum((value - mean) ** 2 for value in found) / 399) ** 0.5
    assert spread < 3 * sum(error) / 400
    assert f"adds {found[-1]:.2g}"[:8] in opt.status


def test_the_cost_is_what_the_noise_adds_to_the_loss() -> None:
    model = Quadratic(coupled())
    opt = ProximalScore(model.parameters(), 100, lr=1e-2, nats=math.inf, seed=2)
    model.steps(opt, 800)
    posterior = opt.posterior(model)
    at_mean, drawn = float(model.loss().detach()), []
    for i in range(400):
        draw = posterior.draw(0, i)["weights.0"]
        d = draw - model.centre
        drawn.append(float(0.5 * d @ model.H @ d))
    assert sum(drawn) / 400 - at_mean == pytest.approx(network_of(opt).cost, rel=0.15)


@pytest.mark.parametrize("nats", [0.02, 0.1, 1.0])
def test_on_a_steep_loss_the_cost_is_held_at_its_limit(nats: float) -> None:
    """At temperature 1 the noise of 100 weights and 10 data would cost 5 nats."""
    H = torch.diag(torch.logspace(1, 3, 100, dtype=F64))
    model = Quadratic(H)
    opt = ProximalScore(model.parameters(), 10, lr=1e-2, nats=nats, weight_decay=0.0, seed=3)
    model.steps(opt, 500)
    costs, taus = [], []
    for _ in range(500):
        model.steps(opt, 1)
        (sd,) = sds(opt).values()
        costs.append(float(0.5 * (H.diagonal() * sd.square()).sum()))
        taus.append(network_of(opt).tau)
    assert 0.5 * nats < sum(costs) / 500 < 1.1 * nats
    assert max(taus) < 1
    assert f"held at {nats:g} by the temperature" in opt.status


def test_the_temperature_rises_by_five_percent_at_most_and_is_never_lowered_without_a_limit() -> None:
    model = Quadratic(1e4 * torch.eye(50, dtype=F64))
    opt = ProximalScore(model.parameters(), 1, lr=1e-2, temperature=3.0, nats=math.inf)
    taus = []
    for _ in range(250):
        model.steps(opt, 1)
        taus.append(network_of(opt).tau)
    assert all(old <= new <= 1.05 * old * (1 + 1e-12) for old, new in itertools.pairwise(taus))
    assert taus[0] == pytest.approx(1.05 * 3e-4)
    assert taus[-1] == 3.0


def test_a_lower_temperature_during_a_run_holds_at_once_and_a_higher_one_is_approached() -> None:
    model = Quadratic(torch.eye(5, dtype=F64))
    opt = ProximalScore(model.parameters(), 100, nats=math.inf)
    model.steps(opt, 250)
    assert network_of(opt).tau == 1.0
    opt.param_groups[0]["temperature"] = 0.25
    model.steps(opt, 1)
    assert network_of(opt).tau == 0.25
    opt.param_groups[0]["temperature"] = 1.0
    model.steps(opt, 1)
    assert network_of(opt).tau == pytest.approx(0.25 * 1.05)


def test_the_status_tells_whether_the_widths_still_grow() -> None:
    model = Quadratic(torch.eye(5, dtype=F64))
    opt = ProximalScore(model.parameters(), 1000)
    assert "not known before the first update" in opt.status
    model.steps(opt, 50)
    assert "the widths still grow" in opt.status
    assert "train longer" in opt.status
    model.steps(opt, 200)
    assert "at temperature 1" in opt.status


# -- tensors of every kind ---------------------------------------------------------------------------------


class Many(nn.Module):
    """A matrix with a bias, a norm, a low-rank adapter that begins at zero, a gain, and a zero head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.norm = nn.LayerNorm(16)
        self.down = nn.Parameter(torch.randn(2, 16))
        self.up = nn.Parameter(torch.zeros(16, 2))
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.head = nn.Linear(16, 3)
        self.unused = nn.Parameter(torch.randn(5, 5))
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x)).tanh()
        return self.head(self.gain * (hidden + hidden @ self.down.T @ self.up.T))


MANY = Case(Many, (4,))


def rms(tensor: Tensor) -> float:
    return float(tensor.detach().square().mean().sqrt())


def test_prior_widths_are_relative_to_each_tensors_weights_or_those_of_the_matrix_before_it() -> None:
    model = MANY.module()
    opt = ProximalScore(model.parameters(), 50, prior_scale=0.3)
    opt.state_dict()  # makes the state
    expected = {
        "first.weight": rms(model.first.weight),
        "first.bias": rms(model.first.weight),
        "norm.weight": rms(model.first.weight),
        "norm.bias": rms(model.first.weight),
        "down": rms(model.down),
        "up": 2**-0.5,  # zeros, with two inputs
        "gain": 2**-0.5,  # of the matrix before it, which is zero
        "head.weight": 16**-0.5,
        "head.bias": 16**-0.5,
        "unused": rms(model.unused),
    }
    # parameters() has those of a module itself before those of its parts
    order = [name for name, _ in model.named_parameters()]
    assert order[:3] == ["down", "up", "gain"]
    assert set(order) == set(expected)
    expected["unused"] = rms(model.unused)
    for name, p in model.named_parameters():
        assert slopes_of(opt, p).scale == pytest.approx(0.3 * expected[name], rel=1e-5), name


def test_vectors_in_a_group_of_their_own_have_the_median_size_of_all_matrices() -> None:
    matrices = [nn.Parameter(torch.full((2, 2), value)) for value in (0.1, 0.2, 5.0)]
    biases = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.ones(2))]
    opt = ProximalScore([{"params": matrices}, {"params": biases, "weight_decay": 0.0}], 50, prior_scale=1.0)
    opt.state_dict()
    assert [slopes_of(opt, p).scale for p in biases] == pytest.approx([0.2, 0.2])


def test_a_vector_of_a_network_without_matrices_has_its_own_size_and_zeros_one() -> None:
    ones, zeros, number = torch.full((3,), 2.0), torch.zeros(3), torch.tensor(0.0)
    params = [nn.Parameter(value) for value in (ones, zeros, number)]
    opt = ProximalScore(params, 50, prior_scale=0.5)
    opt.state_dict()
    assert [slopes_of(opt, p).scale for p in params] == pytest.approx([1.0, 0.5, 0.5])


@pytest.mark.parametrize("draws", [1, 2])
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_every_kind_are_trained_and_have_widths(
    small: bool, draws: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        large_from(10, monkeypatch)
    model = MANY.module(dtype)
    before = copy.deepcopy(model.state_dict())
    opt = ProximalScore(model.parameters(), 200, lr=1e-2)
    x, y = MANY.batch(64, dtype)
    start = float(MANY.loss(model, x, y).detach())
    for _ in range(150):
        for _ in range(draws):
            with opt.sample():
                MANY.loss(model, x, y).backward()
        opt.step()
        opt.zero_grad()
    assert float(MANY.loss(model, x, y).detach()) < start - 0.2
    widths = sds(opt)
    for name, p in model.named_parameters():
        state, slopes = opt.state[p], slopes_of(opt, p)
        assert all(value.isfinite().all() for value in state.values()), name
        assert state["mean"].dtype == state["first"].dtype == state["second"].dtype == torch.float32
        assert widths[p].shape == p.shape
        assert float(widths[p].min()) > 0
        assert float(widths[p].max()) <= slopes.scale * (1 + 1e-5)
        moved = not torch.allclose(p, before[name], rtol=0, atol=1e-6)  # more than onto a grid
        assert moved == (name != "unused")
        assert slopes.steps == (150 if moved else 0)
    assert network_of(opt).steps == 150


def test_tied_weights_are_one_tensor() -> None:
    """With the sum of both gradients: that is among the thirty steps above."""
    tied = NETWORKS["tied"].module(F64)
    opt = ProximalScore(tied.parameters(), 50)
    train(opt, NETWORKS["tied"], tied, 5, dtype=F64)
    assert {p.shape for p in sds(opt)} == {(3, 4), (3,)}
    assert slopes_of(opt, tied.twin.weight).steps == slopes_of(opt, tied.code.weight).steps == 5


def test_a_tensor_that_comes_late_begins_as_adam_does_and_leaves_the_others_alone() -> None:
    lr = 0.05
    early, late = nn.Parameter(torch.linspace(1, 2, 6)), nn.Parameter(torch.linspace(1, 2, 6))
    late.requires_grad_(False)
    opt = ProximalScore([early, late], 100, lr=lr, weight_decay=0.0, nats=math.inf, prior_scale=1e18)

    def step(*tensors: nn.Parameter) -> None:
        with opt.sample():
            sum(t.square().sum() for t in tensors).backward()  # type: ignore[union-attr]
        opt.step()
        opt.zero_grad()

    for _ in range(60):
        step(early)
    assert late not in opt.state or not opt.state[late]
    kept = {key: value.clone() for key, value in opt.state[early].items()}
    late.requires_grad_(True)
    widths = sds(opt)
    torch.testing.assert_close(widths[late], torch.full((6,), 0.1 * lr))
    assert all(torch.equal(opt.state[early][key], value) for key, value in kept.items())
    before, adam = late.detach().clone(), nn.Parameter(late.detach().clone())
    reference = torch.optim.Adam([adam], lr)
    for t in range(3):
        with opt.sample():
            (early.square().sum() + late.square().sum()).backward()
            adam.grad = late.grad.clone()
        opt.step()
        reference.step()
        opt.zero_grad()
        torch.testing.assert_close(late.detach(), adam.detach(), rtol=0.02, atol=0)
        if not t:
            torch.testing.assert_close(before - late.detach(), torch.full((6,), lr), rtol=1e-4, atol=0)
    assert (slopes_of(opt, early).steps, slopes_of(opt, late).steps) == (63, 3)
    assert slopes_of(opt, late).path == pytest.approx(3 * lr)


def test_a_group_that_is_added_late_joins_the_networks_numbers() -> None:
    model, extra = MLP.module(), nn.Linear(3, 2)
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 5)
    opt.add_param_group({"params": extra.parameters(), "lr": 1e-2})
    x, y = MLP.batch()
    with opt.sample():
        (MLP.loss(model, x, y) + extra(model(x)).square().mean()).backward()
    opt.step()
    assert network_of(opt).steps == 6
    assert slopes_of(opt, extra.weight).steps == 1
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert network_of(opt).steps == 6


def test_a_warm_up_from_a_rate_of_zero_makes_no_noise_and_no_step_first() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50, lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: min(t / 10, 1.0))
    before = [p.detach().clone() for p in model.parameters()]
    with opt.sample():
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        MLP.loss(model, *MLP.batch()).backward()
    opt.step()
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    opt.zero_grad()
    for t in range(1, 60):
        schedule.step()
        train(opt, MLP, model, 1, first=t)
    for p, sd in sds(opt).items():
        assert float(sd.min()) > 1e-5
        assert all(value.isfinite().all() for value in opt.state[p].values())


def test_gradients_of_zero_leave_the_mean_and_a_width_of_the_prior() -> None:
    used, dead = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    opt = ProximalScore([used, dead], 50, weight_decay=0.0, prior_mean="current")
    for _ in range(300):
        with opt.sample():
            (used.square().sum() + (0 * dead).sum()).backward()
        opt.step()
        opt.zero_grad()
    assert torch.equal(dead.detach(), torch.ones(3))
    tau = network_of(opt).tau
    reach = 0.1 * slopes_of(opt, dead).path
    torch.testing.assert_close(sds(opt)[dead], torch.full((3,), min(tau**0.5, reach)))


# -- what a checkpoint, backward and a scaler see ----------------------------------------------------------


def test_the_state_is_adamws_and_the_mean_with_six_numbers_per_tensor() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 2)
    for p in model.parameters():
        state = opt.state[p]
        assert set(state) == {"mean", "first", "second", "statistics"}
        assert state["statistics"].dtype == F64
        assert state["statistics"].shape == (len(Slopes._fields),)


def test_widths_are_the_same_after_a_checkpoint() -> None:
    model, other = MLP.module(), MLP.module(seed=3)
    opt = ProximalScore(model.parameters(), 50, lr=1e-2)
    train(opt, MLP, model, 40)
    resumed = ProximalScore(other.parameters(), 50, lr=1e-3)
    resumed.load_state_dict(copy.deepcopy(opt.state_dict()))
    for a, b in zip(sds(opt).values(), sds(resumed).values(), strict=True):
        assert torch.equal(a, b)
    assert network_of(opt) == network_of(resumed)
    for o, m in ((opt, model), (resumed, other)):
        train(o, MLP, m, 3, first=40)
    assert network_of(opt) == network_of(resumed)


def test_a_checkpoint_of_float64_numbers_stays_so_beside_float32_weights() -> None:
    model, other = MLP.module(), MLP.module(seed=3)
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 3)
    resumed = ProximalScore(other.parameters(), 50)
    resumed.load_state_dict(opt.state_dict())
    assert all(resumed.state[p]["statistics"].dtype == F64 for p in other.parameters())


def late_in_backward(arriving: bool) -> tuple[ProximalScore, list[nn.Parameter]]:
    """A large tensor and two small ones, of which the second has no gradient in the first steps."""
    rng = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(size, generator=rng)) for size in (30, 3, 3)]
    opt = ProximalScore(params, 50, lr=1e-2, update_in_backward=arriving)
    for t in range(6):
        with opt.sample():
            reached = params if t > 2 else params[:2]
            torch.stack([p.square().sum() for p in reached]).sum().backward()
        opt.step()
        opt.zero_grad()
    return opt, params


def test_during_backward_small_tensors_that_take_turns_keep_their_own_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large_from(20, monkeypatch)
    (after, one), (during, two) = late_in_backward(False), late_in_backward(True)
    assert [slopes_of(during, p).steps for p in two] == [6, 6, 3]
    for a, b in zip(one, two, strict=True):
        assert all(torch.equal(after.state[a][key], during.state[b][key]) for key in after.state[a])
    assert network_of(after) == network_of(during)


def test_an_exception_after_an_update_during_backward_counts_what_has_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large_from(20, monkeypatch)
    large, small = nn.Parameter(torch.ones(30)), nn.Parameter(torch.ones(3))
    opt = ProximalScore([large, small], 50, update_in_backward=True)

    def backward() -> None:
        (large.square().sum() + small.square().sum()).backward()

    with pytest.raises(KeyError), opt.sample():  # noqa: PT012
        backward()
        raise KeyError("the metrics")
    assert not torch.equal(large, torch.ones(30))
    assert torch.equal(small, torch.ones(3))
    assert (slopes_of(opt, large).steps, slopes_of(opt, small).steps) == (1, 0)
    with opt.sample():
        backward()
    opt.step()
    assert (slopes_of(opt, large).steps, slopes_of(opt, small).steps) == (2, 1)
    assert network_of(opt).steps == 2


@pytest.mark.parametrize("draws", [1, 3])
def test_a_grad_scaler_changes_no_number(draws: int) -> None:
    model, twin = MLP.module(F64), MLP.module(F64)
    opt, other = ProximalScore(model.parameters(), 50, lr=1e-2), ProximalScore(twin.parameters(), 50, lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    train(opt, MLP, model, 6, draws=draws, dtype=F64)
    for i in range(6):
        for _ in range(draws):
            with other.sample():
                scaler.scale(MLP.loss(twin, *MLP.batch(seed=i, dtype=F64))).backward()
        scaler.step(other)
        scaler.update()
        other.zero_grad()
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)
        assert slopes_of(opt, a) == pytest.approx(slopes_of(other, b), rel=1e-5, abs=1e-12)
    assert network_of(opt) == pytest.approx(network_of(other), rel=1e-5, abs=1e-12)


def test_a_skipped_update_changes_no_number() -> None:
    model = MLP.module()
    opt = ProximalScore(model.parameters(), 50)
    train(opt, MLP, model, 3)
    before, numbers = network_of(opt), [slopes_of(opt, p) for p in model.parameters()]
    with opt.sample():
        (MLP.loss(model, *MLP.batch()) * math.nan).backward()
    with pytest.warns(RuntimeWarning, match="not finite"):
        opt.step()
    assert network_of(opt) == before
    assert [slopes_of(opt, p) for p in model.parameters()] == numbers


def test_several_draws_of_a_step_have_the_same_widths_and_opposite_noise() -> None:
    model = MLP.module(F64)
    opt = ProximalScore(model.parameters(), 50, lr=1e-2)
    train(opt, MLP, model, 30, dtype=F64)
    mean, seen = [p.detach().clone() for p in model.parameters()], []
    widths = [sds(opt)[p] for p in model.parameters()]
    number = opt.param_groups[0]["step"]
    for _ in range(2):
        with opt.sample():
            seen.append([p.detach().clone() for p in model.parameters()])
            MLP.loss(model, *MLP.batch(dtype=F64)).backward()
    for i, (m, sd, one, two) in enumerate(zip(mean, widths, *seen, strict=True)):
        torch.testing.assert_close(one + two, 2 * m)
        eps = torch.empty_like(m).flatten()
        generator_normal(eps, stream_name(0, number, 0, i), 1.0, torch.Generator())
        torch.testing.assert_close(one, m + sd * eps.view_as(m), rtol=1e-12, atol=1e-14)
    opt.step()


def test_in_bfloat16_the_posterior_is_that_of_float32_to_the_weights_precision() -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model = MLP.module(torch.bfloat16).to(dtype)
        opt = ProximalScore(model.parameters(), 50, lr=1e-2)
        train(opt, MLP, model, 60, dtype=dtype)
        found.append((opt, list(model.parameters())))
    (wide, one), (narrow, two) = found
    for a, b in zip(one, two, strict=True):
        assert narrow.state[b]["mean"].dtype == torch.float32
        assert rms(wide.state[a]["mean"] - narrow.state[b]["mean"]) < 0.1 * rms(wide.state[a]["mean"])
        ratio = sds(narrow)[b].log().mean() - sds(wide)[a].log().mean()
        assert abs(float(ratio)) < 0.5


def test_what_the_noise_may_cost_follows_from_the_weights_and_the_data_unless_it_is_given() -> None:
    model = torch.nn.Linear(20, 5)  # 105 weights
    opt = ProximalScore(model.parameters(), 100)
    assert opt.param_groups[0]["nats"] == pytest.approx(0.0105)
    opt.add_param_group({"params": torch.nn.Linear(2, 2).parameters()})  # a whole option: one for all groups
    assert opt.param_groups[1]["nats"] == opt.param_groups[0]["nats"]
    assert ProximalScore(model.parameters(), 100, nats=0.2).param_groups[0]["nats"] == 0.2
    model.weight.requires_grad_(False)
    assert ProximalScore(model.parameters(), 100).param_groups[0]["nats"] == 0.003

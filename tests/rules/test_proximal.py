"""The default rule of networks: a weighted regression, fixed at exact posteriors, whose noise is limited."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayescore.rules import Draws
from bayescore.rules.proximal import (
    FALL,
    HALF,
    LEAST_SHARE,
    MEMORY,
    MOST_SWOLLEN,
    QUICK,
    RISE,
    START,
    USUAL,
    Network,
    ProximalOptions,
    Slopes,
    proximal_step,
    usual_nats,
    width,
)
from cases import F64, normal

DIM, LR, BETAS = 6, 0.01, (0.9, 0.999)
FLAT = Slopes(scale=math.inf)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def options(
    slopes: Slopes, network: Network, N: float = 1.0, lr: float = LR, betas: tuple[float, float] = BETAS
) -> ProximalOptions:
    of_group = (1 - betas[0], betas[1], (1 - betas[1]) / network.inflation())
    of_width = slopes.width_options(network.slope(), network.tau, N, lr, betas[1])
    rows = (of_width, of_group, slopes.adam_options(lr, betas, 1 / N))
    return ProximalOptions(*(column(value) for row in rows for value in row))


def stepped(
    mean: Tensor, first: Tensor, second: Tensor, draws: Draws, o: ProximalOptions
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
    new, (x, y, z) = proximal_step(mean, first, second, 0.0, draws, o)
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    assert isinstance(z, Tensor)
    return new, (x, y, z)


# -- the step is AdamW's -----------------------------------------------------------------------------------


@pytest.mark.parametrize("betas", [BETAS, (0.5, 0.9), (0.0, 0.5)])
def test_whatever_the_noise_the_mean_moves_as_adams_on_the_same_gradients(betas: tuple[float, float]) -> None:
    weights = torch.nn.Parameter(normal(DIM, seed=1))
    adam = torch.optim.Adam([weights], LR, betas)
    mean, first, second = weights.detach().clone(), torch.zeros(DIM, dtype=F64), torch.zeros(DIM, dtype=F64)
    slopes, network = FLAT, Network(0.3)
    for t in range(20):
        g, eps = normal(2, DIM, seed=t)
        o = options(slopes, network, betas=betas)
        (mean, first, second), terms = stepped(mean, first, second, Draws.of_one(g, eps), o)
        slopes = slopes.after([float(term.sum()) for term in terms], LR)
        weights.grad = g
        adam.step()
        torch.testing.assert_close(mean, weights.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(first, adam.state[weights]["exp_avg"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(second, adam.state[weights]["exp_avg_sq"], rtol=1e-12, atol=1e-12)


def test_squares_that_the_noise_has_swollen_are_divided_by_q() -> None:
    g, eps = normal(2, DIM)
    zeros = torch.zeros(DIM, dtype=F64)
    o = options(FLAT, Network(1.0))
    (_, _, plain), _ = stepped(zeros, zeros, zeros, Draws.of_one(g, eps), o)
    (_, _, less), _ = stepped(zeros, zeros, zeros, Draws.of_one(g, eps), o._replace(squares=o.squares / 2.5))
    torch.testing.assert_close(less, plain / 2.5, rtol=1e-12, atol=0)


# -- the slope is a regression -----------------------------------------------------------------------------


@given(seed=st.integers(0, 10_000), steps=st.integers(1, 6))
@settings(max_examples=30)
def test_the_slope_is_the_least_squares_fit_of_the_gradients_to_their_draws(seed: int, steps: int) -> None:
    """(7): g - a^ = rho v^ d, each row weighted by 1/v^ and by the memory of its step."""
    mean, first, second = torch.zeros(3, DIM, dtype=F64)
    slopes, network, lines, values = FLAT, Network(1.0, 7.0), [], []
    for t in range(steps):
        g, eps = normal(2, DIM, seed=seed + 100 * t)
        o = options(slopes, network)
        d = width(None, second, o) * eps
        before = first / (1 - BETAS[0] ** t) if t else first
        (mean, first, second), terms = stepped(mean, first, second, Draws.of_one(g, eps), o)
        slopes = slopes.after([float(term.sum()) for term in terms], LR)
        v = second / (1 - BETAS[1] ** (t + 1))
        weight = MEMORY ** (steps - 1 - t) / v
        lines.append(weight.sqrt() * v * d)
        values.append(weight.sqrt() * (g - before))
    found = torch.linalg.lstsq(torch.cat(lines)[:, None], torch.cat(values)[:, None]).solution
    assert slopes.x / slopes.y == pytest.approx(float(found), rel=1e-9)


@given(seed=st.integers(0, 10_000), S=st.integers(1, 4))
@settings(max_examples=20)
def test_several_draws_are_their_mean(seed: int, S: int) -> None:
    mean, first = normal(2, DIM, seed=seed)
    second, g, eps = normal(DIM, seed=seed + 1).square(), *normal(2, S, DIM, seed=seed + 2)
    slopes = Slopes(1.0, 2.0, 3.0, 4.0, 0.5, 10.0)
    o = options(slopes, Network(0.5, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 0.3))
    draws = Draws(g.mean(0), (eps * g).mean(0), eps.mean(0), eps.square().mean(0))
    _, (x, y, z) = stepped(mean, first, second, draws, o)
    d, before = width(None, second, o) * eps, first / (1 - BETAS[0] ** 4)
    f = g.mean(0) + mean / (30 * 0.5) ** 2  # with the prior's part, N = temperature = 1
    v = (BETAS[1] * second + float(o.squares) * f**2) / (1 - BETAS[1] ** 5)
    torch.testing.assert_close(x, (d * (g - before)).mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(y, v * d.square().mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(z, x.square(), rtol=1e-12, atol=0)


def test_a_tensors_slope_is_shrunk_by_its_standard_error_towards_the_networks() -> None:
    """(9): a normal mean with a normal prior of relative width 1, and never below a tenth of the centre."""
    n = 1 / (1 - MEMORY)
    long = 10_000.0  # steps: the memory is full
    for x, y, z in ((12.0, 2.0, 5.0), (0.1, 2.0, 1e7), (300.0, 2.0, 1e-9)):
        error = math.sqrt(z / n) / y
        posterior = (x / y / error**2 + 40.0 / 40.0**2) / (1 / error**2 + 1 / 40.0**2)
        assert Slopes(x, y, z, long).rho(40.0) == pytest.approx(posterior, rel=1e-9)
    assert Slopes(-6.0, 2.0, 1e-9, long).rho(40.0) == LEAST_SHARE * 40.0
    assert Slopes().rho(40.0) == pytest.approx(40.0)


def test_the_networks_slope_is_shrunk_towards_a_usual_batch_and_is_at_least_one() -> None:
    n, steps = 1 / (1 - MEMORY), 10_000.0
    assert Network.start(1.0).slope() == USUAL
    x, y, z = 200.0, 2.0, 50.0
    error = math.sqrt(z / n) / y
    posterior = (x / y / error**2 + USUAL / USUAL**2) / (1 / error**2 + 1 / USUAL**2)
    assert Network(1.0, steps, x, y, z).slope() == pytest.approx(posterior)
    assert Network(1.0, steps, -x, y, 1e-9).slope() == 1.0


# -- fixed points ------------------------------------------------------------------------------------------


def at_the_optimum(P: Tensor, N: float, tau: float, scale: float) -> tuple[Tensor, Slopes, Network, float]:
    """Expected v, sums and network numbers where sigma^2 = tau/(P + 1/scale^2), and how large rho is then.

    P is N times the curvature. g = P d/N, so v = P^2 sigma^2/N^2, X = sum P sigma^2/N, Y = sum v sigma^2.
    """
    variance = tau / (P + scale**-2.0)
    v = P**2 * variance / N**2
    x, y = float((P * variance).sum()) / N, float((v * variance).sum())
    z = 3 * float((P * variance).square().sum()) / N**2
    steps = 1e6  # the memory is full, and so is v's
    slopes = Slopes(x, y, z, steps, scale, 1e6)
    xx = x * x + 2 * float((P * variance).square().sum()) / N**2
    return v, slopes, Network(tau, steps, x, y, z, xx, x, z, tau), x / y


@pytest.mark.parametrize(("N", "tau"), [(1.0, 1.0), (1000.0, 1.0), (50.0, 0.05)])
def test_the_exact_posterior_of_a_diagonal_gaussian_has_its_own_width(N: float, tau: float) -> None:
    P = normal(400, seed=3).exp()
    v, slopes, network, rho = at_the_optimum(P, N, tau, math.inf)
    assert rho == pytest.approx(N / tau)  # for one step of N = tau = 1, rho = 1
    sd = width(None, v, options(slopes, network, N))
    shrunk = slopes.rho(network.slope()) / rho
    assert shrunk == pytest.approx(1, rel=0.01)
    torch.testing.assert_close(sd, (tau / P / shrunk).sqrt(), rtol=1e-9, atol=0)
    assert network.inflation() == 1.0


def test_away_from_the_exact_width_the_next_one_is_nearer() -> None:
    """sigma -> k sigma makes v k^2 and rho k^-2 times as large, and the width of (1) is what it should be.

    v is slow and rho is quick, so that the width follows: rho v^ = P throughout.
    """
    P = normal(400, seed=3).exp()
    for k in (0.3, 3.0):
        v, slopes, network, _ = at_the_optimum(P, 1.0, k * k, math.inf)
        sd = width(None, v, options(slopes, network._replace(tau=1.0)))
        torch.testing.assert_close(sd, P**-0.5, rtol=0.01, atol=0)


def test_at_the_mean_of_the_posterior_the_expected_step_is_none() -> None:
    """Draws in pairs of opposite signs have a mean gradient of zero."""
    P, eps = normal(DIM, seed=3).exp(), normal(DIM, seed=4)
    v, slopes, network, _ = at_the_optimum(P, 1.0, 1.0, math.inf)
    o, zeros = options(slopes, network), torch.zeros(DIM, dtype=F64)
    d = width(None, v, o) * eps
    pair = Draws(0 * d, P * d * eps, 0 * d, eps.square())
    (mean, first, _), (x, _, _) = stepped(zeros, zeros, v, pair, o)
    assert not mean.any()
    assert not first.any()
    torch.testing.assert_close(x, P * d.square(), rtol=1e-12, atol=0)  # twice the cost of the draw


def test_without_gradients_the_width_is_the_priors() -> None:
    slopes = Slopes(scale=0.2, path=1e6, steps=50.0)
    sd = width(None, torch.zeros(1, dtype=F64), options(slopes, Network(0.25, 50.0)))
    assert float(sd) == pytest.approx(0.2 * 0.5)


def test_no_width_exceeds_a_tenth_of_the_path_that_the_rates_allow() -> None:
    zeros = torch.zeros(1, dtype=F64)
    assert float(width(None, zeros, options(FLAT, Network(1.0)))) == pytest.approx(0.1 * LR)
    far = FLAT._replace(steps=30.0, path=0.7)
    assert float(width(None, zeros, options(far, Network(1.0)))) == pytest.approx(0.07)
    still = FLAT._replace(steps=3.0, path=0.0)  # a warm-up from zero
    assert float(width(None, zeros, options(still, Network(1.0), lr=0.5))) == pytest.approx(0.05)
    assert float(width(None, zeros, options(FLAT, Network(1.0), lr=0.0))) > 0


@pytest.mark.parametrize("scale", [1e-24, 1e-18, 1.0, 1e56])
@pytest.mark.parametrize("tau", [1e-22, 1.0, 1e18])
@pytest.mark.parametrize("N", [1.0, 1e18])
def test_widths_are_positive_float32_numbers_at_the_ends_of_the_range(
    scale: float, tau: float, N: float
) -> None:
    for slopes in (Slopes(scale=scale), Slopes(1.0, 1.0, 1.0, 9.0, scale, 0.1)):
        o = options(slopes, Network(tau), N)
        o = ProximalOptions(*(value.float() for value in o))
        for second in (0.0, 1e-30, 1.0):
            sd = width(None, torch.tensor([second]), o)
            assert 0 < float(sd) < math.inf
            assert math.isfinite(float(0 * sd / sd))


# -- the temperature ---------------------------------------------------------------------------------------


def run(totals: list[tuple[float, float, float]], temperature: float, nats: float) -> list[Network]:
    path = [Network.start(temperature)]
    for row in totals:
        path.append(path[-1].after(row, temperature, nats))
    return path


def test_without_a_limit_the_temperature_rises_by_five_percent_a_step_and_then_stays() -> None:
    path = run([(1e6, 1.0, 1e12)] * 250, 3.0, math.inf)
    assert path[0].tau == START * 3.0
    needed = math.ceil(-math.log(START) / math.log(1 + RISE))
    for t in range(1, needed):
        assert path[t].tau == pytest.approx(path[0].tau * (1 + RISE) ** t)
    assert all(network.tau == 3.0 for network in path[needed:])


@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([1e-6, 1e-2, 1e3]),
    nats=st.sampled_from([1e-3, 0.1, 10.0, math.inf]),
)
@settings(max_examples=30)
def test_in_a_step_the_temperature_changes_by_so_much_at_most(seed: int, size: float, nats: float) -> None:
    rows = (size * normal(40, 3, seed=seed).exp()).tolist()
    path = run([(x - size, y, z) for x, y, z in rows], 1.0, nats)
    for old, new in itertools.pairwise(path):
        assert 1 - FALL - 1e-12 <= new.tau / old.tau <= 1 + RISE + 1e-12
        assert 0 < new.tau <= 1.0
        assert new.is_possible()


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_a_cost_in_proportion_to_the_temperature_is_held_at_its_limit(share: float) -> None:
    """x = 2 cost; the standard error is part of what is held."""
    nats, full, network = 0.1, 5.0, Network.start(1.0)
    for _ in range(1500):
        x = 2 * full * network.tau
        network = network.after((x, 1.0, (share * x) ** 2), 1.0, nats)
    assert network.cost + network.cost_error == pytest.approx(nats, rel=1e-3)
    assert network.cost == pytest.approx(full * network.tau, rel=1e-3)


def test_the_cost_and_its_error_are_those_of_the_mean_in_memory() -> None:
    rows = [(float(x), 1.0, float(x * x)) for x in 3 + normal(60, seed=2)]
    weights = torch.tensor([QUICK ** (59 - t) for t in range(60)], dtype=F64)
    weights /= weights.sum()
    x = torch.tensor([row[0] for row in rows], dtype=F64)
    found = run(rows, 1.0, 0.1)[-1]
    assert found.cost == pytest.approx(0.5 * float((weights * x).sum()))
    n = (1 - QUICK**60) / (1 - QUICK)
    assert found.cost_error == pytest.approx(0.5 * math.sqrt(float((weights * x * x).sum()) / n))


def test_numbers_that_no_run_has_are_not_possible() -> None:
    good = run([(1.0, 1.0, 1.0)] * 3, 1.0, 0.1)[-1]
    assert good.is_possible()
    for name in ("tau", "steps", "y", "z", "xx", "quick_z", "quick_tau"):
        assert not good._replace(**{name: -1.0}).is_possible()
    assert not good._replace(steps=2.5).is_possible()
    assert good._replace(x=-1.0, quick_x=-1.0).is_possible()


# -- Q -----------------------------------------------------------------------------------------------------


def inflation(rows: list[tuple[float, float]]) -> float:
    return run([(x, 1.0, z) for x, z in rows], 1.0, math.inf)[-1].inflation()


def test_q_is_one_without_cost_and_where_squares_explain_the_variance() -> None:
    noise = normal(4000, seed=1).tolist()
    assert inflation([(1e-9 * e, 1e-18) for e in noise]) == pytest.approx(1, abs=1e-6)
    assert inflation([(5.0 + e, 1.2 + 25.0) for e in noise]) == 1.0  # Var(sum x) < <sum x^2>


def test_q_rises_to_three_with_the_cost_where_the_variance_is_twice_the_squares() -> None:
    """Of a Hessian that is all off its diagonal: (10) with R at its bound."""
    noise = normal(4000, seed=1).tolist()
    found = inflation([(50.0 + 2 * e, 1.0) for e in noise])
    assert found == pytest.approx(MOST_SWOLLEN, rel=1e-3)
    cost = 0.002
    half = inflation([(2 * cost + 1e-4 * e, 1e-9) for e in noise])
    assert cost == HALF
    assert half == pytest.approx(1 + 0.5 * (MOST_SWOLLEN - 1), rel=0.01)


def test_the_variance_of_a_whole_hessian_is_twice_its_squares_and_of_a_diagonal_less() -> None:
    """Why R tells them apart: x = d (H d), E sum x = tr(H Sigma), and R -> 2 where many are coupled."""
    D, S = 30, 20_000
    eps = normal(S, D, seed=5)
    u = normal(D, seed=6)
    for H, low, high in ((torch.diag(u.abs()), 0.5, 0.8), (torch.outer(u, u) - torch.diag(u * u), 1.8, 2.2)):
        x = eps * (eps @ H)
        ratio = float(x.sum(1).var() / x.square().sum(1).mean())
        assert low < ratio < high


@pytest.mark.parametrize(
    ("weights", "N", "nats"),
    [(5, 1000, 0.003), (400, 1000, 0.004), (1000, 1000, 0.01), (10**6, 1000, 0.05)],
    ids=["well determined", "fewer weights than data", "as many", "many more"],
)
def test_what_the_noise_may_cost_grows_with_weights_per_datum(weights: int, N: int, nats: float) -> None:
    assert usual_nats(weights, N) == pytest.approx(nats)

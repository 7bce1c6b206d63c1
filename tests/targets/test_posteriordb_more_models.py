"""The further PosteriorDB models against their densities written plainly with scipy, one point at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from scipy.stats import cauchy, gamma, multivariate_normal, norm
from torch import Tensor

from bayescore.targets.base import Target
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.posterior_db.target import FURTHER

F64 = torch.float64


def synthetic(model: str) -> dict[str, Any]:
    """Data of the shape that the model takes."""
    rng = np.random.default_rng(0)
    n = 20
    if model == "logearn_interaction":
        return {
            "earn": np.exp(9 + rng.normal(size=n)),
            "height": rng.uniform(60, 75, n),
            "male": np.arange(n) % 2,
        }
    if model == "kidscore_interaction":
        return {
            "kid_score": 80 + rng.normal(size=n),
            "mom_hs": np.arange(n) % 2,
            "mom_iq": rng.uniform(80, 120, n),
        }
    if model == "mesquite":
        names = ("weight", "diam1", "diam2", "canopy_height", "total_height", "density", "group")
        return {name: rng.uniform(1, 5, n) for name in names}
    if model == "blr":
        return {"X": rng.normal(size=(n, 3)), "y": rng.normal(size=n)}
    if model == "garch11":
        return {"y": 5 + rng.normal(size=n), "sigma1": 0.5}
    if model == "gp_regr":
        return {"x": np.linspace(-10, 10, 7), "y": rng.normal(size=7)}
    return {"y": rng.normal(size=5, scale=10), "sigma": rng.uniform(9, 18, 5)}


def linear(columns: list[Any], y: Any, u: Any) -> float:
    design = np.column_stack([np.ones(len(y)), *columns])
    return norm(design @ u[:-1], np.exp(u[-1])).logpdf(y).sum() + u[-1]


def logearn(d: dict[str, Any], u: Any) -> float:
    return linear([d["height"], d["male"], d["height"] * d["male"]], np.log(d["earn"]), u)


def kidscore(d: dict[str, Any], u: Any) -> float:
    columns = [d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"]]
    return linear(columns, d["kid_score"], u) + cauchy(0, 2.5).logpdf(np.exp(u[-1]))


def mesquite(d: dict[str, Any], u: Any) -> float:
    names = ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    return linear([d[name] for name in names], d["weight"], u)


def blr(d: dict[str, Any], u: Any) -> float:
    sigma = np.exp(u[-1])
    priors = norm(0, 10).logpdf(u[:-1]).sum() + norm(0, 10).logpdf(sigma)
    return norm(d["X"] @ u[:-1], sigma).logpdf(d["y"]).sum() + priors + u[-1]


def hyper(u: Any) -> float:
    return norm(0, 5).logpdf(u[-2]) + cauchy(0, 5).logpdf(np.exp(u[-1])) + u[-1]


def centred(d: dict[str, Any], u: Any) -> float:
    effects = norm(u[-2], np.exp(u[-1])).logpdf(u[:-2]).sum()
    return norm(u[:-2], d["sigma"]).logpdf(d["y"]).sum() + effects + hyper(u)


def noncentred(d: dict[str, Any], u: Any) -> float:
    theta = u[-2] + np.exp(u[-1]) * u[:-2]
    return norm(theta, d["sigma"]).logpdf(d["y"]).sum() + norm().logpdf(u[:-2]).sum() + hyper(u)


def garch(d: dict[str, Any], u: Any) -> float:
    mu, alpha0, alpha1 = u[0], np.exp(u[1]), expit(u[2])
    room = 1 - alpha1
    beta1 = room * expit(u[3])
    h = [d["sigma1"] ** 2]
    for value in d["y"][:-1]:
        h.append(alpha0 + alpha1 * (value - mu) ** 2 + beta1 * h[-1])
    jacobian = np.log(alpha0) + np.log(alpha1 * room) + np.log(beta1 * (1 - beta1 / room))
    return norm(mu, np.sqrt(h)).logpdf(d["y"]).sum() + jacobian


def gp_regr(d: dict[str, Any], u: Any) -> float:
    rho, alpha, sigma = np.exp(u)
    x = d["x"]
    cov = alpha**2 * np.exp(-((x[:, None] - x) ** 2) / (2 * rho**2)) + sigma * np.eye(len(x))
    priors = gamma(25, scale=1 / 4).logpdf(rho) + norm(0, 2).logpdf(alpha) + norm(0, 1).logpdf(sigma)
    return multivariate_normal(np.zeros(len(x)), cov).logpdf(d["y"]) + priors + u.sum()


PLAIN: dict[str, Callable[[dict[str, Any], Any], float]] = {
    "blr": blr,
    "eight_schools_centered": centred,
    "eight_schools_noncentered": noncentred,
    "garch11": garch,
    "gp_regr": gp_regr,
    "kidscore_interaction": kidscore,
    "logearn_interaction": logearn,
    "mesquite": mesquite,
}


@pytest.fixture(params=sorted(FURTHER))
def case(request: pytest.FixtureRequest) -> tuple[str, ConstrainedModel]:
    return request.param, FURTHER[request.param].from_data(synthetic(request.param))


def points(dim: int, *lead: int) -> Tensor:
    return 0.7 * torch.randn(*lead, dim, generator=torch.Generator().manual_seed(0), dtype=F64)


def test_every_further_model_has_a_plain_density_here() -> None:
    assert set(PLAIN) == set(FURTHER)


def test_log_densities_are_those_of_the_statistical_model(case: tuple[str, ConstrainedModel]) -> None:
    name, model = case
    x = points(model.dim, 20)
    plain = torch.tensor([PLAIN[name](synthetic(name), u) for u in x.numpy()], dtype=F64)
    torch.testing.assert_close(model.log_prob(x), plain, rtol=1e-9, atol=1e-9)


def test_scores_are_the_gradients_of_the_log_density(case: tuple[str, ConstrainedModel]) -> None:
    _, model = case
    x = points(model.dim, 3, 4)
    value, expected = Target.log_prob_and_score(model, x)
    scale = expected.abs().amax(-1, keepdim=True)
    assert ((model.score(x) - expected).abs() / scale).max() < 1e-9
    torch.testing.assert_close(model.log_prob_and_score(x)[0], value)


def test_dropping_constants_moves_the_log_density_by_one_number(case: tuple[str, ConstrainedModel]) -> None:
    name, model = case
    short = FURTHER[name].from_data(synthetic(name), propto=True)
    x = points(model.dim, 10)
    gap = model.log_prob(x) - short.log_prob(x)
    torch.testing.assert_close(gap, gap[0].expand_as(gap), rtol=1e-8, atol=1e-8)


def test_constraining_and_back_gives_the_same_points(case: tuple[str, ConstrainedModel]) -> None:
    _, model = case
    x = points(model.dim, 10)
    torch.testing.assert_close(model.unconstrain(model.constrain(x)), x)


def test_garch_keeps_the_sum_of_its_weights_below_one() -> None:
    model = FURTHER["garch11"].from_data(synthetic("garch11"))
    values = model.constrain(3 * points(4, 50))
    assert (values["alpha1"] + values["beta1"] < 1).all()
    room = logit(float(values["beta1"][0] / (1 - values["alpha1"][0])))
    assert room == pytest.approx(float(3 * points(4, 50)[0, 3]))


def test_school_effects_determine_their_standardised_form() -> None:
    model = FURTHER["eight_schools_noncentered"].from_data(synthetic("eight_schools_noncentered"))
    x = points(model.dim, 6)
    values = model.constrain(x, everything=True)
    seen = {name: values[name] for name in ("theta", "mu", "tau")}
    torch.testing.assert_close(model.unconstrain(seen), x)

"""Models written in torch with constrained parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, Distribution, HalfCauchy, MultivariateNormal, Normal

from bayescore.targets.constraints import Interval, Ordered, Positive, Real, Simplex
from bayescore.targets.model import TorchModel
from bayescore.targets.propriety import improper_coordinates

Y = torch.tensor([1.2, 0.7, 2.9, -0.3], dtype=torch.float64)
CONCENTRATION = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
PARAMETERS = {"mu": Real(), "sigma": Positive(), "w": Simplex(3), "cuts": Ordered(2), "B": Real((2, 2))}


def log_density(mu: Tensor, sigma: Tensor, w: Tensor, cuts: Tensor, B: Tensor) -> Tensor:
    prior = (
        Normal(0, 10).log_prob(mu) + HalfCauchy(2.5).log_prob(sigma) + Dirichlet(CONCENTRATION).log_prob(w)
    )
    rest = (
        Normal(0, 1).log_prob(cuts).sum()
        + MultivariateNormal(torch.zeros_like(w[:2]), torch.eye(2).to(w)).log_prob(B).sum()
    )
    return prior + rest + Normal(mu, sigma).log_prob(Y).sum()


def generated(mu: Tensor, sigma: Tensor, rng: torch.Generator, **_: Tensor) -> dict[str, Tensor]:
    noise = torch.randn(len(Y), generator=rng, dtype=torch.float64)
    return {"variance": sigma**2, "log_lik": Normal(mu, sigma).log_prob(Y), "y_rep": mu + sigma * noise}


@pytest.fixture(scope="module")
def model() -> TorchModel:
    return TorchModel(PARAMETERS, log_density, generated=generated)


def points(*lead: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(*lead, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_coordinates_are_named_in_the_order_of_declaration(model: TorchModel) -> None:
    assert model.dim == 10
    assert model.names == [
        *["mu", "sigma", "w[1]", "w[2]", "cuts[1]", "cuts[2]"],
        *["B[1,1]", "B[1,2]", "B[2,1]", "B[2,2]"],
    ]
    assert model.constrained_names[:5] == ["mu", "sigma", "w[1]", "w[2]", "w[3]"]


def test_the_density_is_that_of_the_values_plus_the_log_jacobian(model: TorchModel) -> None:
    x = points(3, 2, dim=model.dim)
    values = model.constrain(x)
    one = log_density(**{name: value[1, 0] for name, value in values.items()})
    torch.testing.assert_close(model.log_prob(x)[1, 0], one + model.log_jacobian(x[1, 0]))


def test_the_density_of_the_unconstrained_point_integrates_to_one() -> None:
    model = TorchModel({"share": Interval(-1, 3)}, lambda share: Normal(1.0, 0.3).log_prob(share))
    grid = torch.linspace(-40, 40, 20_001, dtype=torch.float64).unsqueeze(-1)
    total = torch.trapezoid(model.log_prob(grid).exp(), grid.squeeze(-1))
    torch.testing.assert_close(total, torch.tensor(1.0, dtype=torch.float64), rtol=1e-6, atol=1e-6)


def test_written_for_one_draw_and_for_all_draws_is_the_same() -> None:
    one = TorchModel({"m": Real(2), "s": Positive()}, lambda m, s: Normal(m, s).log_prob(Y[:2]).sum() - s)
    many = TorchModel(
        {"m": Real(2), "s": Positive()},
        lambda m, s: Normal(m, s.unsqueeze(-1)).log_prob(Y[:2]).sum(-1) - s,
        batched=True,
    )
    x = points(4, 5, dim=3)
    torch.testing.assert_close(one.log_prob(x), many.log_prob(x))
    torch.testing.assert_close(one.score(x), many.score(x))
    torch.testing.assert_close(one.hessian_product(x, x.flip(-1)), many.hessian_product(x, x.flip(-1)))


def test_constrain_and_unconstrain_are_inverse(model: TorchModel) -> None:
    x = points(3, 4, dim=model.dim)
    values = model.constrain(x)
    assert {name: value.shape[2:] for name, value in values.items()} == {
        "mu": (),
        "sigma": (),
        "w": (3,),
        "cuts": (2,),
        "B": (2, 2),
    }
    torch.testing.assert_close(model.unconstrain(values), x)
    torch.testing.assert_close(model.unconstrain({**values, "mu": 0.5})[..., 1:], x[..., 1:])


def test_posterior_groups_hold_what_arviz_looks_for(model: TorchModel) -> None:
    draws = points(6, dim=model.dim)
    groups = model.to_posterior(draws, seed=3)
    assert set(groups["posterior"]) == {*PARAMETERS, "variance"}
    assert groups["log_likelihood"]["log_lik"].shape == (6, 4)
    torch.testing.assert_close(groups["posterior"]["variance"], groups["posterior"]["sigma"] ** 2)
    again = model.to_posterior(draws, seed=3)["posterior_predictive"]["y_rep"]
    other = model.to_posterior(draws, seed=4)["posterior_predictive"]["y_rep"]
    assert torch.equal(groups["posterior_predictive"]["y_rep"], again)
    assert not torch.equal(again, other)
    assert model.to_posterior(draws.unsqueeze(0))["posterior_predictive"]["y_rep"].shape == (1, 6, 4)


def test_global_settings_are_back_after_a_call(model: TorchModel) -> None:
    before = Distribution._validate_args, torch.get_default_dtype()
    model.log_prob(points(2, dim=model.dim))
    with pytest.raises(RuntimeError):
        TorchModel({"m": Real(2)}, lambda m: (m + Y).sum())
    assert (Distribution._validate_args, torch.get_default_dtype()) == before


def test_plain_numbers_in_distributions_have_the_precision_of_the_model() -> None:
    model = TorchModel({"m": Real()}, lambda m: Normal(0, 0.1).log_prob(m))
    exact = Normal(*torch.tensor([0.0, 0.1], dtype=torch.float64)).log_prob(
        torch.tensor(0.3, dtype=torch.float64)
    )
    assert model.log_prob(torch.tensor([0.3], dtype=torch.float64)) == exact


@pytest.mark.parametrize(
    ("fn", "kind", "words"),
    [
        (lambda p: p, TypeError, r"by name, \(m, s\); it takes \(p\)"),
        (lambda m, s: m * s, ValueError, r"the shape \(2,\): is a sum missing"),
        (lambda m, s: 1.0, TypeError, "returned float"),
        (lambda m, s: m.sum() if s > 0 else s, TypeError, "torch.where"),
        (lambda m, s: m.sum().float(), TypeError, "returned torch.float32; cast the data"),
        ("density", TypeError, "must be a function"),
    ],
)
def test_a_density_that_cannot_work_is_refused_where_it_is_written(
    fn, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        TorchModel({"m": Real(2), "s": Positive()}, fn)


def test_a_density_for_all_draws_must_return_one_number_each() -> None:
    with pytest.raises(ValueError, match=r"\(n,\) for n draws; it returned the shape \(2, 2\)"):
        TorchModel({"m": Real(2)}, lambda m: m, batched=True)


def test_an_error_inside_the_density_is_the_users_own() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        TorchModel({"m": Real(2)}, lambda m: (m + Y).sum())


def test_parameters_without_a_constraint_are_refused() -> None:
    with pytest.raises(TypeError, match=r"'m' needs a constraint such as Real\(\); got the class Real"):
        TorchModel({"m": Real}, lambda m: m)
    with pytest.raises(ValueError, match="at least one parameter"):
        TorchModel({}, lambda: Y.sum())


def test_values_that_do_not_fit_are_named(model: TorchModel) -> None:
    values = model.constrain(points(dim=model.dim))
    with pytest.raises(ValueError, match=r"'sigma': 1 values lie outside of Positive"):
        model.unconstrain({**values, "sigma": -1.0})
    del values["w"]
    with pytest.raises(ValueError, match="'w' is missing; the parameters are mu, sigma, w, cuts, B"):
        model.unconstrain(values)


def test_a_parameter_that_nothing_holds_is_found() -> None:
    model = TorchModel(
        {"free": Real(2), "held": Real(), "scale": Positive(), "share": Interval(0, 1)},
        lambda free, held, scale, share: Normal(0, 1).log_prob(held) + 0 * (free.sum() + scale + share),
    )
    assert improper_coordinates(model, points(20, dim=model.dim)) == ["free[1]", "free[2]", "scale"]

"""Models that somebody else compiled: the BridgeStan interface, with a stand-in for its model object."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import bayescore as bs
from bayescore.targets.constraints import Positive, Real
from bayescore.targets.model import TorchModel
from bayescore.targets.stan import Stan


def twin() -> TorchModel:
    parameters = {"mu": Real(), "sigma": Positive(), "M": Real((3, 2))}
    return TorchModel(
        parameters,
        lambda mu, sigma, M: Normal(1, 2).log_prob(mu) - sigma + Normal(0, 1).log_prob(M).sum(),
    )


class StandIn:
    """What bridgestan.StanModel offers, for twin(); draws with mu > 3 are rejected."""

    name = "stand-in"

    def __init__(self) -> None:
        self.twin = twin()
        self.constant = 5.0  # what propto drops

    def param_unc_num(self) -> int:
        return self.twin.dim

    def param_unc_names(self) -> list[str]:
        return ["mu", "sigma", "M.1.1", "M.2.1", "M.1.2", "M.2.2", "M.1.3", "M.2.3"]

    def param_names(self, *, include_tp: bool = False, include_gq: bool = False) -> list[str]:
        return [*self.param_unc_names(), *["precision"] * include_tp, *["y_rep.1", "y_rep.2"] * include_gq]

    def _check(self, theta_unc: np.ndarray) -> torch.Tensor:
        assert theta_unc.flags.c_contiguous
        assert theta_unc.dtype == np.float64
        if theta_unc[0] > 3:
            raise RuntimeError("mu is too large")
        return torch.as_tensor(theta_unc)

    def log_density(self, theta_unc: np.ndarray, *, propto: bool = True, jacobian: bool = True) -> float:
        x = self._check(theta_unc)
        value = self.twin.log_prob(x) - (0 if jacobian else self.twin.log_jacobian(x))
        return float(value) - self.constant * propto

    def log_density_gradient(
        self, theta_unc: np.ndarray, *, propto: bool = True, jacobian: bool = True
    ) -> tuple[float, np.ndarray]:
        value = self.log_density(theta_unc, propto=propto, jacobian=jacobian)
        return value, self.twin.score(torch.as_tensor(theta_unc)).numpy()

    def param_constrain(
        self,
        theta_unc: np.ndarray,
        *,
        include_tp: bool = False,
        include_gq: bool = False,
        rng: np.random.Generator | None = None,
    ) -> np.ndarray:
        x = self._check(theta_unc).clone()
        x[1] = x[1].exp()
        parts = [x.numpy(), [float(x[1]) ** -2] * include_tp]
        if include_gq:
            assert rng is not None
            parts.append(rng.normal(float(x[0]), float(x[1]), 2))
        return np.concatenate(parts)

    def param_unconstrain(self, theta: np.ndarray) -> np.ndarray:
        if theta[1] <= 0:
            raise RuntimeError("sigma must be positive")
        out = theta.copy()
        out[1] = np.log(out[1])
        return out

    def new_rng(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)


@pytest.fixture
def target() -> Stan:
    return Stan.from_bridgestan(StandIn())


def points(*lead: int) -> torch.Tensor:
    return torch.randn(*lead, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_values_and_scores_are_those_of_the_model(target: Stan) -> None:
    x = points(2, 5)
    torch.testing.assert_close(target.log_prob(x), twin().log_prob(x))
    torch.testing.assert_close(target.score(x), twin().score(x))
    torch.testing.assert_close(
        target.hessian_product(x, x), twin().hessian_product(x, x), rtol=1e-6, atol=1e-6
    )
    short = Stan.from_bridgestan(StandIn(), propto=True, jacobian=False)
    torch.testing.assert_close(short.log_prob(x), twin().log_prob(x) - twin().log_jacobian(x) - 5)


def test_log_prob_can_be_differentiated_through(target: Stan) -> None:
    x = points(3).requires_grad_()
    (grad,) = torch.autograd.grad(target.log_prob(x).sum(), x)
    torch.testing.assert_close(grad, twin().score(x.detach()))
    torch.testing.assert_close(target.score(x), grad)


def test_rejected_draws_stay_alone(target: Stan) -> None:
    x = points(4)
    x[1, 0] = 4.0
    value, score = target.log_prob_and_score(x)
    assert value.isfinite().tolist() == [True, False, True, True]
    assert score.isfinite().all(-1).tolist() == [True, False, True, True]
    assert target.last_rejection == "mu is too large"


def test_variables_have_names_and_shapes(target: Stan) -> None:
    x = points(3, 4)
    assert target.names[2:5] == ["M[1,1]", "M[2,1]", "M[1,2]"]
    groups = target.to_posterior(x, seed=2)
    assert set(groups["posterior"]) == {"mu", "sigma", "M", "precision"}
    assert groups["posterior_predictive"]["y_rep"].shape == (3, 4, 2)
    torch.testing.assert_close(groups["posterior"]["M"], twin().constrain(x)["M"].mT)
    torch.testing.assert_close(target.unconstrain(target.constrain(x)), x)
    with pytest.raises(ValueError, match="outside the support of stand-in: sigma must be positive"):
        target.unconstrain({**target.constrain(x), "sigma": -1.0})


def test_a_fit_runs_on_it(target: Stan) -> None:
    start = bs.families.FullGaussian.init(8)
    fit = bs.fit(target, start, bs.methods.BaM(), steps=10, metrics={}, progress=False)
    assert fit.family.mean.norm() > 0


def test_it_cannot_be_pickled_and_says_so(target: Stan) -> None:
    with pytest.raises(TypeError, match="from BridgeStan cannot be pickled; make it in each process"):
        pickle.dumps(target)


def test_another_object_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(TypeError, match=r"a dict arrived, which lacks param_unc_num, .*log_density"):
        Stan.from_bridgestan({})


def test_a_model_without_parameters_is_refused() -> None:
    class Empty(StandIn):
        def param_unc_num(self) -> int:
            return 0

    with pytest.raises(ValueError, match="stand-in has no parameters, so there is nothing to infer"):
        Stan.from_bridgestan(Empty())


def test_keywords_reach_the_model() -> None:
    seen: list[dict[str, Any]] = []

    class Listener(StandIn):
        def log_density_gradient(self, theta_unc: np.ndarray, **options: Any) -> tuple[float, np.ndarray]:
            seen.append(options)
            return super().log_density_gradient(theta_unc, **options)

    Stan.from_bridgestan(Listener(), propto=True, jacobian=False).score(points(1))
    assert seen == [{"propto": True, "jacobian": False}]

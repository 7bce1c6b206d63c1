"""Any family over all weights: the optimizer's steps are the functional method's."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayescore as bs
from bayescore.families import DiagonalGaussian, Family, FullGaussian, LowRankGaussian, PlanarFlow, ZukoFlow
from bayescore.methods import ADVI, GSM, Method, ProximalDescent
from bayescore.optim import FamilyOptimizer
from bayescore.posteriors.family import central_point
from bayescore.rng import Streams
from bayescore.targets import LogDensity
from bayescore.targets.counting import CountingOracle
from toy_problem import loader, network

FAMILIES: dict[str, Any] = {
    "planar": lambda D, mean: PlanarFlow.init(D, layers=2, mean=mean, scale=0.1),
    "bare planar": lambda D, mean: PlanarFlow.init(D, affine=False),
    "zuko": lambda D, mean: ZukoFlow.init(D, transforms=2, hidden=(8,), mean=mean, scale=0.1),
    "full": lambda D, mean: FullGaussian.init(D, mean=mean, scale=0.1),
    "low-rank": lambda D, mean: LowRankGaussian.init(D, 3, mean=mean, scale=0.1),
    "diagonal": lambda D, mean: DiagonalGaussian.init(D, mean=mean, scale=0.1),
}
N, TAU, PRIOR = 20, 0.5, 2.0


def start(name: str, model: nn.Module) -> Family:
    weights = nn.utils.parameters_to_vector(model.parameters()).detach().double()
    family: Family = FAMILIES[name](len(weights), weights)
    return family


def line() -> tuple[nn.Linear, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(N, 3, generator=rng, dtype=torch.float64)
    y = torch.randn(N, 1, generator=rng, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 1).double(), x, y


def closure_of(model: nn.Module, x: Tensor, y: Tensor) -> Any:
    def closure() -> Tensor:
        loss: Tensor = 0.5 * (model(x) - y).square().mean()
        loss.backward()
        return loss

    return closure


@pytest.mark.parametrize("method", [ProximalDescent(inner_steps=3, lr=0.01, draws=2), ADVI(lr=0.01)])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_on_all_data_is_the_functional_step_on_the_posterior(name: str, method: Method) -> None:
    model, x, y = line()
    family, steps = start(name, model), 5
    options = {"steps": steps, "prior_sd": PRIOR, "temperature": TAU, "seed": 4}
    optimizer = FamilyOptimizer(model.parameters(), N, family, method, **options)
    for _ in range(3):
        optimizer.step(closure_of(model, x, y))

    def log_posterior(theta: Tensor) -> Tensor:
        error = theta[:, :3] @ x.T + theta[:, 3:] - y.T
        return -0.5 * error.square().sum(-1) / TAU - 0.5 * theta.square().sum(-1) / PRIOR**2

    streams = Streams([4])
    oracle = CountingOracle(LogDensity(log_posterior, 4), streams)
    density = family.in_form(method.form)
    state = method.init(type(density).stack([density]), steps)
    constant: Any = type(method)(**{**method.config(), "schedule": "constant"})
    with torch.no_grad():
        for _ in range(3):
            state, _ = constant.step(state, oracle, streams)
    for key, value in state.family[0].parameters().items():
        torch.testing.assert_close(optimizer.family.parameters()[key], value, rtol=1e-9, atol=1e-12)


def test_a_gaussian_comes_to_the_exact_posterior_of_a_linear_model() -> None:
    model, x, y = line()
    family = DiagonalGaussian.init(4, scale=0.3)
    optimizer = FamilyOptimizer(model.parameters(), N, family, ADVI(lr=0.03, draws=4), prior_sd=PRIOR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 600, eta_min=1e-5)
    for _ in range(600):
        optimizer.step(closure_of(model, x, y))
        schedule.step()
    design = torch.cat([x, torch.ones(N, 1, dtype=torch.float64)], 1)
    precision = design.T @ design + torch.eye(4, dtype=torch.float64) / PRIOR**2
    mean = torch.linalg.solve(precision, design.T @ y).squeeze(1)
    torch.testing.assert_close(central_point(optimizer.family), mean, atol=0.03, rtol=0)
    torch.testing.assert_close(optimizer.family.sd, precision.diagonal().rsqrt(), atol=0.02, rtol=0.05)


def test_between_steps_the_module_holds_the_centre() -> None:
    model, x, y = line()
    optimizer = FamilyOptimizer(model.parameters(), N, start("planar", model), ADVI())
    optimizer.step(closure_of(model, x, y))
    held = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(held, central_point(optimizer.family))


@pytest.mark.parametrize("method", ["descent", "advi"])
@pytest.mark.parametrize("name", ["planar", "zuko", "low-rank"])
def test_fit_trains_any_family_and_its_file_predicts_the_same(name: str, method: str, tmp_path: Path) -> None:
    model = network()
    fit = bs.nn.fit(
        model, loader(128, 0), method=method, family=start(name, model), epochs=3,
        validation=loader(64, 1), lr=0.01, temperature=0.1,
    )  # fmt: skip
    assert fit.history[-1]["loss"] < fit.history[0]["loss"]
    assert isinstance(fit.posterior, bs.nn.FamilyPosterior)
    fit.posterior.save(tmp_path / "flow.safetensors")
    loaded = bs.nn.Posterior.load(tmp_path / "flow.safetensors", network(seed=3))
    x = torch.randn(10, 2)
    torch.testing.assert_close(loaded.predict(x, draws=5).probs, fit.predict(x, draws=5).probs)


def test_a_family_over_the_last_layer_leaves_the_rest_to_adam() -> None:
    model = network()
    before = model[0].weight.detach().clone()
    q = PlanarFlow.init(34, scale=0.1)
    fit = bs.nn.fit(model, loader(64, 0), method="advi", family=q, bayesian="last", epochs=1)
    assert isinstance(fit.posterior, bs.nn.FamilyPosterior)
    assert fit.posterior.names == ["3.weight", "3.bias"]
    assert not torch.equal(model[0].weight, before)


def test_a_run_continues_from_its_checkpoint_bitwise(tmp_path: Path) -> None:
    def run(epochs: int, file: str) -> Any:
        model = network()
        return bs.nn.fit(
            model, loader(64, 0), method="descent", family=start("planar", model), epochs=epochs,
            checkpoint=tmp_path / file, alpha=0.5, validation=loader(32, 1),
        )  # fmt: skip

    whole = run(3, "whole")

    class Stopped(Exception):
        pass

    count = 0
    step = FamilyOptimizer.step

    def stopping(self: Any, closure: Any) -> Any:
        nonlocal count
        count += 1
        if count > 4:
            raise Stopped
        return step(self, closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FamilyOptimizer, "step", stopping)
        with pytest.raises(Stopped):
            run(3, "cut")
    again = run(3, "cut")
    assert again.history[-1]["loss"] == whole.history[-1]["loss"]
    for key, value in whole.posterior.family.parameters().items():
        assert torch.equal(again.posterior.family.parameters()[key], value)


def test_a_state_dict_of_another_family_is_refused() -> None:
    model, x, y = line()
    one = FamilyOptimizer(model.parameters(), N, start("planar", model), ADVI())
    one.step(closure_of(model, x, y))
    saved = copy.deepcopy(one.state_dict())
    other = FamilyOptimizer(model.parameters(), N, start("diagonal", model), ADVI())
    with pytest.raises(ValueError, match="another family"):
        other.load_state_dict(saved)
    with pytest.raises(ValueError, match="made by the method 'advi'"):
        FamilyOptimizer(model.parameters(), N, start("planar", model), ProximalDescent()).load_state_dict(
            saved
        )
    saved["tensors"]["family.u"][..., 0] = math.nan
    with pytest.raises(ValueError, match=r"family\.u is not finite"):
        one.load_state_dict(saved)
    with pytest.raises(ValueError, match="not a state dict of a FamilyOptimizer"):
        one.load_state_dict({})


def test_scores_that_are_not_finite_are_left_out_and_then_end_the_run() -> None:
    model, x, y = line()
    optimizer = FamilyOptimizer(model.parameters(), N, start("planar", model), ADVI(), max_skips=3)
    before = optimizer.family.flat()
    optimizer.step(closure_of(model, x, y * math.inf))
    assert torch.equal(optimizer.family.flat(), before)
    assert "1 left out" in optimizer.status
    optimizer.step(closure_of(model, x, y * math.inf))
    with pytest.raises(FloatingPointError, match="3 steps in a row"):
        optimizer.step(closure_of(model, x, y * math.inf))


def test_mistakes_are_refused_with_the_remedy() -> None:
    model, _, _ = line()
    weights = list(model.parameters())
    with pytest.raises(ValueError, match="one density on R\\^4"):
        FamilyOptimizer(weights, N, PlanarFlow.init(5), ADVI())
    with pytest.raises(TypeError, match="GSM serves no mini-batches"):
        FamilyOptimizer(weights, N, FullGaussian.init(4), GSM())
    with pytest.raises(ValueError, match="one group of parameters"):
        FamilyOptimizer([{"params": [p]} for p in weights], N, PlanarFlow.init(4), ADVI())
    with pytest.raises(TypeError, match="needs a closure"):
        FamilyOptimizer(weights, N, PlanarFlow.init(4), ADVI()).step()
    with pytest.raises(ValueError, match="not those of the model"):
        FamilyOptimizer(weights, N, PlanarFlow.init(4), ADVI()).posterior(nn.Linear(3, 1))
    net = network()
    with pytest.raises(ValueError, match="descent and advi"):
        bs.nn.fit(net, loader(32, 0), method="plain", family=PlanarFlow.init(4))
    with pytest.raises(TypeError, match="a density on the weights"):
        bs.nn.fit(net, loader(32, 0), method="advi", family="planar")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no option of ADVI with a family called 'inner_step'"):
        bs.nn.fit(net, loader(32, 0), method="advi", family=start("planar", net), inner_step=3)
    with pytest.raises(ValueError, match="dimensions and the network"):
        bs.nn.FamilyPosterior(net, PlanarFlow.init(4))


def test_a_flow_around_a_module_of_the_users_predicts_but_is_not_saved(tmp_path: Path) -> None:
    import zuko

    with torch.random.fork_rng():
        torch.manual_seed(0)
        q = ZukoFlow(zuko.flows.NICE(sum(p.numel() for p in network().parameters()), hidden_features=(4,)))
    posterior = bs.nn.FamilyPosterior(network(), q)
    assert posterior.predict(torch.ones(3, 2), draws=2).probs.shape == (3, 2)
    with pytest.raises(TypeError, match=r"make it with ZukoFlow\.init"):
        posterior.save(tmp_path / "net.safetensors")


def test_a_file_whose_centre_is_another_is_refused(tmp_path: Path) -> None:
    from bayescore.posteriors.storage import PosteriorFile

    posterior = bs.nn.FamilyPosterior(network(), start("planar", network()))
    header, tensors = posterior.pack()
    tensors["random.centre.0.weight"] = tensors["random.centre.0.weight"] + 1
    PosteriorFile(tmp_path / "net.safetensors", header, tensors).write()
    with pytest.raises(ValueError, match="not that of its density"):
        bs.nn.Posterior.load(tmp_path / "net.safetensors", network())

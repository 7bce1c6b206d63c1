"""What users do by mistake, or on purpose: nothing is lost, and nothing goes wrong in silence."""

from __future__ import annotations

import copy
import sys
from types import ModuleType

import pytest
import torch
from small_networks import OPTIMIZERS
from torch import Tensor, nn
from torch.nn import functional as F

from bayescore.optim import SGLD, PairedBaM, ProximalScore
from bayescore.optim.base import BayesianOptimizer

X = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
Y = (X.square().sum(1) > 1.4).long()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


def steps(opt: BayesianOptimizer, model: nn.Module, count: int, scale: float = 1.0) -> None:
    for _ in range(count):
        for _ in range(opt.least_draws):
            with opt.sample():
                (scale * F.cross_entropy(model(X), Y)).backward()
        opt.step()
        opt.zero_grad()


@pytest.mark.parametrize("rate", [0.0, 1e-40])
@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_rate_of_zero_leaves_the_mean_where_it_is(shell: str, rate: float) -> None:
    model = network()
    opt = OPTIMIZERS[shell](model.parameters(), 64)
    torch.optim.lr_scheduler.LambdaLR(opt, lambda _: rate)  # a warm-up starts there, a cosine ends there
    before = copy.deepcopy(model.state_dict())
    steps(opt, model, 3)
    for name, p in model.state_dict().items():
        torch.testing.assert_close(p, before[name], rtol=0, atol=1e-6)


def test_parameters_frozen_after_training_keep_their_posterior() -> None:
    model = network()
    opt = ProximalScore(model.parameters(), 64)
    steps(opt, model, 3)
    free = opt.posterior(model)
    model[0].requires_grad_(False)
    frozen = opt.posterior(model)
    assert frozen.names == free.names
    assert torch.equal(frozen.predict(X[:5]).probs, free.predict(X[:5]).probs)


def test_a_chain_keeps_weights_that_stand_still_for_a_while() -> None:
    model = network()
    opt = SGLD(model.parameters(), 64, burn_in=0, thin=1)
    model[0].requires_grad_(False)
    first = model[0].weight.detach().clone()
    steps(opt, model, 3)
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    last = model[2].weight.detach().clone()
    steps(opt, model, 2)
    path = opt.posterior(model).path
    assert torch.equal(path["0.weight"][:3], first.expand(3, -1, -1))
    assert not torch.equal(path["0.weight"][3], first)
    assert torch.equal(path["2.weight"][2:], last.expand(3, -1, -1))
    other = SGLD(model.parameters(), 64)
    other.load_state_dict(opt.state_dict())
    assert torch.equal(other.posterior(model).path["0.weight"], path["0.weight"])


def test_weights_in_new_memory_become_the_mean() -> None:
    model = network()
    opt = ProximalScore(model.parameters(), 64)
    steps(opt, model, 2)
    zero = torch.zeros(sum(p.numel() for p in model.parameters()))
    nn.utils.vector_to_parameters(zero, model.parameters())
    steps(opt, model, 1)
    assert max(float(p.detach().abs().max()) for p in model.parameters()) < 0.1


def test_an_exception_in_a_closure_drops_the_draws_before_it() -> None:
    model = network()
    opt = PairedBaM(model.parameters(), 64)
    calls = 0

    def closure() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ValueError("bad batch")
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    with pytest.raises(ValueError, match="bad batch"):
        opt.step(closure)
    opt.state_dict()
    opt.step(closure)
    assert opt.param_groups[0]["last_draws"] == 2


def test_prior_means_of_another_model_are_refused() -> None:
    model = network()
    wrapped = {f"module.{name}": p.detach() for name, p in model.named_parameters()}
    with pytest.raises(ValueError, match=r"names none of the parameters.*'module\.0\.weight'"):
        ProximalScore(model.named_parameters(), 64, prior_mean=wrapped)
    body = {"0.weight": model[0].weight.detach(), "running_mean": torch.zeros(3)}
    groups = [{"params": model[0].named_parameters("0")}, {"params": model[2].named_parameters("2")}]
    ProximalScore(groups, 64, prior_mean=body)  # the head is centred at zero


@pytest.mark.parametrize("slip", ["2.wieght", "2.weigth", "2.Weight", "2.weights"])
def test_a_misspelt_prior_mean_is_warned_about(slip: str) -> None:
    model = network()
    given = {name: p.detach() for name, p in model.named_parameters()}
    given[slip] = given.pop("2.weight")
    with pytest.warns(UserWarning, match=rf"prior_mean has '{slip}'.* lacks '2\.weight'"):
        ProximalScore(model.named_parameters(), 64, prior_mean=given)


def test_prior_means_may_lack_parameters_and_name_others_without_a_warning() -> None:
    square = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4))
    saved = {name: value.detach() for name, value in square.state_dict().items()}
    ProximalScore(square.named_parameters(), 64, prior_mean=saved)  # with buffers
    body = {name: value for name, value in saved.items() if not name.startswith("3.")}
    ProximalScore(square.named_parameters(), 64, prior_mean=body)  # a head centred at zero
    ProximalScore(
        [*square.named_parameters()][4:], 64, prior_mean=body
    )  # and the first layers left as they are
    other = {
        **body,
        "3.fc.weight": torch.zeros(4, 4),
        "4.weight": torch.zeros(4, 4),
        "3.wieght": torch.ones(9, 4),
    }
    ProximalScore(square.named_parameters(), 64, prior_mean=other)  # other heads


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Embedding(5, 2, sparse=True)
    opt = ProximalScore(model.parameters(), 64)
    with pytest.raises(TypeError, match="sparse"), opt.sample():
        model(torch.tensor([1, 2])).square().mean().backward()


@pytest.mark.parametrize("shell", OPTIMIZERS)
def test_a_parameter_without_elements_is_no_obstacle(shell: str) -> None:
    model = network()
    model.register_parameter("nothing", nn.Parameter(torch.zeros(0)))
    opt = OPTIMIZERS[shell](model.parameters(), 64)
    steps(opt, model, 2)
    assert "not finite" not in opt.status


@pytest.mark.parametrize("shell", ["proximal", "advi"])
def test_a_gradient_whose_square_overflows_is_left_out(shell: str) -> None:
    model = network()
    opt = OPTIMIZERS[shell](model.parameters(), 64)
    with pytest.warns(RuntimeWarning, match="not finite"):
        steps(opt, model, 1, scale=1e25)
    steps(opt, model, 1)
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_posterior_taken_in_inference_mode_does_not_stop_training() -> None:
    model = network()
    opt = ProximalScore(model.parameters(), 64)
    with torch.inference_mode():
        opt.posterior(model).predict(X)
    steps(opt, model, 2)


def test_bam_compares_no_gradient_with_that_of_another_noise() -> None:
    """A tensor that is used in every second step only: nothing can be learned about its sd."""
    a, b = (nn.Parameter(torch.zeros(50)) for _ in range(2))
    opt = PairedBaM([a, b], 1000, init_sd=0.03, prior_sd=10.0, damping=10.0)
    for t in range(400):
        for _ in range(2):
            with opt.sample():
                (b.square().sum() + (a.square().sum() if t % 2 else 0.0)).backward()
        opt.step()
        opt.zero_grad()
    assert float(opt.state[a]["sd"].max()) < 0.031
    assert "precision learned" not in opt.status


def test_prior_means_of_frozen_tensors_outlive_a_checkpoint() -> None:
    model = network()
    model[2].requires_grad_(False)
    given = {name: torch.full_like(p, 0.5) for name, p in model.named_parameters()}
    opt = ProximalScore(model.named_parameters(), 64, prior_mean=given)
    steps(opt, model, 1)
    saved = copy.deepcopy(opt.state_dict())
    model[2].requires_grad_(True)
    steps(opt, model, 1)
    assert torch.equal(opt.state[model[2].weight]["prior_mean"], given["2.weight"])
    other = network()
    again = ProximalScore(other.named_parameters(), 64, prior_mean=given)
    again.load_state_dict(saved)
    steps(again, other, 1)
    assert torch.equal(again.state[other[2].weight]["prior_mean"], given["2.weight"])
    lost = ProximalScore(network().named_parameters(), 64)
    lost.load_state_dict(saved)
    with pytest.raises(ValueError, match="frozen when it was written"):
        lost.state_dict()


@pytest.mark.parametrize(
    ("shell", "options"),
    [("proximal", {"lr": 1.0, "prior_scale": 1e18}), ("calibrated", {"init_sd": 0.1})],
)
def test_the_step_uses_the_noise_of_the_draw_when_a_small_tensor_has_no_gradient(
    shell: str, options: dict[str, float]
) -> None:
    """Small tensors lie in a row that is long enough for counter-based noise, in a network of 560,000."""
    sizes = (40_000, 40_000, 40_000, 40_000, 400_000)
    weights = [nn.Parameter(torch.zeros(size)) for size in sizes]
    opt = OPTIMIZERS[shell](weights, 1000, compiled=False, **options)
    drawn = []
    with opt.sample():
        drawn = [(p.detach() / 0.1).clone() for p in weights]
        sum((p.square().sum() for i, p in enumerate(weights) if i != 1), torch.zeros(())).backward()
    reached = [m for m in opt._members() if m.weight.grad is not None]
    for bucket in opt._gathered(reached):
        if bucket.is_large:
            continue
        eps = opt.noise(bucket, 0)
        assert isinstance(eps, Tensor)
        for member, part in zip(bucket.members, bucket.split(eps), strict=True):
            torch.testing.assert_close(part, drawn[member.number], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shell", ["calibrated", "advi", "descent"])
def test_a_tensor_that_comes_late_is_measured_from_its_own_first_step(shell: str) -> None:
    """Its curvature estimate, all noise here, must not be trusted as that of a tensor of many steps."""
    early, late = (nn.Parameter(torch.zeros(100)) for _ in range(2))
    opt = OPTIMIZERS[shell]([early, late], 10**6, init_sd=1e-3, temperature=1e-3)
    for t in range(60):
        with opt.sample():
            noise = torch.randn(200, generator=torch.Generator().manual_seed(t))
            loss = (noise[:100] * early).sum() + 0.5 * early.square().sum()
            if t >= 50:
                loss = loss + (noise[100:] * late).sum() + 0.5 * late.square().sum()
            loss.backward()
        opt.step()
        opt.zero_grad()
        if t == 49:
            assert float(opt.state[late]["statistics"][3]) == 0
            assert torch.equal(opt.state[late]["sd"], torch.full((100,), 1e-3))
        if t == 50 and shell == "calibrated":
            assert float((opt.state[late]["sd"] / 1e-3 - 1).abs().max()) < 0.01
    assert float(opt.state[late]["statistics"][3]) == 10
    assert float(opt.state[early]["statistics"][3]) == 60
    assert "not learned" in opt.status


@pytest.mark.parametrize("stage", [2, 3])
def test_a_module_that_deepspeed_has_partitioned_is_refused(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    model = torch.nn.Linear(3, 2)
    opt = ProximalScore(model.parameters(), 50)
    if stage == 3:  # the module's own weights, marked and emptied between their uses
        for number, p in enumerate(model.parameters()):
            p.ds_id, p.data = number, torch.empty(0)  # type: ignore[attr-defined]
    else:  # a flat copy of all of them in their place
        opt.param_groups[0]["params"] = [torch.zeros(8, requires_grad=True)]
    for step in (opt.step, lambda: opt.sample().__enter__()):
        with pytest.raises(TypeError, match=r"weights are whole .* or DTensors .*DeepSpeed"):
            step()
    if stage == 3:
        with pytest.raises(TypeError, match="DeepSpeed"):
            ProximalScore(model.parameters(), 50)

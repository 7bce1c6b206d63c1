"""Every method of `bench step` makes a step, and the authors' ADVI has the gradient of its objective."""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest
import torch
from torch.nn.functional import cross_entropy

from bayescore_lab.bench import networks
from bayescore_lab.bench.choices import METHODS, NETWORKS, SCALING_METHODS
from bayescore_lab.bench.networks import Workload, make_network, network
from bayescore_lab.bench.step_worker import StepServer, failure
from bayescore_lab.bench.steppers import KAPPA, AuthorsADVI
from bayescore_lab.bench.timing import PHASES, StepClock


@pytest.mark.parametrize("name", [*METHODS, *SCALING_METHODS])
def test_every_method_makes_a_step_or_says_why_not(name):
    entry = METHODS.get(name) or SCALING_METHODS[name]
    if entry.missing:
        pytest.skip(entry.missing)
    server = StepServer()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn on import
        built = server.answer(
            {"do": "build", "net": "mlp-small", "method": name, "batch": 4, "threads": None, "device": "cpu"}
        )
        answer = server.answer({"do": "turn", "steps": 2}) if "error" not in built else built
    if "error" in answer:
        assert answer["error"].startswith("not available"), answer
        return
    assert built["weights"] == 47_710
    assert built["baseline"] > 0
    for i, seconds in enumerate(answer["seconds"]):
        spent = [answer["phases"][phase][i] for phase in PHASES]
        assert min(spent) >= 0
        assert 0 < sum(spent) <= seconds


def test_a_turn_before_anything_was_built_is_an_answer_too():
    assert "nothing has been built" in StepServer().answer({"do": "turn", "steps": 1})["error"]


def test_errors_are_short_and_memory_is_recognised():
    assert failure(RuntimeError("[enforce] DefaultCPUAllocator: can't allocate memory")).startswith(
        "out of memory"
    )
    assert failure(TypeError("unexpected keyword argument 'update_in_backward'")).startswith("not available")
    assert failure(ValueError("a\n  b")) == "ValueError: a b"
    assert len(failure(ValueError("x" * 1000))) < 400


def test_the_authors_gradient_is_that_of_their_objective():
    work = Workload(network("mlp-small"), 4)
    stepper = AuthorsADVI(work)
    for m in stepper.mean.parameters():
        m.data.add_(0.01)  # away from the prior's mean, so that the KL has a gradient
    found = {}

    def remember():
        found["m"] = [p.grad.clone() for p in stepper.mean.parameters()]
        found["s"] = [p.grad.clone() for p in stepper.sd.parameters()]

    stepper.optimizer.step = remember
    stepper.step(StepClock())
    theta = [p.detach().clone() for p in work.model.parameters()]
    m, s = (
        [p.detach().clone().requires_grad_() for p in net.parameters()] for net in (stepper.mean, stepper.sd)
    )
    eps = [((t - a) / b).detach() for t, a, b in zip(theta, m, s, strict=True)]
    names = [name for name, _ in work.model.named_parameters()]
    drawn = {n: a + b * e for n, a, b, e in zip(names, m, s, eps, strict=True)}
    loss = cross_entropy(torch.func.functional_call(work.model, drawn, (work.x,)), work.y)
    prior = [p.detach() for p in stepper.prior.parameters()]
    kl = sum((((a - p) ** 2 + b**2 - 1) / 2 - b.log()).sum() for a, b, p in zip(m, s, prior, strict=True))
    (loss + KAPPA / work.num_data * kl).backward()
    for ours, exact in zip(found["m"] + found["s"], m + s, strict=True):
        torch.testing.assert_close(ours, exact.grad, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(stepper.kl, kl.detach())


def test_named_networks_have_the_sizes_that_they_are_known_for():
    assert sum(p.numel() for p in make_network(network("mlp-small")).parameters()) <= 50_000
    assert sum(p.numel() for p in make_network(network("mlp-tiny")).parameters()) == 4_110
    assert sum(p.numel() for p in make_network(network("mlp-middle")).parameters()) == 269_322
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in make_network(NETWORKS[name]).parameters()) for name in NETWORKS}
    assert sizes["resnet101"] == 44_549_160
    assert sizes["vit_l_32"] == 306_535_400
    assert sum(p.numel() for p in make_network(network("weights:3000000")).parameters()) == 3_000_000


def test_a_missing_torchvision_names_the_extra(monkeypatch):
    monkeypatch.setattr(networks, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install '\./lab\[peers\]'"):
        make_network(network("resnet18"))

"""Compiled and data-parallel modules predict as the bare one does, and share its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import NETWORKS
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import bayescore.nn as bnn
from bayescore.nn import loop
from bayescore.posteriors.wrappers import bare, bare_names, matched
from toy_problem import POSTERIORS, loader, network, rings

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch's compiler


@pytest.fixture(scope="module", autouse=True)
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A group of one, which DistributedDataParallel asks for."""
    meeting = tmp_path_factory.mktemp("group") / "meet"
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def compiled(model: nn.Module, x: Tensor | None = None) -> nn.Module:
    """With its graphs made: hooks come too late."""
    found: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    for mode in (True, False):
        bare(model).train(mode)
        found(rings(20, 1)[0] if x is None else x)
    return found.train()


def in_parts(model: nn.Module) -> nn.Module:
    """Every layer compiled by itself."""
    layers = [compiled(part, torch.ones(20, 2 if i == 0 else 16)) for i, part in enumerate(model)]
    return nn.Sequential(*layers)


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    model(rings(20, 1)[0])
    return model


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled": compiled,
    "in parts": in_parts,
    "in place": in_place,
    "parallel": DistributedDataParallel,
    "both": lambda model: compiled(DistributedDataParallel(model)),
}
WRAPPED = pytest.mark.parametrize("wrapper", WRAPPERS)
SINGLE = [kind for kind in POSTERIORS if kind != "ensemble"]


@WRAPPED
@pytest.mark.parametrize("kind", SINGLE)
def test_predictions_are_those_of_the_bare_module(kind: str, wrapper: str) -> None:
    x, _ = rings(20, 1)
    wrapped = POSTERIORS[kind](WRAPPERS[wrapper](network())).predict(x, 8)
    plain = POSTERIORS[kind](network()).predict(x, 8)
    torch.testing.assert_close(wrapped.probs, plain.probs)
    torch.testing.assert_close(wrapped.mutual_information, plain.mutual_information, atol=1e-6, rtol=1e-3)


@WRAPPED
@pytest.mark.parametrize("kind", SINGLE)
def test_a_posterior_of_a_wrapped_module_serves_the_bare_one_and_the_reverse(
    kind: str, wrapper: str, tmp_path: Path
) -> None:
    x, _ = rings(20, 1)
    for make, other in ((WRAPPERS[wrapper], nn.Module.train), (nn.Module.train, WRAPPERS[wrapper])):
        posterior = POSTERIORS[kind](make(network()))
        posterior.save(tmp_path / "net")
        loaded = bnn.Posterior.load(tmp_path / "net", other(network(seed=5)))
        torch.testing.assert_close(loaded.predict(x, 4).probs, posterior.predict(x, 4).probs)


@WRAPPED
@pytest.mark.parametrize("structure", ["kron", "diag"])
def test_the_curvature_of_all_weights_is_that_of_the_bare_module(structure: str, wrapper: str) -> None:
    x, _ = rings(20, 1)
    model, other = (nn.Sequential(*list(network())[:2], nn.Linear(16, 2)) for _ in range(2))
    other.load_state_dict(model.state_dict())
    options: dict[str, Any] = {"weights": "all", "structure": structure, "prior_sd": 1.0}
    wrapped = bnn.fit_laplace(WRAPPERS[wrapper](model), loader(64, 0), **options)
    plain = bnn.fit_laplace(other, loader(64, 0), **options)
    torch.testing.assert_close(wrapped.predict(x).probs, plain.predict(x).probs)


@WRAPPED
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_a_drawn_module_is_the_draw(kind: str, wrapper: str) -> None:
    x, _ = rings(20, 1)
    with POSTERIORS[kind](network()).sample_(3) as plain, torch.no_grad():
        expected = plain(x)
    with POSTERIORS[kind](WRAPPERS[wrapper](network())).sample_(3) as drawn, torch.no_grad():
        torch.testing.assert_close(drawn(x), expected)


@pytest.mark.parametrize("wrapper", ["compiled", "in parts", "in place"])
def test_dropout_is_inserted_into_compiled_modules_and_taken_out_again(wrapper: str) -> None:
    x, _ = rings(20, 1)
    model = WRAPPERS[wrapper](network())
    plain = model(x)
    with torch.random.fork_rng():
        with bnn.InsertedDropout(model, 0.5):
            assert not torch.equal(model(x), plain)
        assert torch.equal(model(x), plain)
    fit = bnn.fit(model, loader(64, 0), method="dropout", p=0.5, epochs=2)
    other = bnn.fit(network(), loader(64, 0), method="dropout", p=0.5, epochs=2)
    assert fit.history[-1]["loss"] == pytest.approx(other.history[-1]["loss"])
    torch.testing.assert_close(fit.predict(x).probs, other.predict(x).probs)


def test_with_a_random_last_layer_the_rest_of_a_compiled_module_runs_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(
        nn.Linear(2, 300), nn.Tanh(), nn.Linear(300, 300)
    )  # too large to run draws together
    mean = {"_orig_mod.2.weight": model[2].weight.detach().clone()}
    sd = {name: torch.full_like(value, 0.1) for name, value in mean.items()}
    q = bnn.GaussianPosterior(compiled(model), mean, sd)
    rows = []
    with model[0].register_forward_hook(lambda _, inputs, out: rows.append(len(inputs[0]))):
        fast = q.predict(rings(20, 1)[0], 5)
    assert rows == [20, 1]
    monkeypatch.setattr("bayescore.posteriors.base.random_layer", lambda *_: None)
    torch.testing.assert_close(fast.probs, q.predict(rings(20, 1)[0], 5).probs)


def test_predictions_do_not_wait_for_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its forward pass sends BatchNorm's statistics around: one process alone would wait for ever."""
    case = NETWORKS["conv"]
    x, _ = case.batch()
    plain, spread = case.module(), DistributedDataParallel(case.module())
    monkeypatch.setattr(DistributedDataParallel, "forward", lambda *_: pytest.fail("the others were asked"))
    for batches in (None, [x]):
        found = bnn.PointPosterior(spread).predict(x, recalibrate=batches).probs
        torch.testing.assert_close(found, bnn.PointPosterior(plain).predict(x, recalibrate=batches).probs)


def test_batchnorm_statistics_are_estimated_anew_in_a_compiled_module() -> None:
    case = NETWORKS["conv"]
    x, _ = case.batch()
    plain, other = case.module(), compiled(case.module(), x)
    bare(other).load_state_dict(plain.state_dict())
    found = bnn.PointPosterior(other).predict(x, recalibrate=[x]).probs
    torch.testing.assert_close(found, bnn.PointPosterior(plain).predict(x, recalibrate=[x]).probs)


METHODS: dict[str, dict[str, Any]] = {
    "proximal": {"bayesian": "[03].*"},
    "sgld": {"burn_in": 2, "thin": 1, "lr": 0.05},
    "dropout": {"p": 0.2},
    "swag": {"rank": 3},
}


@WRAPPED
@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_with_the_bare_module_and_the_reverse(
    method: str, wrapper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    x, _ = rings(20, 1)

    def fit(model: nn.Module, path: Path | None) -> Tensor:
        found = bnn.fit(
            model, loader(32, 0), method=method, epochs=4, validation=loader(32, 1), checkpoint=path,
            **METHODS[method],
        )  # fmt: skip
        probs: Tensor = found.predict(x, 4).probs
        return probs

    def killed(run: Any, state: Any, *rest: Any) -> None:
        if state.epoch == 3:
            raise Killed
        next_epoch(run, state, *rest)

    next_epoch = loop._next_epoch
    whole = fit(network(), None)
    for number, (make, other) in enumerate(
        ((WRAPPERS[wrapper], nn.Module.train), (nn.Module.train, WRAPPERS[wrapper]))
    ):
        path = tmp_path / str(number)
        monkeypatch.setattr(loop, "_next_epoch", killed)
        with pytest.raises(Killed):
            fit(make(network()), path)
        monkeypatch.setattr(loop, "_next_epoch", next_epoch)
        torch.testing.assert_close(fit(other(network(seed=5)), path), whole)


def test_names_are_those_of_the_bare_module() -> None:
    model = network()
    own = [name for name, _ in model.named_parameters()]
    for wrapper in WRAPPERS.values():
        names = [name for name, _ in wrapper(network()).named_parameters()]
        assert bare_names(names) == own
        assert list(matched(own, names).values()) == names
        assert list(matched(names, own).values()) == own
    part = nn.ModuleDict({"module": nn.Linear(2, 2), "other": nn.Linear(2, 2)})  # not a wrapper
    names = [name for name, _ in part.named_parameters()]
    assert bare_names(names) == names
    assert matched(["module.weight", "weight"], ["module.weight"])["module.weight"] == "module.weight"
    assert matched(["_orig_mod.strange"], own) == {"_orig_mod.strange": "_orig_mod.strange"}


def test_parameters_are_selected_by_their_bare_names() -> None:
    model = DistributedDataParallel(network())
    assert [name for name, _ in bnn.select(model, "0.*")] == ["module.0.weight", "module.0.bias"]
    assert [name for name, _ in bnn.select(model, "last")] == ["module.3.weight", "module.3.bias"]
    assert len(bnn.select(model, exclude=["module.0.*", "norms"])) == 2


def test_another_network_is_refused_however_it_is_wrapped(tmp_path: Path) -> None:
    bnn.PointPosterior(compiled(network())).save(tmp_path / "net")
    with pytest.raises(ValueError, match=r"another model: 3\.weight is \(2, 16\) there and \(3, 16\) here"):
        bnn.Posterior.load(tmp_path / "net", network(3))

"""A run that was cut within an epoch continues as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset
from toy_run import Failing, Killed, Wrapped, killed, run

import bayescore.nn as bnn
from toy_problem import loader, network, rings

BATCHES, EPOCHS = 4, 3
DATA = TensorDataset(*rings(16 * BATCHES, 0))


class Augmented(Dataset[Any]):
    """Inputs with noise from torch's global stream."""

    def __len__(self) -> int:
        return len(DATA)

    def __getitem__(self, i: int) -> Any:
        x, y = DATA[i]
        return x + 0.1 * torch.randn(2), y


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "own generator": lambda: DataLoader(DATA, 16, shuffle=True, generator=rng()),
    "global stream": lambda: DataLoader(DATA, 16, shuffle=True),
    "sampler": lambda: DataLoader(DATA, 16, sampler=RandomSampler(DATA, True, generator=rng())),
    "in order": lambda: DataLoader(DATA, 16),
    "augmented": lambda: DataLoader(Augmented(), 16, shuffle=True),
}
METHODS: dict[str, dict[str, Any]] = {
    "proximal": {"average": 0.5},
    "calibrated": {"average": 0.5},
    "advi": {},
    "bam": {},
    "sgld": {"burn_in": 2, "thin": 2, "lr": 0.05},
    "dropout": {},
    "swag": {"rank": 3},
}


def noisy_network() -> nn.Module:
    """With dropout, and running statistics."""
    inside = network()
    return nn.Sequential(inside[0], nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), inside[3])


def fitted(batches: Any, method: str = "proximal", **options: Any) -> bnn.NetworkFit:
    options = {"validation": loader(32, 1), **METHODS[method], **options}
    return bnn.fit(noisy_network(), batches, method=method, epochs=EPOCHS, seed=2, **options)


def assert_same(one: bnn.NetworkFit, two: bnn.NetworkFit) -> None:
    x, _ = rings(20, 5)
    assert torch.equal(one.predict(x, 4).probs, two.predict(x, 4).probs)
    a, b = ([{**row, "seconds": 0.0} for row in fit.history] for fit in (one, two))
    assert a == b
    assert one.best_epoch == two.best_epoch
    assert one.status == two.status


@pytest.mark.parametrize("order", LOADERS)
@pytest.mark.parametrize(("after", "every"), [(BATCHES + 2, 1), (2, 1), (2 * BATCHES - 1, 2)])
def test_a_run_cut_within_an_epoch_continues_bitwise(
    order: str, after: int, every: int, tmp_path: Path
) -> None:
    whole = fitted(LOADERS[order]())
    path = tmp_path / "run"
    with pytest.raises(Killed):
        fitted(Failing(LOADERS[order](), after), checkpoint=path, checkpoint_every=every)
    state, done = bnn.load_state(path), after - after % BATCHES % every
    assert len(state["history"]) == done // BATCHES
    assert state["unfinished"]["batches"] == done % BATCHES
    assert_same(fitted(LOADERS[order](), checkpoint=path), whole)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_continues_within_an_epoch(method: str, tmp_path: Path) -> None:
    whole = fitted(loader(64, 0, batch=16), method)
    for after in (2 * BATCHES + 1, 3):  # cut in the third epoch, and again: what was done is passed over
        batches = Failing(loader(64, 0, batch=16), after)
        with pytest.raises(Killed):
            fitted(batches, method, checkpoint=tmp_path / "run", checkpoint_every=1)
    assert bnn.load_state(tmp_path / "run")["unfinished"]["batches"] == 3
    assert_same(fitted(loader(64, 0, batch=16), method, checkpoint=tmp_path / "run"), whole)


def test_a_run_cut_between_the_last_step_and_the_end_of_its_epoch_continues_bitwise(tmp_path: Path) -> None:
    whole, path = fitted(loader(64, 0, batch=16)), tmp_path / "run"
    failing = Failing(loader(32, 1), 1)
    with pytest.raises(Killed):
        fitted(loader(64, 0, batch=16), validation=failing, checkpoint=path, checkpoint_every=1)
    assert bnn.load_state(path)["unfinished"]["batches"] == BATCHES
    assert_same(fitted(loader(64, 0, batch=16), checkpoint=path), whole)


def test_a_killed_process_loses_its_present_step_and_no_more(tmp_path: Path) -> None:
    def ready(state: dict[str, Any]) -> bool:
        return len(state["history"]) == 1 and state.get("unfinished", {"batches": 0})["batches"] > 2

    state = killed(tmp_path / "run", ready, every=1)
    assert state["unfinished"]["batches"] > 2
    resumed, probs = run(tmp_path / "run", every=4)
    assert [row["epoch"] for row in resumed.history] == [1, 2, 3, 4, 5, 6]
    _, expected = run(None)
    assert torch.equal(probs, expected)


def test_the_global_stream_is_left_as_it_was(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fitted(Failing(loader(64, 0, batch=16), 2), checkpoint=tmp_path / "run", checkpoint_every=1)
    before = torch.get_rng_state()
    fitted(loader(64, 0, batch=16), checkpoint=tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), before)


class Fewer(Wrapped):
    """Only the first batches of those that it says it has."""

    def __init__(self, batches: Any, count: int) -> None:
        super().__init__(batches)
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        return islice(self.batches, self.count)


def test_a_loader_with_fewer_batches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        fitted(Failing(loader(64, 0, batch=16), 3), checkpoint=tmp_path / "run", checkpoint_every=1)
    with pytest.raises(ValueError, match="after 3 batches of an epoch and the loader gave 2"):
        fitted(Fewer(loader(64, 0, batch=16), 2), checkpoint=tmp_path / "run")


def test_steps_between_writes_need_a_file() -> None:
    with pytest.raises(ValueError, match="pass checkpoint="):
        bnn.fit(network(), loader(32, 0), checkpoint_every=1)
    with pytest.raises(ValueError, match="checkpoint_every must be at least 1"):
        bnn.fit(network(), loader(32, 0), checkpoint="run", checkpoint_every=0)


@pytest.mark.parametrize("method", ["proximal", "advi", "bam", "plain"])
def test_an_exception_leaves_the_mean_weights_of_the_last_step(method: str) -> None:
    """Those that a KeyboardInterrupt at the same place returns, whether the loader fails or the loss."""

    def fit(model: nn.Module, batches: Any, likelihood: Any = "categorical") -> bnn.NetworkFit:
        return bnn.fit(model, batches, likelihood, method, epochs=EPOCHS)

    class Loss(bnn.likelihoods.Categorical):
        calls = 0

        def forward(self, outputs: Any, y: Any) -> Tensor:
            self.calls += outputs.requires_grad  # not of the look at the loss before training
            if self.calls > (6 * 2 if method == "bam" else 6):
                raise Killed
            return super().forward(outputs, y)

    models = [network() for _ in range(3)]
    ended = fit(models[0], Failing(loader(64, 0, batch=16), 6, KeyboardInterrupt))
    assert "interrupted in epoch 2" in ended.status
    with pytest.raises(Killed):
        fit(models[1], Failing(loader(64, 0, batch=16), 6))
    with pytest.raises(Killed):
        fit(models[2], loader(64, 0, batch=16), Loss())
    for expected, *found in zip(*(model.parameters() for model in models), strict=True):
        assert expected.isfinite().all()
        assert all(torch.equal(p, expected) for p in found)

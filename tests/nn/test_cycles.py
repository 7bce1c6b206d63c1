"""cycles= of `fit`: the mixture of the posteriors at the ends of several falls of the learning rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bayescore import nn as bnn
from bayescore.nn.checkpoint import cycle_start


def curve() -> tuple[Tensor, Tensor]:
    """A sine on both sides of a gap."""
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, generator=rng) * 2 + 1
    x = torch.where(torch.rand(120, 1, generator=rng) < 0.5, -x, x)
    return x, torch.sin(1.5 * x) + 0.1 * torch.randn(120, 1, generator=rng)


def fitted(method: str = "proximal", **options: Any) -> bnn.NetworkFit:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))
    loader = DataLoader(TensorDataset(*curve()), 32, shuffle=True)
    like = bnn.likelihoods.Gaussian("learned")
    return bnn.fit(model, loader, like, method, progress=False, **options)


def test_uncertainty_grows_in_the_gap_and_beyond_the_data() -> None:
    points = torch.tensor([[-2.0], [2.0], [0.0], [4.0], [5.0]])
    one, mixture = (fitted(epochs=200, cycles=c).predict(points, 100) for c in (1, 5))
    seen, gap, outside = (mixture.epistemic_std.flatten()[part] for part in ([0, 1], [2], [3, 4]))
    assert gap > seen.max()
    assert outside.min() > 2 * seen.max()
    assert outside.min() > 2 * one.epistemic_std.flatten()[3:].min()


@pytest.mark.parametrize("method", ["proximal", "plain"])
def test_members_are_the_posteriors_at_the_ends_of_the_cycles(method: str) -> None:
    fit = fitted(method, epochs=5, cycles=2)
    assert isinstance(fit.posterior, bnn.Ensemble)
    assert len(fit.posterior) == 2
    assert "a mixture of 2 cycles" in fit.status
    last = fitted(method, epochs=5, cycles=2).posterior
    assert isinstance(last, bnn.Ensemble)
    point = torch.zeros(1, 1)
    assert torch.equal(last.predict(point).mean, fit.predict(point).mean)
    one, two = fit.posterior.members
    assert not torch.equal(one.predict(point).mean, two.predict(point).mean)


def test_the_rate_falls_once_in_every_cycle() -> None:
    assert [cycle_start(number, 3, 10) for number in range(4)] == [0, 3, 6, 10]
    rates: list[float] = []

    class Noted(torch.utils.data.Sampler[int]):
        def __iter__(self) -> Any:
            yield from range(120)

        def __len__(self) -> int:
            return 120

    class Watched(DataLoader[Any]):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                rates.append(holder[0].param_groups[0]["lr"] if holder else 1e-3)
                yield batch

    holder: list[Any] = []
    original = torch.optim.lr_scheduler.LambdaLR.step

    def step(self: Any, *args: Any) -> None:
        holder[:] = [self.optimizer]
        original(self, *args)

    patched = pytest.MonkeyPatch()
    patched.setattr(torch.optim.lr_scheduler.LambdaLR, "step", step)
    try:
        model = nn.Linear(1, 1)
        loader = Watched(TensorDataset(*curve()), 60, sampler=Noted())
        bnn.fit(model, loader, "gaussian", epochs=6, cycles=3, progress=False)
    finally:
        patched.undo()
    cycles = [rates[start : start + 4] for start in (0, 4, 8)]
    for cycle in cycles:
        assert cycle[0] == pytest.approx(1e-3)
        assert cycle == sorted(cycle, reverse=True)


def test_a_run_with_cycles_continues_bitwise(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    class Ending(DataLoader[Any]):
        left = 9

        def __iter__(self) -> Any:
            for batch in super().__iter__():
                Ending.left -= 1
                if not Ending.left:
                    raise Stopped
                yield batch

    def run(file: Path, loader: type[DataLoader[Any]] = DataLoader) -> bnn.NetworkFit:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        data = loader(TensorDataset(*curve()), 60, shuffle=True)
        return bnn.fit(model, data, "gaussian", epochs=6, cycles=3, checkpoint=file, progress=False)

    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "part", Ending)
    resumed = run(tmp_path / "part")
    x = torch.linspace(-3, 3, 7)[:, None]
    assert torch.equal(whole.predict(x, 30).outputs, resumed.predict(x, 30).outputs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cycles": 0}, "cycles must be at least 1"),
        ({"cycles": 3, "epochs": 2}, "a cycle takes an epoch at least; got cycles=3 and epochs=2"),
        ({"cycles": 2, "validation": [curve()]}, "leave one of them out"),
        ({"cycles": 2, "method": "sgld"}, "sgld collects weights along its path already"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fitted(**{"epochs": 4, **options})

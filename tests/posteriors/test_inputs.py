"""Modules as they are in the wild: inputs by name, outputs with logits, more rows than memory holds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import bayescore.nn as bnn
from bayescore.nn.memory import _Meter
from bayescore.posteriors import base
from bayescore.posteriors.inputs import ROWS_AT_ONCE
from toy_problem import POSTERIORS, network, rings

KINDS = pytest.mark.parametrize("kind", ["gaussian", "dropout", "swag", "ensemble"])
WAYS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda ids, mask: (ids, mask),
    "list": lambda ids, mask: [ids, mask],
    "mapping": lambda ids, mask: {"attention_mask": mask, "input_ids": ids},
}


class Words(nn.Sequential):
    """Class logits from the mean embedding of the words that the mask keeps, returned as `how` says."""

    def __init__(self, how: str = "logits") -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__(nn.Embedding(9, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))
        self.how = how

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask.unsqueeze(-1)
        mean = (self[0](input_ids) * mask).sum(1) / mask.sum(1)
        out = self[3](self[2](self[1](mean)))
        named = SimpleNamespace(logits=out, loss=None)
        return {"logits": named, "tensor": out, "tuple": (out, mean)}[self.how]


def words(n: int = 7) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(n)
    ids = torch.randint(0, 9, (n, 5), generator=rng)
    mask = torch.rand(n, 5, generator=rng) < 0.7
    mask[:, 0] = True
    return ids, mask


@KINDS
@pytest.mark.parametrize("way", WAYS)
def test_inputs_come_by_position_or_by_name_in_any_chunks(kind: str, way: str) -> None:
    posterior = POSTERIORS[kind](Words())
    expected = POSTERIORS[kind](Words("tensor")).predict(words(), 6).probs
    for size in (None, 3):
        found = posterior.predict(WAYS[way](*words()), 6, batch_size=size).probs
        torch.testing.assert_close(found, expected)


def test_a_random_last_layer_is_a_short_cut_to_logits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Words(), WAYS["mapping"](*words())
    mean = {name: p.detach().clone() for name, p in model[3].named_parameters(prefix="3")}
    posterior = bnn.GaussianPosterior(model, mean, {k: torch.full_like(v, 0.1) for k, v in mean.items()})
    looked_up: list[int] = []
    model[0].register_forward_hook(lambda *_: looked_up.append(1))
    fast = posterior.predict(x, 5).probs
    assert len(looked_up) == 2  # the first draw, and the check
    monkeypatch.setattr(base, "random_layer", lambda *_: None)
    torch.testing.assert_close(fast, posterior.predict(x, 5).probs)


def test_draws_that_run_together_take_inputs_by_name() -> None:
    x, _ = rings(6, 0)
    posterior = POSTERIORS["gaussian"](network())
    assert torch.equal(posterior.predict({"input": x}).probs, posterior.predict(x).probs)


@KINDS
def test_outputs_that_are_no_tensor_are_refused_with_advice(kind: str) -> None:
    with pytest.raises(TypeError, match=r"returned a tuple of Tensor, Tensor.*wrap it in a module"):
        POSTERIORS[kind](Words("tuple")).predict(words())


@KINDS
def test_inputs_that_make_no_rows_are_refused(kind: str) -> None:
    posterior = POSTERIORS[kind](Words())
    ids, mask = words()
    with pytest.raises(ValueError, match=r"one first dimension.*attention_mask: \(6, 5\)"):
        posterior.predict({"input_ids": ids, "attention_mask": mask[1:]})
    with pytest.raises(ValueError, match=r"one first dimension.*0: \(6, 5\), 1: \(7, 5\)"):
        posterior.predict((ids[1:], mask))
    with pytest.raises(TypeError, match="got a dict of Tensor, list"):
        posterior.predict({"input_ids": ids, "attention_mask": ["a mask"]})
    for nothing in ((), {}, None):
        with pytest.raises(TypeError, match="must be a tensor, a tuple of tensors, or a mapping"):
            posterior.predict(nothing)


def test_laplace_refuses_inputs_by_name() -> None:
    with pytest.raises(ValueError, match="modules of one input"):
        POSTERIORS["laplace"](network()).predict({"input": rings(4, 0)[0]})


class Sentences(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        ids, mask = words(24)
        return {"input_ids": ids[i], "attention_mask": mask[i]}, int(ids[i, 0] > 4)


@pytest.mark.parametrize("likelihood", ["categorical", nn.functional.cross_entropy])
def test_fit_takes_batches_of_inputs_by_name(likelihood: Any) -> None:
    batches = DataLoader(Sentences(), batch_size=8)
    fit = bnn.fit(Words(), batches, likelihood, epochs=2, validation=batches)
    assert "6 updates" in fit.status
    assert all(row["validation_nll"] > 0 for row in fit.history)
    with pytest.raises(TypeError, match="wrap it in a module"):
        bnn.fit(Words("tuple"), batches, epochs=1)


def test_temperature_and_statistics_take_inputs_by_name() -> None:
    class Normed(Words):
        def __init__(self) -> None:
            super().__init__()
            self[1] = nn.BatchNorm1d(8)

    model, x, y = Normed(), WAYS["mapping"](*words(24)), words(24)[0][:, 0] % 2
    assert bnn.PointPosterior(model).scaled([(x, y)]).temperature != 1
    posterior, few = POSTERIORS["gaussian"](model), WAYS["mapping"](*words())
    renewed = posterior.predict(few, 2, recalibrate=[x]).probs
    assert torch.equal(renewed, posterior.predict(few, 2, recalibrate=[(x, y)]).probs)
    assert not torch.allclose(renewed, posterior.predict(few, 2).probs)


# -- memory ----------------------------------------------------------------------------------------------


class Watched(nn.Sequential):
    """Remembers how many rows it was given at most."""

    most = 0

    def forward(self, x: Tensor) -> Tensor:
        self.most = max(self.most, len(x))
        return super().forward(x)


@KINDS
def test_many_rows_go_through_in_pieces_unless_asked_for_at_once(kind: str) -> None:
    model = Watched(*network())
    posterior = POSTERIORS[kind](model)
    x, _ = rings(2 * ROWS_AT_ONCE + 300, 0)
    pieces = posterior.predict(x, 4)
    assert model.most == ROWS_AT_ONCE
    whole = posterior.predict(x, 4, batch_size=len(x))
    assert model.most == len(x)
    torch.testing.assert_close(pieces.probs, whole.probs)
    torch.testing.assert_close(pieces.mutual_information, whole.mutual_information, rtol=1e-4, atol=1e-6)


def test_outputs_that_are_not_by_row_are_not_joined() -> None:
    class Pooled(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mean(0, keepdim=True)

    posterior = POSTERIORS["gaussian"](Pooled(*network()))
    x, _ = rings(20, 0)
    assert posterior.predict(x, 3).probs.shape == (1, 2)
    with pytest.raises(ValueError, match=r"outputs \(1, 2\) for 15 rows.*batch_size=20"):
        posterior.predict(x, 3, batch_size=15)


def peak(posterior: bnn.Posterior, x: Tensor, draws: int) -> int:
    """The most bytes that live at one time during a prediction."""
    with _Meter([]) as meter:
        posterior.predict(x, draws)
    return meter.peak


@pytest.mark.parametrize(
    ("kind", "container"),
    [("gaussian", nn.Sequential), ("gaussian", Watched), ("dropout", Watched), ("laplace", nn.Sequential)],
    ids=["together", "one by one", "dropout", "laplace"],
)
def test_class_predictions_need_no_memory_per_draw(kind: str, container: type[nn.Sequential]) -> None:
    model = container(*network())
    posterior, x = POSTERIORS[kind](model), rings(500, 0)[0]
    few, many = peak(posterior, x, 64), peak(posterior, x, 128)  # draws run together in groups of 32
    assert many - few < 2 * 500 * 4  # two numbers per row: 64 draws of anything are more


def test_value_predictions_keep_their_draws() -> None:
    model = network(1)
    own = {k: p.detach().clone() for k, p in model.named_parameters()}
    posterior = bnn.GaussianPosterior(model, own, own, likelihood="gaussian")
    x, _ = rings(500, 0)
    assert peak(posterior, x, 128) - peak(posterior, x, 64) >= 64 * 500 * 4

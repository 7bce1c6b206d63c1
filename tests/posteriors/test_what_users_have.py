"""A prediction takes what users have, and says in a sentence what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayescore.nn as bnn
from toy_problem import POSTERIORS, network, rings

KINDS = pytest.mark.parametrize("kind", ["gaussian", "ensemble", "laplace"])


class Rows(Dataset[Any]):
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]


@KINDS
@pytest.mark.parametrize(
    "has", ["array", "floats64", "lists", "frame", "set", "pairs", "loader", "loader of x"]
)
def test_arrays_lists_frames_sets_and_loaders_serve_as_tensors_do(kind: str, has: str) -> None:
    x, y = rings(12, 0)
    given: dict[str, Any] = {
        "array": x.numpy(),
        "floats64": x.numpy().astype(np.float64),
        "lists": x.tolist(),
        "frame": pd.DataFrame(x.numpy(), columns=["left", "right"]),
        "set": Rows(x),
        "pairs": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=5),
        "loader of x": DataLoader(TensorDataset(x), batch_size=5),
    }
    posterior = POSTERIORS[kind](network())
    expected = posterior.predict(x, 4).probs
    torch.testing.assert_close(posterior.predict(given[has], 4).probs, expected)


def test_a_shuffled_loader_is_read_once_for_all_members() -> None:
    x, y = rings(12, 0)
    posterior = POSTERIORS["ensemble"](network())
    with torch.random.fork_rng():
        torch.manual_seed(3)
        order = torch.cat([rows for rows, _ in DataLoader(TensorDataset(x, y), shuffle=True)])
        torch.manual_seed(3)
        found = posterior.predict(DataLoader(TensorDataset(x, y), shuffle=True), 4).probs
    torch.testing.assert_close(found, posterior.predict(order, 4).probs)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(x), "hidden": x}


def test_a_module_may_return_a_mapping_with_logits() -> None:
    x, y = rings(24, 0)
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    assert bnn.fit(Mapped(), loader, epochs=1).predict(x).probs.shape == (24, 2)


@KINDS
def test_one_row_is_told_to_become_a_table_of_one(kind: str) -> None:
    posterior = POSTERIORS[kind](network())
    for row in (torch.zeros(2), [0.5, 0.5], np.zeros(2)):
        with pytest.raises(ValueError, match=r"are one row, and a prediction takes rows: give x\[None\]"):
            posterior.predict(row)


@pytest.mark.parametrize("kind", ["gaussian", "ensemble", "dropout", "swag"])
def test_a_wrong_width_is_named_before_anything_of_torch(kind: str) -> None:
    posterior = POSTERIORS[kind](network())
    for rows in (torch.zeros(7, 3), np.zeros((7, 3))):
        with pytest.raises(ValueError, match=r"inputs of the shape \(7, 3\) do not fit.*takes 2 columns"):
            posterior.predict(rows)
    with pytest.raises(TypeError, match=r"give x\.float\(\)"):
        posterior.predict(torch.zeros(7, 2, dtype=torch.long))


def test_a_column_for_a_network_of_one_input() -> None:
    posterior = bnn.PointPosterior(nn.Sequential(nn.Linear(1, 1)), likelihood="gaussian")
    with pytest.raises(ValueError, match=r"takes 1 column: give x\[:, None\]"):
        posterior.predict(torch.zeros(5))


def test_columns_of_texts_and_ragged_lists_are_refused() -> None:
    posterior = POSTERIORS["gaussian"](network())
    frame = pd.DataFrame({"left": [0.0, 1.0], "name": ["a", "b"]})
    with pytest.raises(TypeError, match="the columns 'name' do not hold numbers; encode them first"):
        posterior.predict(frame)
    with pytest.raises(ValueError, match="differ in length"):
        posterior.predict([[1.0, 2.0], [1.0]])


@pytest.mark.parametrize("kind", [list, np.array, pd.DataFrame])
def test_whole_numbers_are_numbers_to_a_linear_layer_and_words_to_an_embedding(kind: Any) -> None:
    rows = [[1, 2], [3, 4]]
    model = network()
    posterior = POSTERIORS["gaussian"](model)
    torch.testing.assert_close(
        posterior.predict(kind(rows), 2).probs, posterior.predict(torch.tensor(rows).float(), 2).probs
    )
    words = nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(4, 2))
    assert bnn.PointPosterior(words).predict(kind(rows)).probs.shape == (2, 2)


def test_what_is_shown_of_a_posterior_and_of_its_predictions_is_short() -> None:
    model, (x, _) = network(), rings(12, 0)
    posterior = POSTERIORS["gaussian"](model)
    count = sum(p.numel() for p in model.parameters())
    whole = f"<GaussianPosterior of {count:,} weights of a Sequential, likelihood 'categorical'>"
    assert repr(posterior) == whole
    assert "<Ensemble of 2 members: <GaussianPosterior of" in repr(bnn.Ensemble([posterior, posterior]))
    assert repr(posterior.predict(x, 4)).startswith(
        "<ClassPrediction of the shape (12, 2) from 4 draws: probs,"
    )
    values = bnn.PointPosterior(model, likelihood="gaussian").predict(x)
    assert repr(values).startswith("<ValuePrediction from outputs of the shape (12, 2), 1 draws: mean, std,")

"""The picture of a fit calls the coordinates what its summary calls them."""

from __future__ import annotations

import pytest
import torch

import bayescore as bs

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_axes_have_the_names_of_the_summary(dim: int, dtype: torch.dtype) -> None:
    target = bs.targets.Gaussian(torch.zeros(dim, dtype=dtype), torch.eye(dim, dtype=dtype))
    fit = bs.fit(target, steps=2, seed=0)
    figure = bs.plotting.plot_fit(fit)
    shown = {label for axes in figure.axes for label in (axes.get_xlabel(), axes.get_ylabel())}
    named = {name for name in shown if name.startswith("theta")}
    assert named == {row.name for row in fit.marginals()}

"""The four averages that draws hand to a rule."""

from __future__ import annotations

import torch

from bayescore.rules import Draws
from cases import F64, normal


def test_the_averages_are_their_definitions() -> None:
    eps, score = normal(2, 6, 4, 3)
    draws = Draws.of_scores(eps, score)
    g = -score
    torch.testing.assert_close(draws.G, sum(g[:, i] for i in range(4)) / 4)
    torch.testing.assert_close(draws.X, sum(eps[:, i] * g[:, i] for i in range(4)) / 4)
    torch.testing.assert_close(draws.e1, sum(eps[:, i] for i in range(4)) / 4)
    torch.testing.assert_close(draws.e2, sum(eps[:, i] ** 2 for i in range(4)) / 4)
    assert all(part.shape == (6, 3) for part in draws)


def test_one_draw_is_the_average_over_one() -> None:
    eps, g = normal(2, 5, 3)
    for mine, other in zip(
        Draws.of_one(g, eps), Draws.of_scores(eps.unsqueeze(-2), -g.unsqueeze(-2)), strict=True
    ):
        assert torch.equal(mine, other)


def test_the_second_average_shows_the_curvature() -> None:
    """Stein's identity, exact where the draws have mean 0 and mean square 1: X = sigma times curvature."""
    m, curvature, centre = normal(3, 4, seed=2)
    sd, curvature = (0.3 * m).exp(), curvature.exp()
    eps = torch.tensor([[1.0], [-1.0]], dtype=F64).expand(2, 4)
    draws = Draws.of_scores(eps, -curvature * (m + sd * eps - centre))
    torch.testing.assert_close(draws.G, curvature * (m - centre), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(draws.X, sd * curvature, rtol=1e-13, atol=1e-13)

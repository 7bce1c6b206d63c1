"""The plain algorithm is the one we claim to be faster than: same noise, same parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import bayescore as bs
from bayescore_lab.reference import families as plain
from bayescore_lab.reference.families import plain_proximal

GAUSSIAN = bs.targets.Gaussian.random(3, seed=1), bs.families.FullGaussian.init(3, seed=2)
MIXTURE = bs.targets.GaussianMixture.random(3, 5, seed=1), bs.families.GaussianMixture.init(3, 5, seed=2)


@pytest.mark.parametrize(
    ("target", "family", "kind"),
    [
        (*GAUSSIAN, bs.methods.WhitenedDescent),
        (*GAUSSIAN, bs.methods.ProximalDescent),
        (*MIXTURE, bs.methods.ProximalDescent),
    ],
    ids=["gaussian", "gaussian-euclidean", "mixture"],
)
@pytest.mark.parametrize("draws", [1, 3])
def test_plain_autograd_and_our_inner_loop_give_the_same_parameters(target, family, kind, draws):
    method = kind(draws=draws, inner_steps=20, optimizer="adam", floor=0.0)
    ours = bs.fit(target, family, method, steps=5, seed=3, check=False, metrics={}).family.parameters()
    whitened = kind is bs.methods.WhitenedDescent
    theirs = plain_proximal(target, family, steps=5, seed=3, draws=draws, whitened=whitened)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=1e-8, atol=1e-10)


def test_plain_algorithm_moves_the_parameters():
    target, family = GAUSSIAN
    moved = plain_proximal(target, family, steps=1, seed=0)
    assert not torch.equal(moved["mean"], family.mean)


def test_plain_algorithm_refuses_a_family_it_does_not_know():
    family = bs.families.DiagonalGaussian.init(3)
    with pytest.raises(TypeError, match="full Gaussians and mixtures; got DiagonalGaussian"):
        plain_proximal(GAUSSIAN[0], family, steps=1, seed=0)


def test_plain_algorithm_takes_no_mathematics_from_the_library():
    tree = ast.parse(Path(plain.__file__).read_text())
    imported = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported += [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    own = ("bayescore.methods", "bayescore.rules", "bayescore.optim", "bayescore.nn")
    assert [name for name in imported if name.startswith(own)] == []

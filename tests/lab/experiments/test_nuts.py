"""Stan's NUTS on a compiled program finds the posterior that the reference has."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch

from bayescore.inference.export import columns
from bayescore.targets.stan import Stan
from bayescore_lab.experiments.posteriordb.models import MODELS
from bayescore_lab.experiments.posteriordb.nuts import sample
from bayescore_lab.experiments.posteriordb.references import reference

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("httpstan") is None or shutil.which("g++") is None,
    reason="needs httpstan and g++",
)


@needs_compiler
@pytest.mark.slow
def test_chains_agree_with_the_reference_and_repeat_with_their_seed() -> None:
    model = MODELS["robust"]
    target = Stan(model.program, model.data(), threads=1)
    chains = sample(target, chains=2, warmup=500, draws=1000, seed=3, delta=0.9)
    assert chains.draws.shape == (2, 1000, target.dim)
    assert chains.divergences == 0
    assert chains.gradients > 3000
    ours = columns(target.to_posterior(chains.draws.flatten(0, 1))["posterior"])
    known = reference("robust")
    assert known is not None
    for name, mean, sd in zip(known["names"], known["mean"], known["sd"], strict=True):
        assert abs(float(ours[name].mean()) - mean) < 0.2 * sd
        assert abs(float(ours[name].std()) / sd - 1) < 0.2
    again = sample(target, chains=1, warmup=500, draws=1000, seed=3, delta=0.9)
    assert torch.equal(again.draws[0], chains.draws[0])

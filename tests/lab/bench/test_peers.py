"""The peers run on our densities, and what they export is what they draw from."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bayescore.families import FullGaussian
from bayescore_lab.bench.entries import PEERS, PeerMethod
from bayescore_lab.bench.jax_methods import gaussian_of_path
from bayescore_lab.bench.peers import CHUNK, PeerError, PeerProcess
from bayescore_lab.bench.problems import banana, gaussian

for name in ("jax", "numpyro", "blackjax", "optax"):
    pytest.importorskip(name, reason=f"{name} is not installed: pip install './lab[peers]'")

SVI, FULL_RANK, PATH, MULTI = PEERS


@pytest.fixture(scope="module")
def process():
    with PeerProcess() as running:
        yield running


@pytest.mark.parametrize("problem", [banana(), gaussian(dim=20)], ids=lambda problem: problem.name)
def test_jax_density_equals_ours(process, problem):
    x = 3 * torch.randn(
        50, problem.target.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    torch.testing.assert_close(
        process.log_density(problem, x), problem.target.log_prob(x), rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("entry", [SVI, FULL_RANK], ids=lambda entry: entry.name)
def test_a_peer_starts_where_ours_do_and_comes_nearer_to_the_goal(process, entry):
    problem = banana(budget=2 * CHUNK)
    start = problem.best - problem.elbo(problem.q0)
    barely = process.run(entry, problem, {"learning_rate": 1e-9, "draws": 2}, seed=0, limit=0.0)
    assert barely.gap == pytest.approx(start, abs=1e-6)
    assert (barely.steps, barely.score_calls) == (CHUNK, 2 * CHUNK)
    result = process.run(entry, problem, {"learning_rate": 0.03, "draws": 10}, seed=0, limit=math.inf)
    assert result.gap < 0.5 * start


def test_a_failing_peer_is_reported_and_the_process_lives_on(process):
    entry = PeerMethod("nobody", ({},), "nobody", ())
    with pytest.raises(PeerError, match="failed: KeyError"):
        process.run(entry, banana(), {}, seed=0, limit=1.0)
    assert len(process.log_density(banana(), torch.zeros(1, 2, dtype=torch.float64))) == 1


def test_exported_path_is_the_gaussian_that_blackjax_draws_from():
    import jax
    from blackjax.optimizers.lbfgs import bfgs_sample

    rng = np.random.default_rng(0)
    beta, root = 0.5 * rng.normal(size=(4, 6)), rng.normal(size=(6, 6))
    state = SimpleNamespace(
        position=rng.normal(size=4),
        grad_position=rng.normal(size=4),
        alpha=rng.uniform(0.5, 2.0, size=4),
        beta=beta,
        gamma=root @ root.T / 6,
    )
    draws, log_q = bfgs_sample(jax.random.key(0), 20, **{k: np.float32(v) for k, v in vars(state).items()})
    mean, factor = gaussian_of_path(state)
    q = FullGaussian(torch.tensor(mean), torch.tensor(factor))
    theirs = torch.tensor(np.asarray(log_q, dtype=np.float64))
    torch.testing.assert_close(
        q.log_prob(torch.tensor(np.asarray(draws, np.float64))), theirs, rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("entry", [PATH, MULTI], ids=lambda entry: entry.name)
def test_a_pathfinder_finds_a_small_gaussian_and_its_gradients_are_counted(process, entry):
    problem, setting = gaussian(dim=3, condition=3.0), entry.settings[0]
    result = process.run(entry, problem, setting, seed=0, limit=math.inf)
    assert result.seconds is not None
    assert result.score_calls is None
    assert process.count(entry, problem, setting, seed=0) > 3


def test_a_silent_process_is_begun_anew_and_then_named(monkeypatch):
    from bayescore_lab.bench import peers

    class Silent(peers.PeerProcess):
        begun = 0

        def _begin(self):
            self.begun += 1

        def _end(self):
            pass

        def _run(self, *arguments):
            raise peers.PeerSilenceError("failed: silent")

    process = Silent()
    with pytest.raises(peers.PeerError, match="silent"):
        process.run(None, None, None, 0, 1.0)
    assert process.begun == peers.TRIES

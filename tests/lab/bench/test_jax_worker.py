"""The process of the JAX peers, with stand-ins for JAX and BlackJAX: what is asked and what is answered."""

from __future__ import annotations

import math

import pytest
import torch

from bayescore_lab.bench.entries import PEERS, PeerMethod
from bayescore_lab.bench.peers import PeerError, PeerProcess
from bayescore_lab.bench.problems import banana, gaussian

PATH = PEERS[2]
FILES = {
    "jax/__init__.py": """
import numpy as np
from types import SimpleNamespace

config = SimpleNamespace(update=lambda *_: None)
random = SimpleNamespace(
    key=lambda seed: seed,
    split=lambda key: (key, key + 1),
    normal=lambda key, shape: np.random.default_rng(key).normal(size=shape),
)
jit = block_until_ready = lambda x: x
vmap = lambda f: lambda points: np.stack([f(x) for x in points])
print("a library chats")
""",
    "jax/numpy.py": "from numpy import *",
    "blackjax/__init__.py": "",
    "blackjax/vi/__init__.py": "",
    # N(0, I), whatever the density is
    "blackjax/vi/pathfinder.py": """
import numpy as np
from types import SimpleNamespace

def approximate(key, density, position, draws, maxiter, maxcor, ftol):
    dim = len(position)
    zero = np.zeros(dim)
    nothing = {"beta": np.zeros((dim, 2)), "gamma": np.zeros((2, 2))}
    return SimpleNamespace(position=zero, grad_position=zero, alpha=np.ones(dim), **nothing), None
""",
}


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stand_ins")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        running = PeerProcess()
    with running:
        yield running


@pytest.mark.parametrize("problem", [banana(), gaussian(dim=5)], ids=lambda problem: problem.name)
def test_the_density_of_the_peers_equals_ours(process, problem):
    rng = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(10, problem.target.dim, generator=rng, dtype=torch.float64)
    torch.testing.assert_close(
        process.log_density(problem, x), problem.target.log_prob(x), rtol=1e-12, atol=1e-12
    )


def test_a_run_answers_with_the_gaussian_that_the_peer_found(process):
    problem = gaussian(dim=3, condition=3.0)
    result = process.run(PATH, problem, PATH.settings[0], seed=0, limit=math.inf)
    assert result.gap == pytest.approx(problem.best - problem.elbo(problem.q0), abs=1e-12)
    assert (result.steps, result.score_calls) == (1, None)
    assert result.compile_seconds is not None


def test_a_failing_peer_is_reported_and_the_process_lives_on(process):
    with pytest.raises(PeerError, match="failed: KeyError"):
        process.run(PeerMethod("nobody", ({},), "nobody", ()), banana(), {}, seed=0, limit=1.0)
    assert len(process.log_density(banana(), torch.zeros(1, 2, dtype=torch.float64))) == 1


def test_the_end_of_the_process_is_named():
    with PeerProcess() as process:
        process._worker._process.kill()
        with pytest.raises(PeerError, match="failed: the process of the JAX peers ended"):
            process.log_density(banana(), torch.zeros(1, 2, dtype=torch.float64))

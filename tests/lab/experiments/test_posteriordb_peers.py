"""posteriordb-peers: its grid and rules, the counted density, and the peers on a Gaussian if installed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from bayescore.families import FullGaussian
from bayescore.targets import Gaussian
from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb import peers_fits, peers_methods, peers_worker
from bayescore_lab.experiments.posteriordb.peers import EXPERIMENT, FLOW_POSTERIORS, FLOWS, GAUSSIANS
from bayescore_lab.experiments.posteriordb.peers_density import CountedDensity, jax_density, pytensor_density

PEER = GAUSSIANS[0]


def record(method: str, posterior: str, error: float | None, **metrics: Any) -> Record:
    status = {"state": "done", "ended": "ok"}
    found = {} if error is None else {"error": error, "weighted_error": error, "elbo": -error, "values": 5}
    name = f"{method}-{posterior}"
    config = {"posterior": posterior}
    return Record("x", name, method, 0, config, found | metrics, {}, 10, 1.0, status, "", {}, {}, "")


def both(posterior: str, ours: float, theirs: float | None) -> list[Record]:
    return [record("auto", posterior, ours), record(PEER, posterior, theirs)]


@pytest.fixture
def gaussian(monkeypatch: pytest.MonkeyPatch) -> Gaussian:
    """A target whose errors are those of means and sds on its own space."""
    target = Gaussian.random(3, seed=1)

    def errors(target: Gaussian, name: str, x: torch.Tensor) -> dict[str, float]:
        sd = target.covariance.diagonal().sqrt()
        away = ((x.mean(0) - target.mean).abs() / sd).max()
        return {"mean_error": float(away), "sd_error": float((x.std(0) / sd).log().abs().max())}

    for module in (peers_fits, peers_worker):
        monkeypatch.setattr(module, "target_of", lambda name: target)
    monkeypatch.setattr(peers_fits, "draw_errors", errors)
    return target


def test_every_arm_is_a_peer_and_flows_run_on_ten_posteriors() -> None:
    assert set(EXPERIMENT.methods) == {"auto", *peers_methods.PEERS}
    grid = EXPERIMENT.runs({}, [0], EXPERIMENT.methods)
    assert {run.config["posterior"] for run in grid if run.method in FLOWS} == set(FLOW_POSTERIORS)
    assert len(FLOW_POSTERIORS) == 10


def test_ties_count_half_and_a_peer_that_broke_down_is_worse() -> None:
    claim = EXPERIMENT.claims[0].rule.judge
    records = [*both("a", 0.02, 0.5), *both("b", 0.02, 0.04), *both("c", 0.3, None)]
    judged = claim(Records(records))
    assert judged.numbers == {"better": 2, "level": 1, "worse": 0}
    assert judged.verdict == "reproduced"
    assert claim(Records([*both("a", 0.02, 0.5), *both("b", 0.5, 0.02)])).verdict == "partly"
    assert claim(Records(both("b", 0.5, 0.02))).verdict == "not reproduced here"
    assert claim(Records(records[:1])).verdict is None


def test_a_posterior_without_a_reference_is_compared_by_its_elbo_alone() -> None:
    records = Records([record(arm, "a", None, reference=False, elbo=-1.0) for arm in ("auto", PEER)])
    assert EXPERIMENT.claims[0].rule.judge(records).verdict is None
    everything, counts = EXPERIMENT.tables(records)
    assert [row[3] for row in everything.rows] == [None, None]
    assert not counts.rows


def test_tables_name_the_posteriors_that_are_lost() -> None:
    everything, counts = EXPERIMENT.tables(Records([*both("a", 0.5, 0.02), *both("b", 0.02, 0.5)]))
    assert len(everything.rows) == 4
    assert counts.rows[0] == [PEER, "as given", 1, 0, 1, "a"]


def test_values_and_scores_are_counted_by_points() -> None:
    target = Gaussian.random(3, seed=1)
    density = CountedDensity(target)
    x = np.zeros((2, 5, 3))
    value, score = density.value_and_score(x)
    assert (value.shape, score.shape, density.scores, density.values) == ((2, 5), (2, 5, 3), 10, 0)
    assert (density.value(x[0, 0]) == value[0, 0]).all()
    assert density.values == 1
    assert score[0, 0] == pytest.approx(target.score(torch.zeros(3, dtype=torch.float64)).numpy())


def test_weights_mend_draws_that_are_too_wide(gaussian: Gaussian) -> None:
    wide = FullGaussian(gaussian.mean, 1.3 * torch.linalg.cholesky(gaussian.covariance))
    x = wide.sample(40_000, seed=0)
    log_q = wide.log_prob(x)
    plain = peers_fits.measure(gaussian, "a", x, log_q, None)
    assert plain["error"] == plain["plain_error"] == pytest.approx(math.log(1.3), abs=0.03)
    own = peers_fits.measure(gaussian, "a", x, log_q, (x, log_q))
    assert own["error"] == own["weighted_error"] == plain["weighted_error"] < 0.04
    nowhere = peers_fits.measure(gaussian, "a", x, torch.full_like(log_q, -math.inf), None)
    assert nowhere["weighted_error"] == math.inf


def test_peers_get_the_scores_that_the_default_fit_took(
    gaussian: Gaussian, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Process:
        def __init__(self, *_: Any) -> None: ...
        def __enter__(self) -> Process:
            return self

        def __exit__(self, *_: object) -> None: ...
        def ask(self, **request: Any) -> dict[str, Any]:
            asked.append(request)
            return {"metrics": {}, "scores": 1, "seconds": 0.0, "ended": "diverged"}

    monkeypatch.setattr(peers_fits, "Worker", Process)
    config = {"posterior": "a"}
    ours, theirs = peers_fits.execute([Run("auto", 3, config), Run(PEER, 3, config)])
    assert ours.metrics["error"] < 0.05
    assert asked == [{"posterior": "a", "peer": PEER, "seed": 3, "budget": ours.score_calls}]
    assert theirs.ended == "diverged"
    assert not list(peers_fits.execute([Run("auto", 3, config)]))[1:]
    assert len(asked) == 1


def test_a_library_that_is_missing_is_named_with_its_extra(
    gaussian: Gaussian, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: Any) -> None:
        raise ImportError("No module named 'jax'")

    monkeypatch.setitem(peers_worker.PEERS, PEER, absent)
    answer = peers_worker.answer({"posterior": "a", "peer": PEER, "seed": 0, "budget": 10})
    assert "lab[peers]" in answer["error"]

    def broken(*_: Any) -> None:
        raise FloatingPointError("NaN")

    monkeypatch.setitem(peers_worker.PEERS, PEER, broken)
    answer = peers_worker.answer({"posterior": "a", "peer": PEER, "seed": 0, "budget": 10})
    assert (answer["ended"], answer["metrics"]) == ("diverged: NaN", {})


@pytest.mark.slow
@pytest.mark.parametrize("peer", peers_methods.PEERS)
def test_a_peer_keeps_its_budget_and_comes_near_a_gaussian(gaussian: Gaussian, peer: str) -> None:
    for name in ("jax", "numpyro", "blackjax", "pymc", "pymc_extras"):
        pytest.importorskip(name)
    peers_worker._prepare()
    answer = peers_worker.answer({"posterior": "a", "peer": peer, "seed": 0, "budget": 3000})
    if "convergence" not in peer:
        assert answer["scores"] <= 3000
    assert answer["metrics"]["weighted_error"] < 0.2


@pytest.mark.slow
def test_the_callbacks_have_our_values_and_scores() -> None:
    jax, pytensor = pytest.importorskip("jax"), pytest.importorskip("pytensor")
    jax.config.update("jax_enable_x64", True)
    target = Gaussian.random(3, seed=1)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    value, score = target.log_prob_and_score(x)
    density = CountedDensity(target)
    found = jax.jit(jax.vmap(jax.value_and_grad(jax_density(density))))(x.numpy())
    assert np.asarray(found[0]) == pytest.approx(value.numpy(), abs=1e-12)
    assert np.asarray(found[1]) == pytest.approx(score.numpy(), abs=1e-12)
    assert density.scores == 4
    point = pytensor.tensor.dvector()
    out = pytensor_density(density)(point)
    both = pytensor.function([point], [out, pytensor.grad(out, point)])(x[0].numpy())
    assert float(both[0]) == pytest.approx(float(value[0]), abs=1e-12)
    assert both[1] == pytest.approx(score[0].numpy(), abs=1e-12)
    assert density.scores == 5

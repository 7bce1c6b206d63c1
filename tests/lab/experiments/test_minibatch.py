"""minibatch-logistic: its data, the exact posterior, its rules, and our arms at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayescore_lab.engine import Run
from bayescore_lab.engine.records import Record, Records
from bayescore_lab.experiments.posteriordb import minibatch_fits
from bayescore_lab.experiments.posteriordb.minibatch import EXPERIMENT, OURS, PEERS

ROWS, DIM = 4000, 7


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "cache"))
    minibatch_fits.exact.cache_clear()


def record(method: str, mean: float, sd: float, passes: float) -> Record:
    status = {"state": "done", "ended": "ok"}
    metrics = {"mean_error": mean, "sd_error": sd, "passes": passes, "search_passes": 0.0}
    return Record("x", method, method, 0, {}, metrics, {}, 10, 1.0, status, "", {}, {}, "")


def test_data_are_the_same_in_every_call_and_correlated(tmp_path: Path, monkeypatch) -> None:
    first = minibatch_fits.data_file(ROWS, DIM).read_bytes()
    monkeypatch.setenv("BAYESCORE_CACHE", str(tmp_path / "another"))
    assert minibatch_fits.data_file(ROWS, DIM).read_bytes() == first
    table = torch.frombuffer(bytearray(first), dtype=torch.float32).reshape(ROWS, DIM + 1)
    assert (table[:, 0] == 1).all()
    assert set(table[:, -1].tolist()) == {0.0, 1.0}
    assert torch.linalg.eigvalsh(table[:, 1:-1].T.cov())[0] < 0.1


def test_the_exact_mean_is_that_of_importance_sampling() -> None:
    mean, sd = minibatch_fits.exact(400, DIM)
    table = minibatch_fits._table(minibatch_fits.data_file(400, DIM), 400, DIM).double()
    noise = torch.randn(40_000, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def log_density(b: torch.Tensor) -> torch.Tensor:
        logits = b @ table[:, :-1].mT
        like = (table[:, -1] * logits - torch.nn.functional.softplus(logits)).sum(-1)
        return like - 0.5 * (b / minibatch_fits.PRIOR_SD).square().sum(-1)

    x = mean.clone().requires_grad_()
    H = torch.autograd.functional.hessian(lambda b: log_density(b.unsqueeze(0))[0], x.detach())
    factor = torch.linalg.cholesky(1.2 * torch.linalg.inv(-H))
    draws = mean + noise @ factor.mT
    weights = (log_density(draws) + 0.5 * noise.square().sum(-1)).softmax(-1)
    true = weights @ draws
    assert ((mean - true).abs() / sd).max() < 0.06
    assert (((weights @ (draws - true).square()).sqrt() / sd).log().abs()).max() < 0.1


@pytest.mark.parametrize("method", OURS)
def test_our_arms_count_every_row_and_are_near_the_exact_posterior(method: str) -> None:
    config = {"rows": ROWS, "dim": DIM, "batch_size": 100, "steps": 50, "peer_batch": 100, "passes": 1}
    (outcome,) = minibatch_fits.execute([Run(method, 0, config)])
    assert outcome.metrics["mean_error"] < 0.1
    assert outcome.metrics["sd_error"] < 0.1
    assert outcome.metrics["passes"] > outcome.metrics["anchor_passes"] > 1


def test_a_peer_that_is_accurate_with_fewer_passes_is_told() -> None:
    ours = record("anchored, full", 0.01, 0.01, 8.0)
    worse = [record(peer, 0.3, 0.2, 20.0) for peer in PEERS]
    sooner = record("NumPyro, full", 0.01, 0.01, 5.0)

    def judged(*records: Record) -> str | None:
        return EXPERIMENT.claims[0].rule.judge(Records(records)).verdict

    assert judged(ours, *worse) == "reproduced"
    assert judged(ours, sooner, *worse[1:]) == "partly"
    assert judged(record("anchored, full", 0.2, 0.01, 8.0), *worse) == "not reproduced here"
    assert judged(ours) is None
    (table,) = EXPERIMENT.tables(Records([ours, *worse]))
    assert table.rows[0][:4] == ["anchored, full", 0.01, 0.01, 8.0]

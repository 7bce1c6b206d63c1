"""Runs on a Ray cluster leave the records of the local pool, whoever is killed on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from toy_tools import finish, results, start_toy

import bayescore as bs

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def installed() -> None:
    pytest.importorskip("ray")


def reproduce(toy: str, profile: str, out: Path, *more: str) -> Any:
    words = ("--profile", profile, "--jobs", "2", "--out", str(out))
    return start_toy("reproduce", toy, *words, *more)


def recorded(out: Path, toy: str = "toy") -> dict[str, Any]:
    return results(out / toy / "records.jsonl")


def ray_workers(process: Any) -> list[int]:
    """The worker processes of the cluster that a process has started, which execute something."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = entry.read_bytes().decode(errors="replace")
            parents = ancestors(int(entry.parent.name))
        except (OSError, IndexError):
            continue
        if title.startswith("ray::_executed") and process.pid in parents:
            found.append(int(entry.parent.name))
    return found


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


@pytest.mark.parametrize("toy", ["toy", "toy-fits"])
def test_a_cluster_gives_the_records_of_the_local_pool(toy: str, tmp_path: Path) -> None:
    for name, more in (("local", ()), ("ray", ("--engine", "ray"))):
        code, _, errors = finish(reproduce(toy, "quick", tmp_path / name, *more), timeout=600)
        assert code == 0, errors
    assert recorded(tmp_path / "ray", toy) == recorded(tmp_path / "local", toy)


def test_a_cluster_that_runs_already_is_used_by_its_address(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    assert finish(reproduce("toy", "quick", tmp_path / "local"), timeout=600)[0] == 0
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        where = ("--engine", "ray", "--address", cluster.address)
        process = start_toy("reproduce", "toy", "--profile", "quick", "--out", str(tmp_path / "ray"), *where)
        code, _, errors = finish(process, timeout=600)
        assert code == 0, errors
        assert all(node.any_processes_alive() for node in cluster.list_all_nodes())  # it is not ended
    finally:
        cluster.shutdown()
    assert recorded(tmp_path / "ray") == recorded(tmp_path / "local")


REAL = {"gaussian": (), "linear-gaussian": (), "mnist-tuning": ("--methods", "Plain,ADVI")}


@pytest.mark.parametrize("name", REAL)
def test_experiments_of_the_paper_have_the_same_records_on_a_cluster(name: str, tmp_path: Path) -> None:
    """Two whole quick profiles, and trials of a tuning: its runs are runs like any other."""
    if name == "mnist-tuning" and not os.environ.get("BAYESCORE_DATA"):
        pytest.skip("images of MNIST are read from BAYESCORE_DATA")
    for engine in ("local", "ray"):
        words = ("reproduce", name, *REAL[name], "--profile", "quick", "--jobs", "2", "--engine", engine)
        command = [
            sys.executable,
            "-c",
            "from bayescore.cli import main; main()",
            *words,
            "--out",
            str(tmp_path / engine),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
        assert done.returncode == 0, done.stderr
    found = recorded(tmp_path / "ray", name)
    assert found
    assert found == recorded(tmp_path / "local", name)


def test_a_killed_worker_and_a_killed_driver_cost_no_record_and_repeat_none(tmp_path: Path) -> None:
    finish(reproduce("toy", "slower", tmp_path / "local"), timeout=600)
    for victim in ("driver", "worker"):
        process = reproduce("toy", "slower", tmp_path / "ray", "--engine", "ray")
        end = time.monotonic() + 300
        while not (busy := ray_workers(process)) and time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
        assert busy
        time.sleep(1)
        os.kill(process.pid if victim == "driver" else busy[0], signal.SIGKILL)
        code, _, errors = finish(process, timeout=600)
        assert code == (-signal.SIGKILL if victim == "driver" else 0), errors
    assert recorded(tmp_path / "ray") == recorded(tmp_path / "local")


def test_fits_on_a_cluster_are_those_of_this_process() -> None:
    target, method = bs.targets.Gaussian.random(dim=3, seed=0), bs.methods.BaM()
    family = bs.families.FullGaussian.init(3)
    here, there = (
        bs.fit_many(target, family, method, seeds=[0, 1], steps=20, engine=engine, progress=False)
        for engine in ("local", "ray")
    )
    for one, two in zip(here, there, strict=True):
        assert all(
            a.equal(b)
            for a, b in zip(one.family.parameters().values(), two.family.parameters().values(), strict=True)
        )


def test_engines_are_named() -> None:
    with pytest.raises(ValueError, match="no engine called 'spark'"):
        bs.fit_many(bs.targets.Gaussian.random(dim=3), seeds=[0], engine="spark")

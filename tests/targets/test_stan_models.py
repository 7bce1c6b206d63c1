"""The four posteriors written in torch against Stan programs of our own; costs of a call; real compiles."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bayescore.targets.posterior_db import NATIVE, posteriordb
from bayescore.targets.stan import Stan

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the PATH"),
]

PROGRAMS = Path(__file__).parent / "stan"
DATA = os.environ.get("BAYESCORE_DATA")
real = pytest.mark.skipif(
    not DATA or not Path(DATA, "posteriordb").is_dir(), reason="BAYESCORE_DATA holds no folder posteriordb"
)
POSTERIORS = {
    "diamonds": "diamonds-diamonds",
    "arK": "arK-arK",
    "gp_pois_regr": "gp_pois_regr-gp_pois_regr",
    "low_dim_gauss_mix": "low_dim_gauss_mix-low_dim_gauss_mix",
}


@real
@pytest.mark.parametrize("propto", [False, True])
@pytest.mark.parametrize("model", sorted(NATIVE))
def test_native_and_stan_agree_in_density_and_score(model: str, propto: bool) -> None:
    native = posteriordb(POSTERIORS[model], propto=propto)
    stan = posteriordb(POSTERIORS[model], program=PROGRAMS / f"{model}.stan", propto=propto)
    assert native.names == stan.names
    rng = torch.Generator().manual_seed(0)
    x = native.reference_points[torch.randint(10_000, (100,), generator=rng)]
    if model != "gp_pois_regr":  # far out its Cholesky factor magnifies rounding, and both are wrong alike
        x = torch.cat([x[:50], torch.randn(50, native.dim, generator=rng, dtype=torch.float64)])
    value, score = stan.log_prob_and_score(x)
    torch.testing.assert_close(native.log_prob(x), value, rtol=1e-8, atol=0)
    scale = score.abs().amax(-1, keepdim=True)
    assert ((native.score(x) - score).abs() / scale).max() < 1e-6


@real
@pytest.mark.parametrize("model", ["diamonds", "arK", "low_dim_gauss_mix"])
def test_native_and_stan_place_the_reference_draws_alike(model: str) -> None:
    native = posteriordb(POSTERIORS[model])
    stan = posteriordb(POSTERIORS[model], program=PROGRAMS / f"{model}.stan")
    torch.testing.assert_close(native.reference_points, stan.reference_points)


@real
def test_reference_draws_that_lack_a_parameter_are_named() -> None:
    stan = posteriordb(POSTERIORS["gp_pois_regr"], program=PROGRAMS / "gp_pois_regr.stan")
    with pytest.raises(
        ValueError, match="do not determine its parameters: the parameter 'f_tilde' is missing"
    ):
        _ = stan.reference_points


def ar(lags: int) -> Stan:
    y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Stan(PROGRAMS / "arK.stan", {"K": lags, "T": 60, "y": y}, threads=1)


def best(seconds, repeats: int = 30) -> float:
    return min(seconds() for _ in range(repeats))


def test_a_gradient_costs_at_most_ten_microseconds_beyond_a_loop_in_c() -> None:
    """At 10 dimensions, one draw per call and 4000; processor time, so that a busy machine can be used."""
    target = ar(8)
    assert target.dim == 10
    x = 0.1 * torch.randn(4000, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loop = best(lambda: target.model.seconds(x[0].clone(), 200)) / 200

    def cost(points: torch.Tensor, times: int) -> float:
        def once() -> float:
            began = time.thread_time()
            for _ in range(times):
                target.log_prob_and_score(points)
            return time.thread_time() - began

        return best(once) / times / len(points)

    one, many = cost(x[:1].clone(), 200), cost(x, 1)
    assert one - loop < 10e-6
    assert many - loop < 1e-6


def test_two_processes_compile_a_new_program_once(tmp_path: Path) -> None:
    program = tmp_path / "normal.stan"
    program.write_text("parameters { real x; }\nmodel { x ~ normal(0, 1); }\n")
    code = (
        "import logging, sys, torch; logging.basicConfig(level='INFO')\n"
        "from bayescore.targets.stan import Stan\n"
        "t = Stan(sys.argv[1], cache_dir=sys.argv[2])\n"
        "assert t.score(torch.ones(1, dtype=torch.float64)) == -1\n"
    )
    command = [sys.executable, "-c", code, str(program), str(tmp_path / "cache")]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=900)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert "".join(said).count("compiled normal.stan in") == 1
    assert "another process is making" in "".join(said)

"""PosteriorDB folders, and the four posteriors that are written in torch."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Cauchy, Gamma, HalfCauchy, Normal, Poisson, StudentT

import bayescore as bs
from bayescore.targets.base import Target
from bayescore.targets.model import ConstrainedModel
from bayescore.targets.posterior_db import NATIVE, Folder, PosteriorDB, posteriordb

F64 = torch.float64


def synthetic(model: str, seed: int = 0) -> dict[str, Any]:
    """Data of the shape that the model takes."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng, dtype=F64)

    if model == "diamonds":
        X = torch.cat([torch.ones(60, 1, dtype=F64), 3 + normal(60, 5) @ normal(5, 5)], -1)
        return {"N": 60, "K": 6, "X": X.tolist(), "Y": (8 + X @ normal(6)).tolist(), "prior_only": 0}
    if model == "arK":
        return {"K": 3, "T": 50, "y": normal(50).cumsum(0).tolist()}
    if model == "gp_pois_regr":
        return {"N": 6, "x": [-10, -6, -2, 2, 6, 10], "k": [40, 12, 3, 9, 77, 33], "y": [0.0] * 6}
    both = torch.cat([-2.5 + normal(40), 2.5 + normal(30)])
    return {"N": 70, "y": both.tolist()}


@pytest.fixture(params=sorted(NATIVE))
def case(request: pytest.FixtureRequest) -> tuple[str, ConstrainedModel]:
    return request.param, NATIVE[request.param].from_data(synthetic(request.param))


def points(dim: int, *lead: int, seed: int = 0) -> Tensor:
    return 0.7 * torch.randn(*lead, dim, generator=torch.Generator().manual_seed(seed), dtype=F64)


# -- the native models ---------------------------------------------------------------------------


def test_scores_in_closed_form_are_those_of_autograd(case: tuple[str, ConstrainedModel]) -> None:
    _, model = case
    x = points(model.dim, 3, 4)
    value, expected = Target.log_prob_and_score(model, x)
    scale = expected.abs().amax(-1, keepdim=True)
    assert ((model.score(x) - expected).abs() / scale).max() < 1e-8
    both = model.log_prob_and_score(x)
    torch.testing.assert_close(both[0], value, rtol=0, atol=0)
    torch.testing.assert_close(both[1], model.score(x), rtol=0, atol=0)


def direct(model: str, data: dict[str, Any], p: dict[str, Tensor]) -> Tensor:
    """The density as the model is described, with torch's own distributions, for one draw."""
    d = {name: torch.as_tensor(value, dtype=F64) for name, value in data.items()}

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=F64)

    if model == "diamonds":
        X = d["X"][:, 1:] - d["X"][:, 1:].mean(0)
        prior = Normal(number(0), number(1)).log_prob(p["b"]).sum()
        prior = prior + StudentT(number(3), number(8), number(10)).log_prob(p["Intercept"])
        prior = prior + StudentT(number(3), number(0), number(10)).log_prob(p["sigma"]) + number(2).log()
        return prior + Normal(p["Intercept"] + X @ p["b"], p["sigma"]).log_prob(d["Y"]).sum()
    if model == "arK":
        y, K = d["y"], data["K"]
        mu = torch.stack([p["alpha"] + p["beta"] @ y[t - K : t].flip(0) for t in range(K, len(y))])
        wide = Normal(number(0), number(10))
        prior = wide.log_prob(p["alpha"]) + wide.log_prob(p["beta"]).sum()
        prior = prior + Cauchy(number(0), number(2.5)).log_prob(p["sigma"])
        torch.testing.assert_close(
            HalfCauchy(number(2.5)).log_prob(p["sigma"]) - number(2).log(),
            Cauchy(number(0), number(2.5)).log_prob(p["sigma"]),
        )
        return prior + Normal(mu, p["sigma"]).log_prob(y[K:]).sum()
    if model == "gp_pois_regr":
        squares = (d["x"][:, None] - d["x"]).square()
        cov = p["alpha"] ** 2 * (-squares / (2 * p["rho"] ** 2)).exp() + 1e-10 * torch.eye(
            len(squares), dtype=F64
        )
        f = torch.linalg.cholesky(cov) @ p["f_tilde"]
        prior = Gamma(number(25), number(4)).log_prob(p["rho"]) + Normal(number(0), number(2)).log_prob(
            p["alpha"]
        )
        prior = prior + Normal(number(0), number(1)).log_prob(p["f_tilde"]).sum()
        return prior + Poisson(f.exp()).log_prob(d["k"]).sum()
    wide = Normal(number(0), number(2))
    prior = wide.log_prob(p["mu"]).sum() + wide.log_prob(p["sigma"]).sum()
    prior = prior + Beta(number(5), number(5)).log_prob(p["theta"])
    weights = torch.stack([p["theta"], 1 - p["theta"]]).log()
    return prior + (weights + Normal(p["mu"], p["sigma"]).log_prob(d["y"][:, None])).logsumexp(-1).sum()


def test_densities_are_those_of_the_description(case: tuple[str, ConstrainedModel]) -> None:
    name, model = case
    for x in points(model.dim, 10):
        expected = direct(name, synthetic(name), model.constrain(x)) + model.log_jacobian(x)
        torch.testing.assert_close(model.log_prob(x), expected, rtol=1e-9, atol=1e-9)


def test_propto_drops_a_constant_and_nothing_else(case: tuple[str, ConstrainedModel]) -> None:
    name, model = case
    short = NATIVE[name].from_data(synthetic(name), propto=True)
    x = points(model.dim, 5)
    difference = model.log_prob(x) - short.log_prob(x)
    torch.testing.assert_close(difference, difference[:1].expand(5), rtol=1e-9, atol=1e-9)
    # each model sums its data anew, which BLAS may round otherwise
    torch.testing.assert_close(model.score(x), short.score(x), rtol=1e-12, atol=0.0)
    assert (float(difference[0].abs()) < 1e-9) == (name == "diamonds")


def test_hessian_products_are_derivatives_of_the_score(case: tuple[str, ConstrainedModel]) -> None:
    _, model = case
    x, v = points(model.dim, 4), points(model.dim, 4, seed=1)
    h = 1e-6
    numeric = (model.score(x + h * v) - model.score(x - h * v)) / (2 * h)
    scale = numeric.abs().amax(-1, keepdim=True)
    assert ((model.hessian_product(x, v) - numeric).abs() / scale).max() < 1e-5


def test_parameters_lead_back_to_the_point(case: tuple[str, ConstrainedModel]) -> None:
    _, model = case
    x = points(model.dim, 2, 3)
    torch.testing.assert_close(model.unconstrain(model.constrain(x)), x)


def test_latent_noise_is_found_from_the_latent_function() -> None:
    model = NATIVE["gp_pois_regr"].from_data(synthetic("gp_pois_regr"))
    x = points(model.dim, 5)
    values = model.to_posterior(x)["posterior"]
    assert set(values) == {"rho", "alpha", "f_tilde", "f"}
    del values["f_tilde"]
    torch.testing.assert_close(model.unconstrain(values), x, rtol=1e-5, atol=1e-5)


def test_a_kernel_without_a_cholesky_factor_is_a_rejected_draw() -> None:
    model = NATIVE["gp_pois_regr"].from_data(synthetic("gp_pois_regr"))
    x = points(model.dim, 3)
    x[1, 1] = 400.0  # alpha^2 overflows
    assert model.log_prob(x).isfinite().tolist() == [True, False, True]
    assert model.score(x).isfinite().all(-1).tolist() == [True, False, True]


# -- folders -------------------------------------------------------------------------------------


def write_zip(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(path.name.removesuffix(".zip"), json.dumps(content))


def write_folder(root: Path, original: bool) -> Path:
    """A small folder, in the layout of the database itself or in the flat one."""
    base = root / "posterior_database" if original else root
    (base / "posteriors").mkdir(parents=True)
    entries = {
        "small-arK": {"model_name": "arK", "data_name": "small", "reference_posterior_name": "small-arK"},
        "small-other": {"model_name": "other", "data_name": "small", "reference_posterior_name": None},
        "lost-arK": {"model_name": "arK", "data_name": "lost", "reference_posterior_name": None},
    }
    for name, entry in entries.items():
        (base / "posteriors" / f"{name}.json").write_text(json.dumps({"name": name, **entry}))
    write_zip(base / ("data/data" if original else "data") / "small.json.zip", synthetic("arK"))
    columns = ["alpha", "beta[1]", "beta[2]", "beta[3]", "sigma"]
    chains = [{c: [i + chain + 0.5, i + chain + 1.5] for i, c in enumerate(columns)} for chain in range(2)]
    draws = "reference_posteriors/draws/draws" if original else "reference_draws"
    write_zip(base / draws / "small-arK.json.zip", chains)
    return root


@pytest.fixture(params=[True, False], ids=["original", "flat"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_folder(tmp_path / "db", request.param)


def test_a_posterior_comes_with_density_data_and_reference_draws(folder: Path) -> None:
    target = posteriordb("small-arK", folder)
    assert isinstance(target, PosteriorDB)
    assert target.dim == 5
    assert target.names == ["alpha", "beta[1]", "beta[2]", "beta[3]", "sigma"]
    assert target.data["K"] == 3
    assert target.reference_draws["beta"].shape == (2, 2, 3)
    assert target.reference_draws["beta"][1, 0].tolist() == [2.5, 3.5, 4.5]
    assert target.reference_points.shape == (4, 5)
    torch.testing.assert_close(target.reference_points[0, -1].exp(), torch.tensor(4.5, dtype=F64))
    x = points(5, 3)
    torch.testing.assert_close(
        target.score(x), NATIVE["arK"].from_data(synthetic("arK")).score(x), rtol=1e-12, atol=0.0
    )
    assert "arK" in repr(target)


def test_it_is_a_target_to_fit(folder: Path) -> None:
    target = posteriordb("small-arK", folder)
    fit = bs.fit(target, bs.families.FullGaussian.init(5), bs.methods.BaM(), steps=50, progress=False)
    assert fit.elbo is not None
    assert set(target.to_posterior(fit.family.sample(10, seed=0))["posterior"]) == {"alpha", "beta", "sigma"}


def test_the_folder_is_found_by_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAYESCORE_DATA", str(folder.parent))
    folder.rename(folder.parent / "posteriordb")
    assert Folder().names == ["lost-arK", "small-arK", "small-other"]
    monkeypatch.delenv("BAYESCORE_DATA")
    with pytest.raises(ValueError, match="give path= or set BAYESCORE_DATA"):
        posteriordb("small-arK")


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no posterior called 'smal-arK'; did you mean 'small-arK'"):
        posteriordb("smal-arK", folder)
    with pytest.raises(ValueError, match="holds no program of other; pass your own with program="):
        posteriordb("small-other", folder)
    with pytest.raises(FileNotFoundError, match="holds no data of lost-arK"):
        posteriordb("lost-arK", folder)
    with pytest.raises(FileNotFoundError, match="is not a PosteriorDB folder"):
        posteriordb("small-arK", tmp_path / "nowhere")
    assert Folder(folder)["small-other"].program is None
    assert not Folder(folder)["small-other"].has_reference


def test_a_folder_without_reference_draws_says_so(folder: Path) -> None:
    for file in folder.rglob("small-arK.json.zip"):
        file.unlink()
    target = posteriordb("small-arK", folder)
    with pytest.raises(ValueError, match="no reference draws of small-arK"):
        _ = target.reference_draws


def test_a_damaged_file_is_named(folder: Path) -> None:
    (file,) = folder.rglob("small.json.zip")
    file.write_bytes(b"PK")
    with pytest.raises(ValueError, match=r"small\.json\.zip is not a whole zip file"):
        posteriordb("small-arK", folder)


def test_a_program_of_the_folder_is_found(folder: Path) -> None:
    base = Folder(folder).path
    place = base / ("models/stan" if base != folder else "programs")
    place.mkdir(parents=True)
    (place / "other.stan").write_text("parameters { real x }")
    assert Folder(folder)["small-other"].program == place / "other.stan"


# -- the real data -------------------------------------------------------------------------------

DATA = os.environ.get("BAYESCORE_DATA")
real = pytest.mark.skipif(
    not DATA or not Path(DATA, "posteriordb").is_dir(), reason="BAYESCORE_DATA holds no folder posteriordb"
)

# Log densities at u = 0 and at the mean of the reference draws, with all constants and without those of `~`.
CHECKS = {
    "diamonds-diamonds": ((-158833.379, 3285.560), (-158833.379, 3285.560)),
    "arK-arK": ((-225.087, 73.622), (-24.504, 274.205)),
    "gp_pois_regr-gp_pois_regr": ((-1033.074, -43.903), (-15.125, 974.045)),
    "low_dim_gauss_mix-low_dim_gauss_mix": ((-5043.158, -2104.381), (-5043.156, -2104.378)),
}


@real
@pytest.mark.parametrize("name", CHECKS)
def test_known_log_densities_are_reproduced(name: str) -> None:
    for propto, expected in zip((False, True), CHECKS[name], strict=True):
        target = posteriordb(name, propto=propto)
        where = torch.stack([torch.zeros(target.dim, dtype=F64), target.reference_points.mean(0)])
        assert target.log_prob(where).tolist() == pytest.approx(expected, abs=6e-4)


@real
@pytest.mark.parametrize("name", CHECKS)
def test_reference_draws_are_where_the_score_vanishes_on_average(name: str) -> None:
    """E[s(u)] = 0 and E[s_i(u) u_i] = -1 under the posterior: each mean within its own Monte Carlo error."""
    target = posteriordb(name)
    u = target.reference_points
    s = target.score(u)
    for terms, expected in ((s, 0.0), (s * (u - u.mean(0)), -1.0)):
        error = terms.std(0) / len(u) ** 0.5
        assert ((terms.mean(0) - expected).abs() / error).max() < 5


@real
@pytest.mark.parametrize("name", CHECKS)
def test_reference_points_are_those_computed_elsewhere(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    file = Path(DATA or "", "posteriordb", "unconstrained_reference.npz")
    if not file.is_file():
        pytest.skip("the folder holds no unconstrained_reference.npz")
    expected = torch.as_tensor(numpy.load(file)[name.partition("-")[2]])
    # L^-1 f magnifies rounding by the condition of L, about 1e5
    tolerance = 1e-4 if name.startswith("gp") else 1e-12
    torch.testing.assert_close(posteriordb(name).reference_points, expected, rtol=tolerance, atol=tolerance)

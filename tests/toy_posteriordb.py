"""A small PosteriorDB folder with posteriors that need no compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from bayescore.targets.posterior_db import posteriordb
from bayescore.targets.posterior_db.target import FURTHER, NATIVE
from file_damage import write_zip

__all__ = ["DATA", "load", "write_folder"]

SERIES = [0.3, 1.1, -0.4, 0.9, 2.2, -1.3, 0.5, 0.1, 1.7, -0.8]
DATA: dict[str, dict[str, Any]] = {
    "arK": {"K": 2, "T": 10, "y": SERIES},
    "blr": {
        "N": 5,
        "D": 2,
        "X": [[1.0, 2.0], [0.5, -1.0], [2.0, 0.1], [0.0, 1.0], [1.5, 1.5]],
        "y": SERIES[:5],
    },
    "diamonds": {"N": 4, "K": 2, "X": [[1, 2.0], [1, -1.0], [1, 0.1], [1, 3.0]], "Y": SERIES[:4]},
    "eight_schools_noncentered": {"J": 3, "y": [28, 8, -3], "sigma": [15, 10, 16]},
    "garch11": {"T": 10, "y": SERIES, "sigma1": 0.5},
    "gp_pois_regr": {"N": 3, "x": [-10, 0, 10], "k": [40, 3, 9], "y": [0.0] * 3},
    "gp_regr": {"N": 3, "x": [-10, 0, 10], "k": [40, 3, 9], "y": [0.3, 1.0, -1.0]},
    "logearn_interaction": {
        "N": 4,
        "earn": [5e4, 6e4, 2e4, 9e4],
        "height": [60, 70, 65, 72],
        "male": [0, 1, 0, 1],
    },
    "low_dim_gauss_mix": {"N": 10, "y": SERIES},
}


def columns(values: dict[str, torch.Tensor], chain: int) -> dict[str, list[float]]:
    found = {}
    for name, value in values.items():
        if value.dim() == 2:
            found[name] = value[chain].tolist()
        else:
            found |= {f"{name}[{i + 1}]": value[chain, :, i].tolist() for i in range(value.shape[2])}
    return found


def write_folder(root: Path) -> None:
    """A folder with a few posteriors, laid out as the database is."""
    for name in ("posteriors", "data", "reference_draws"):
        (root / name).mkdir()
    for model, data in DATA.items():
        target = (NATIVE.get(model) or FURTHER[model]).from_data(data)
        points = torch.randn(
            2, 5, target.dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64
        )
        values = target.to_posterior(0.3 * points)["posterior"]
        values.pop("theta_trans" if model.startswith("eight") else "f_tilde", None)
        description = {
            "name": f"small-{model}",
            "keywords": ["small"],
            "model_name": model,
            "data_name": model,
            "reference_posterior_name": f"small-{model}",
            "dimensions": dict.fromkeys(values, 1),
        }
        (root / "posteriors" / f"small-{model}.json").write_text(json.dumps(description, indent=2))
        write_zip(root / "data" / f"{model}.json.zip", json.dumps(data))
        draws = [columns(values, chain) for chain in range(2)]
        write_zip(root / "reference_draws" / f"small-{model}.json.zip", json.dumps(draws))


def load(folder: Path, model: str) -> None:
    """All that a user reads from a posterior."""
    target = posteriordb(f"small-{model}", folder)
    if target.has_reference:
        assert all(value.isfinite().all() for value in target.reference_draws.values())
        assert target.reference_points.shape[-1] == target.dim
    value, score = target.log_prob_and_score(torch.zeros(target.dim, dtype=torch.float64))
    assert value.shape == ()
    assert score.shape == (target.dim,)
    assert len(target.names) == target.dim

"""The trials of `mnist-tuning`: as many settings of every method."""

from __future__ import annotations

from typing import Any

__all__ = ["TRIALS"]

COLD = {"init_curvature": 2e-5, "temperature": 1e-7, "damping": 20.0}
AVERAGE = 0.5  # optim/base.py (3); SGLD averages the predictions of its states instead


def _trials(names: str, *values: tuple[Any, ...], **shared: Any) -> list[dict[str, Any]]:
    return [dict(zip(names.split(), value, strict=True)) | shared for value in values]


#: 12 settings of each method: the best of an earlier round of 24 without averages, seven with them, at the
#: higher rates that averages allow and the decays that go with these, and four around or beyond the best
TRIALS: dict[str, list[dict[str, Any]]] = {
    "Plain": [
        {"lr": 2e-4, "weight_decay": 20.0},
        *_trials(
            "lr weight_decay",
            (1e-3, 5.0),
            (1e-3, 10.0),
            (2e-3, 2.5),
            (2e-3, 5.0),
            (2e-3, 10.0),
            (4e-3, 2.5),
            (4e-3, 5.0),
            (2e-3, 15.0),
            (3e-3, 7.0),
            (3e-3, 10.0),
            (4e-3, 10.0),
            average=AVERAGE,
        ),
    ],
    # the flattest curvature is that of a prior_sd of 0.05, or 0.02 and 0.01, at 600 images
    "Ours, exact": [
        {"lr": 0.2, "prior_sd": 0.05, "weight_decay": 5e-3} | COLD,
        *_trials(
            "lr prior_curvature weight_decay",
            (1.0, 6.7e-8, 5e-3),
            (2.0, 6.7e-8, 2.5e-3),
            (2.0, 6.7e-8, 5e-3),
            (2.0, 6.7e-8, 1e-2),
            (4.0, 6.7e-8, 1.25e-3),
            (4.0, 6.7e-8, 2.5e-3),
            (8.0, 6.7e-8, 1.25e-3),
            (3.0, 6.7e-8, 4e-3),
            (2.0, 1.7e-6, 5e-3),
            (2.0, 4.2e-7, 5e-3),
            (4.0, 1.7e-6, 5e-3),
            average=AVERAGE,
            **COLD,
        ),
    ],
    "Ours, gradient": [
        trial | {"solver": "gradient", "temperature": 1e-6}
        for trial in [
            {"lr": 2.5e-5, "init_sd": 0.0015, "weight_decay": 15.0},
            *_trials(
                "lr init_sd weight_decay",
                (5e-4, 0.0015, 10.0),
                (5e-4, 0.0015, 20.0),
                (1e-3, 0.0015, 5.0),
                (1e-3, 0.0015, 10.0),
                (2e-3, 0.0015, 5.0),
                (1e-3, 0.006, 10.0),
                (5e-4, 0.006, 20.0),
                (1e-3, 0.006, 20.0),
                (1e-3, 0.01, 10.0),
                (1e-3, 0.01, 20.0),
                (2e-3, 0.006, 10.0),
                average=AVERAGE,
            ),
        ]
    ],
    "ADVI": [
        trial | {"sd_rate": 1.0, "prior_sd": 1.0}
        for trial in [
            {"lr": 7e-5, "init_sd": 7.5e-4, "weight_decay": 15.0},
            *_trials(
                "lr init_sd weight_decay",
                (1e-3, 0.0015, 5.0),
                (1e-3, 0.0015, 10.0),
                (2e-3, 0.0015, 5.0),
                (2e-3, 0.0015, 10.0),
                (4e-3, 0.0015, 2.5),
                (4e-3, 0.0015, 5.0),
                (2e-3, 0.006, 5.0),
                (4e-3, 0.0015, 10.0),
                (4e-3, 0.006, 5.0),
                (4e-3, 0.006, 10.0),
                (6e-3, 0.0015, 5.0),
                average=AVERAGE,
            ),
        ]
    ],
    "BaM, diagonal": [
        trial | {"init_curvature": 1.85, "temperature": 0.01}
        for trial in [
            {"lr": 0.35, "weight_decay": 3e-3},
            *_trials(
                "lr weight_decay",
                (0.35, 6e-3),
                (0.7, 3e-3),
                (0.7, 6e-3),
                (1.5, 3e-3),
                (1.5, 6e-3),
                (3.0, 1.5e-3),
                (3.0, 3e-3),
                (1.5, 8e-3),
                (1.5, 1e-2),
                (2.0, 6e-3),
                (3.0, 6e-3),
                average=AVERAGE,
            ),
        ]
    ],
    "MC-dropout": [
        {"lr": 3e-4, "p": 0.4, "weight_decay": 10.0},
        *_trials(
            "lr p weight_decay",
            (1e-3, 0.4, 5.0),
            (1e-3, 0.4, 10.0),
            (2e-3, 0.4, 5.0),
            (2e-3, 0.4, 10.0),
            (4e-3, 0.4, 5.0),
            (2e-3, 0.3, 5.0),
            (2e-3, 0.5, 5.0),
            (2e-3, 0.3, 10.0),
            (2e-3, 0.4, 7.0),
            (3e-3, 0.3, 10.0),
            (3e-3, 0.4, 7.0),
            average=AVERAGE,
        ),
    ],
    "SGLD": _trials(
        "lr weight_decay",
        (1e-4, 20.0),
        (1e-4, 40.0),
        (2e-4, 10.0),
        (2e-4, 20.0),
        (4e-4, 10.0),
        (4e-4, 20.0),
        (8e-4, 5.0),
        (8e-4, 10.0),
        (4e-4, 15.0),
        (4e-4, 30.0),
        (6e-4, 10.0),
        (6e-4, 20.0),
        preconditioned=True,
        temperature=1e-6,
        prior_sd=1.0,
    ),
    # its hess_init is temperature/(N sd^2), its weight_decay temperature/(N prior_sd^2)
    "IVON": [
        {"hess_init": 185.0} | trial
        for trial in [
            {"lr": 0.05, "weight_decay": 0.01},
            *_trials(
                "lr weight_decay",
                (0.1, 0.01),
                (0.2, 5e-3),
                (0.2, 0.01),
                (0.2, 0.02),
                (0.4, 2.5e-3),
                (0.4, 5e-3),
                (0.8, 2.5e-3),
                (0.4, 0.02),
                (0.4, 0.04),
                (0.8, 0.01),
                average=AVERAGE,
            ),
            {"lr": 0.4, "weight_decay": 0.02, "hess_init": 740.0, "average": AVERAGE},
        ]
    ],
}

"""Finding experiments: every module of a sub-package of `bayescore_lab.experiments` that names one.

A module of `bayescore_lab/experiments/<area>/` that defines `EXPERIMENT = Experiment(...)`, or `EXPERIMENTS`
for several, is found; there is no list to add it to.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType

from bayescore_lab.engine.declare import Experiment
from bayescore_lab.engine.plan import check_name

__all__ = ["find_experiments", "pick"]


def find_experiments(package: str = "bayescore_lab.experiments") -> dict[str, Experiment]:
    """Every experiment declared below `package`, by id, sorted."""
    found: dict[str, Experiment] = {}
    home: dict[str, str] = {}
    for module in _modules(package):
        for experiment in _declared(module):
            if found.get(experiment.id) is experiment:  # a module may import another's declaration
                continue
            if experiment.id in found:
                raise ValueError(
                    f"two experiments are called {experiment.id!r}: "
                    f"in {home[experiment.id]} and in {module.__name__}"
                )
            found[experiment.id] = experiment
            home[experiment.id] = module.__name__
    return dict(sorted(found.items()))


def pick(experiments: Mapping[str, Experiment], name: str) -> Experiment:
    """The experiment with this id; an error suggests the nearest one."""
    check_name("experiment", name, experiments)
    return experiments[name]


def _modules(package: str) -> Iterator[ModuleType]:
    for area in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if area.ispkg:
            yield (folder := importlib.import_module(area.name))
            for entry in pkgutil.iter_modules(folder.__path__, f"{area.name}."):
                yield importlib.import_module(entry.name)


def _declared(module: ModuleType) -> list[Experiment]:
    declared = [*getattr(module, "EXPERIMENTS", ())]
    if hasattr(module, "EXPERIMENT"):
        declared.append(module.EXPERIMENT)
    for experiment in declared:
        if not isinstance(experiment, Experiment):
            raise TypeError(
                f"{module.__name__} declares a {type(experiment).__name__}; expected an Experiment"
            )
    return declared

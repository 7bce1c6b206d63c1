"""The names of the unconstrained coordinates, in the order of the coordinates.

Stan lists the names of an array of vectors with the first index running fastest, but stores its coordinates
vector by vector. The true name of a coordinate is that of the first parameter entry that changes with it.
"""

from __future__ import annotations

import torch

from bayescore.targets.stan.library import Model
from bayescore.targets.stan.variables import Variable, split, variables_of

__all__ = ["coordinate_names"]


def coordinate_names(model: Model) -> list[str]:
    """One name per coordinate; Stan's own names if moving the coordinates does not distinguish them."""
    names, flat = model.names(0), model.names(1)
    for variable in variables_of(flat):
        mine = [i for i, name in enumerate(names) if split(name)[0] == variable.name]
        if len(variable.shape) > 1 and len(mine) > 1:
            found = _first_moved(model, variable, mine, flat)
            if sorted(found) == sorted(names[i] for i in mine):
                for i, name in zip(mine, found, strict=True):
                    names[i] = name
    return names


def _first_moved(model: Model, variable: Variable, coordinates: list[int], flat: list[str]) -> list[str]:
    """For each coordinate the name of the first entry (last index fastest) that it changes, "" if none."""
    points = torch.zeros(len(coordinates) + 1, model.dim, dtype=torch.float64)
    points[torch.arange(len(coordinates)) + 1, torch.tensor(coordinates)] = 0.5
    rows, _ = model.constrain(points, 0, 0)
    columns = range(variable.start, variable.start + variable.size)
    order = sorted(columns, key=lambda c: split(flat[c])[1])
    moved = (rows[1:] != rows[:1]).tolist()
    return [next((flat[c] for c in order if row[c]), "") for row in moved]

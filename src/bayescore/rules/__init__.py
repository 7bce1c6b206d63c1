"""Update rules: pure elementwise functions under numbered equations, called by `methods` and by `optim`.

A rule takes tensors that all have the same shape and returns new ones. It modifies nothing, draws nothing and
knows neither families nor networks. The draws of a step reach it as averages, `Draws` (rules/draws.py). Only
the slope statistics, four numbers per tensor (rules/curvature.py), are updated in place.
"""

from __future__ import annotations

from bayescore.rules.draws import Draws

__all__ = ["Draws"]

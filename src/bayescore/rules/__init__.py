"""Update rules: pure elementwise functions under numbered equations, called by `methods` and by `optim`.

A rule takes tensors of any one shape and returns new ones; it changes nothing, draws nothing and knows
neither families nor networks. Only the slope statistics, a few numbers per tensor (rules/curvature.py), are
updated in place. What the draws of a step have to say reaches it as `Draws` (rules/draws.py).
"""

from __future__ import annotations

from bayescore.rules.draws import Draws

__all__ = ["Draws"]

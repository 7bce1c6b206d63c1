"""Stan programs as targets: compiled once, cached, and evaluated at many draws per call."""

from __future__ import annotations

from bayescore.targets.stan.target import Stan

__all__ = ["Stan"]

"""Lets the tests of optimizers and networks import the small networks by their name."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent.parent / "optim"
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

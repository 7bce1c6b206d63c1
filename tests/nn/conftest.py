"""Lets the tests of training import the interrupted runs, and the small networks of the optimizers' tests."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "optim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

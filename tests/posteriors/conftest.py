"""Lets the tests of posteriors import the small networks of the optimizers' tests."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "optim"
if str(FOLDER) not in sys.path:
    sys.path.insert(0, str(FOLDER))

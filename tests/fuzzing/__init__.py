"""What `tests/fuzz.py` mutates: files (`files`), commands (`commands`), and how it judges (`judging`)."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (TESTS, TESTS / "lab", TESTS / "optim"):  # where the toys and the small networks are
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

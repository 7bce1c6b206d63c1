"""Lets every test import the shared cases by their name, and keeps hypothesis deterministic."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

# The same cases in every run: a failure on another machine can be repeated here.
settings.register_profile("bayescore", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("bayescore")

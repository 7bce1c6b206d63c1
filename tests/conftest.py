"""Lets every test import the shared cases by their name, and makes every test repeatable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

HERE = Path(__file__).parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

# The same cases in every run: a failure on another machine can be repeated here.
settings.register_profile("bayescore", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("bayescore")


@pytest.fixture(autouse=True)
def _seed_of_torch():
    """Code that seeds nothing, as that of the documentation, gives the same numbers in every run."""
    torch.manual_seed(0)

"""The first mutations of every loader and command; `make fuzz` makes 10,000, and 200 as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import SURFACES, Fuzz

COUNT = 300
COMPILED = "Stan models"  # takes half a minute of compiling


@pytest.mark.parametrize("surface", sorted(SURFACES.keys() - {COMPILED}))
def test_mutations_are_refused_by_a_sentence_or_read_as_they_are(surface: str, tmp_path: Path) -> None:
    fuzz = Fuzz(1, tmp_path)
    for number in range(COUNT * SURFACES[surface].share // 100):
        fuzz.run(surface, number)
    assert not fuzz.failures, "\n".join(fuzz.failures)

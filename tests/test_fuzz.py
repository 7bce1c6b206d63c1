"""The first mutations of every loader and command; `make fuzz` makes 10,000, and 200 as processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import SURFACES, Fuzz, peak, reset_peak

COUNT = 300
FRESH = 400_000_000  # bytes of a process that has imported the library and done nothing
COMPILED = "Stan models"  # takes half a minute of compiling


@pytest.mark.parametrize("surface", sorted(SURFACES.keys() - {COMPILED}))
def test_mutations_are_refused_by_a_sentence_or_read_as_they_are(surface: str, tmp_path: Path) -> None:
    reset_peak()
    fuzz = Fuzz(1, tmp_path, max(0, peak() - FRESH))  # other tests of this process leave memory behind
    for number in range(COUNT * SURFACES[surface].share // 100):
        fuzz.run(surface, number)
    assert not fuzz.failures, "\n".join(fuzz.failures)

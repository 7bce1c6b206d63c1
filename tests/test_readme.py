"""README's first network predicts better than the same loop with AdamW, on average over seeds."""

from __future__ import annotations

import pytest

import first_network


def test_readme_network_beats_adamw_on_held_out_data():
    scores = first_network.compare(range(5))
    plain, ours = scores[:, 0, 0], scores[:, 1, 0]
    assert ours.mean() < plain.mean()
    assert (ours < plain).sum() > 2


def test_a_readme_that_has_changed_is_noticed():
    with pytest.raises(ValueError, match="once"):
        first_network.with_adamw("opt = SGD()\nprediction = 1")

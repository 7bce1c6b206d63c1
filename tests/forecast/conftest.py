"""One fitted forecaster for all tests that only read it."""

from __future__ import annotations

import pytest

from toy_series import hourly, small


@pytest.fixture(scope="session")
def fitted():
    return small(epochs=8).fit(hourly(600), progress=False)

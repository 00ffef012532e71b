"""Rules of all tests of optimizers: processes, and the one warning that most would raise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.processes import world

__all__ = ["world"]

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore that a precision has no effect on float32 and float64 parameters.

    test_warnings.py records this warning.
    """
    ignored = pytest.mark.filterwarnings("ignore:precision=.* has no effect")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(ignored)

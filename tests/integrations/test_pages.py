"""The how-to pages about other projects run as they stand there."""

from __future__ import annotations

import pytest

from tests.helpers.pages import run
from tests.integrations.packages import package
from tests.test_pages import WITH_PACKAGES


@pytest.mark.parametrize("page", WITH_PACKAGES)
def test_page(page: str) -> None:
    package(WITH_PACKAGES[page])
    assert run(page) > 0

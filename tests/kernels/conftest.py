"""What tests of kernels share."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture(params=[1, 5])
def threads(request: pytest.FixtureRequest) -> Any:
    """So many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)

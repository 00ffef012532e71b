"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """Set the number of threads, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def fresh_triton_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile anew: nothing is read of what Triton kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield

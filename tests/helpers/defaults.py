"""Other default devices and dtypes of torch than its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

# A device without values, on which nothing that a result depends on may be made; and dtypes.
DEFAULTS = [("meta", torch.float64), ("cpu", torch.bfloat16)]


@contextlib.contextmanager
def default(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Inside the `with` block factories of torch make tensors of this dtype on this device."""
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        with device:
            yield
    finally:
        torch.set_default_dtype(before)

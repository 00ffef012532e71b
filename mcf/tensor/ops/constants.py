"""Constants and numbers with all components of a tensor beside them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mcf.elementary import fixed
from mcf.tensor.creation import tensor
from mcf.tensor.tensor import MCFTensor


def constant(value: int, like: MCFTensor) -> MCFTensor:
    """A fixed-point number of `mcf.elementary.fixed` with the components of a tensor."""
    return tensor(fixed.to_fraction(value), like.terms, like.dtype, like.device)


def in_format(value: Any, like: MCFTensor) -> Any:
    """A number as the nearest expansion of a tensor's format; a tensor as it is."""
    if isinstance(value, Tensor):
        return value
    return tensor(value, like.terms, like.dtype, like.device)

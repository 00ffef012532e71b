"""The same as `mcf.tensor.shortcuts` for what integers on the host do with few numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.conversion import few_to
from mcf.tensor.registry import DIRECT
from mcf.tensor.shortcuts import counted, operator
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten

operator(aten.fmod.Tensor, 2)
operator(aten.remainder.Tensor, 2, also="__mod__")
operator(aten.floor_divide.default, 2, also="__floordiv__")


def _retyped(dtype: torch.dtype) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        found = few_to(x, dtype) if type(x) is MCFTensor else None
        return NotImplemented if found is None else found

    return counted(call, 1)


DIRECT[Tensor.float], DIRECT[Tensor.double] = _retyped(torch.float32), _retyped(torch.float64)
DIRECT[Tensor.half], DIRECT[Tensor.bfloat16] = _retyped(torch.float16), _retyped(torch.bfloat16)

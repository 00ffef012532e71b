"""The same as `mcf.tensor.shortcuts` for what integers on the host do with few numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.conversion import few_to
from mcf.tensor.registry import DIRECT, OPERATORS
from mcf.tensor.shortcuts import counted, forms, operator, register
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
DIRECT[Tensor.long] = _retyped(torch.int64)


def _frexp(x: Any) -> Any:
    if type(x) is not MCFTensor:
        return NotImplemented
    kind: Any = torch.return_types.frexp
    return kind(OPERATORS[aten.frexp.Tensor](x))


register(counted(_frexp, 1), *forms("frexp"))
_whole = DIRECT[torch.round]
_DECIMALS = {"decimals"}


def _round(*args: Any, **kwargs: Any) -> Any:
    if kwargs.keys() != _DECIMALS:
        return _whole(*args, **kwargs)
    if len(args) != 1 or type(args[0]) is not MCFTensor or type(kwargs["decimals"]) is not int:
        return NotImplemented
    return OPERATORS[aten.round.decimals](*args, **kwargs)


register(_round, *forms("round"))

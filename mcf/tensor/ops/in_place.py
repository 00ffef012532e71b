"""Operators that write into an argument: the functional one, whose result is copied there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.tensor.registry import (
    DERIVED,
    UnsupportedError,
    is_in_place,
    readable,
    run,
    unsupported,
)
from mcf.tensor.tensor import MCFTensor


def _functional(func: OpOverload) -> OpOverload:
    """The operator without the trailing underscore, of the same overload name."""
    name = func._schema.name.split("::")[1].removesuffix("_")
    packet = getattr(torch.ops.aten, name, None)
    overload = getattr(packet, func._overloadname, None)
    if overload is None:
        raise unsupported(func)
    return overload  # type: ignore[no-any-return]


def in_place(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator that writes to its first argument."""
    if "out" in kwargs or not is_in_place(func):
        return NotImplemented
    target = args[0]
    if not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{readable(func)} would round its result to a plain tensor; use the form that "
            "returns a new tensor"
        )
    result = run(_functional(func), args, kwargs)
    if result.shape != target.shape:
        raise RuntimeError(
            f"{readable(func)}: the result has shape {list(result.shape)} and cannot be written "
            f"into a tensor of shape {list(target.shape)}"
        )
    torch.ops.aten.copy_.default(target, result)
    return target


def into(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operator with `out=`."""
    if "out" not in kwargs:
        return NotImplemented
    target = kwargs["out"]
    packet = func.overloadpacket
    result = packet(*args, **{k: v for k, v in kwargs.items() if k != "out"})
    if not isinstance(target, Tensor) or not isinstance(result, Tensor):
        raise unsupported(func)
    if isinstance(result, MCFTensor) and not isinstance(target, MCFTensor):
        raise UnsupportedError(
            f"{readable(func)} would round its result to `out`, a plain tensor; give an expansion "
            "tensor, or copy the result, which rounds"
        )
    if result.shape != target.shape:
        raise RuntimeError(
            f"{readable(func)}: `out` has shape {list(target.shape)}; allowed is the result's, "
            f"{list(result.shape)}"
        )
    torch.ops.aten.copy_.default(target, result)
    return target


DERIVED.extend((into, in_place))

"""Operators on plain tensors and looks at numbers as native calls among a function's steps."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.bit_functions import spread
from mcf.kernels.sequence import Bound
from mcf.kernels.taking import expected, taken, takes
from mcf.tensor.tape_tensors import tensors

aten = torch.ops.aten

# What makes the calls, once the memory of all steps is known; None where there are none after all.
Native = Callable[[], Sequence[Bound] | None]


def native(func: Any, args: Any, kwargs: Any, out: Tensor) -> Native | None:
    """What makes the native calls that an operator on plain tensors is, or None."""
    name = func._schema.name.removeprefix("aten::")
    if kwargs or not all(type(t) is Tensor and t.device == _cpu for t in tensors((args, out))):
        return None
    if name in _OF_BITS:
        of = args[1:] if name == "where" else args
        like = [t for t in of if isinstance(t, Tensor)]
        # Numbers beside a tensor of the operands' dtype are of that.
        dtype = out.dtype if name == "where" else like[0].dtype
        if dtype is torch.int64 and not all(type(t) in (Tensor, int) for t in args):
            return None
        given = [t if isinstance(t, Tensor) else _number(t, dtype) for t in args]
        return functools.partial(spread, name, given, out)
    if func is aten.gather.default:
        x, dim, index = args[:3]
        along, wraps = True, False
    elif func is aten.index_select.default:
        x, dim, index = args
        along, wraps = False, False
    elif func is aten.index.Tensor and sum(t is not None for t in args[1]) == 1:
        x, at = args
        [dim] = [k for k, t in enumerate(at) if t is not None]
        index, along, wraps = at[dim], False, True
    else:
        return None
    # Tensors of no dimensions count as vectors there.
    vectors = x.ndim if along else 1 if func is aten.index_select.default else index.ndim
    if not takes(x, index, out) or index.ndim != vectors:
        return None
    return functools.partial(_taking, x, dim % x.ndim, index, out, along=along, wraps=wraps)


_cpu = torch.device("cpu")
_OF_BITS = frozenset(
    "where ne eq all any bitwise_and bitwise_or bitwise_xor __and__ __or__".split()
)


def _number(value: Any, dtype: torch.dtype) -> Tensor:
    """A number as a tensor that stands for all of one."""
    return torch.tensor(value, dtype=dtype, device=_cpu)


def _taking(*given: Any, **named: Any) -> list[Bound]:
    return [taken(*given, **named)]


def look(x: Any, value: Any) -> Native | None:
    """What looks whether a tensor's one number is what it was, or None."""
    if value != value or type(x) is not Tensor or x.dtype not in _LOOKED_AT:
        return None
    # Whether a number is zero is not in its bits alone.
    if type(value) is bool and x.dtype is not torch.bool:
        return None
    x = x.detach()
    bits = int.from_bytes(x.numpy().tobytes(), sys.byteorder, signed=x.element_size() == 8)
    return lambda: [expected(x, bits)]


_LOOKED_AT = frozenset({torch.float64, torch.float32, torch.bool, torch.int64})

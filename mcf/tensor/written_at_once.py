"""Functions in place and with `out=` of those that are computed at once.

Formulas and products write where they are told; other results are copied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels.numba.runtime import team
from mcf.tensor.components import write
from mcf.tensor.launches import SMALL
from mcf.tensor.ops.arithmetic import addcdiv_into, addcmul_into, lerp_into
from mcf.tensor.product_plans import multiplied
from mcf.tensor.recorded import at_once, differentiated, watched, writable, written
from mcf.tensor.registry import DIRECT, STRAIGHT, WRITERS, forms
from mcf.tensor.shortcuts import OPERANDS, TENSORS
from mcf.tensor.tensor import COMPONENTS, MCFTensor
from mcf.tensor.writing import shares_part


def _put(target: Any, result: Any) -> bool:
    """Write a result into a tensor of its format, shape and device; whether it is one."""
    if type(result) is not MCFTensor:
        return False
    own, new = target.__dict__, result.__dict__
    first, other = own["_c0"], new["_c0"]
    if (own["_terms"], first.dtype, first.shape) != (new["_terms"], other.dtype, other.shape):
        return False
    if first.device != other.device:
        return False
    terms = own["_terms"]
    write(COMPONENTS[terms](own), COMPONENTS[terms](new))
    written(target)
    return True


def _usual(target: Any) -> bool:
    """Whether a result beside the target, copied to it, takes the least time."""
    return _plain(target) and target.__dict__["_c0"].numel() <= SMALL and writable(target)


def _plain(target: Any) -> bool:
    """Whether it is an expansion of components in memory."""
    return type(target) is MCFTensor and type(target.__dict__["_c0"]) is Tensor


def _in_place(direct: Callable[..., Any], name: str) -> Callable[..., Any]:
    writer = WRITERS.get(getattr(torch, name, None))

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if writer is not None and not kwargs and writer((x, *args), x):
            return x
        if not _usual(x) or shares_part(x, args):
            return NotImplemented
        return x if _put(x, direct(x, *args, **kwargs)) else NotImplemented

    return call


def _writer(direct: Callable[..., Any]) -> Callable[[tuple[Any, ...], Any], bool]:
    def write(args: tuple[Any, ...], out: Any) -> bool:
        if not _usual(out) or differentiated((out,)) or shares_part(out, args):
            return False
        result = at_once(direct, args, {})
        return result is not NotImplemented and _put(out, result)

    return write


def _direct_writer(
    function: Callable[..., bool], count: int, kinds: frozenset[type]
) -> Callable[[tuple[Any, ...], Any], bool]:
    """What writes by itself into a tensor: a function of that and of so many arguments."""

    def write(args: tuple[Any, ...], out: Any) -> bool:
        if len(args) != count or not kinds.issuperset(map(type, args)):
            return False
        if type(out) is not MCFTensor or not writable(out) or shares_part(out, args):
            return False
        if at_once(function, (out, *args), {}) is not True:
            return False
        written(out)
        return True

    return write


def _product_into(dims: tuple[int, int] | None) -> Callable[[Any, Any, Any], bool]:
    """What writes a product of operands of so many dimensions; None for any."""

    def write(out: Any, x: Any, y: Any) -> bool:
        if dims is not None and (x.dim(), y.dim()) != dims:
            return False
        return multiplied(x, y, out=out) is not None

    return write


def _each_in_place(function: Callable[[list[Tensor]], Any]) -> Callable[[tuple[Any, ...]], Any]:
    """What does the same to all components in one call, between which no interrupt comes.

    But in a forked child: torch asks its threads there, of which there are none.
    """

    def call(args: tuple[Any, ...]) -> Any:
        x: Any = args[0] if len(args) == 1 else None
        if team.forked() and not _usual(x):
            return NotImplemented
        if not _plain(x) or not x.__dict__["_c0"].is_contiguous() or watched():
            return NotImplemented
        if not writable(x) or differentiated((x,)):
            return NotImplemented
        own = x.__dict__
        function([*COMPONENTS[own["_terms"]](own)])
        written(x)
        return x

    return call


STRAIGHT[Tensor.zero_] = _each_in_place(torch._foreach_zero_)
for _function in (*forms("neg_"), *forms("negative_")):
    STRAIGHT[_function] = _each_in_place(torch._foreach_neg_)
WRITERS[torch.lerp] = _direct_writer(lerp_into, 3, OPERANDS)
WRITERS[torch.addcmul] = _direct_writer(addcmul_into, 3, TENSORS)
WRITERS[torch.addcdiv] = _direct_writer(addcdiv_into, 3, TENSORS)
# Whose results have the shape and the format of an argument, or are numbers.
_IN_PLACE = (
    "add sub mul div pow lerp addcmul addcdiv clamp clamp_min clamp_max neg square frac floor ceil "
    "round trunc exp log log1p sqrt rsqrt reciprocal sin cos tan atan sinh cosh hypot "
    "atan2 masked_fill"
).split()
_WITH_OUT = (
    "neg pow lerp addcmul addcdiv hypot atan2 clamp square frac dot mm mv bmm matmul outer inner "
    "sum mean prod amax amin"
).split()

for _name in _IN_PLACE:
    if hasattr(Tensor, _name + "_"):
        DIRECT[getattr(Tensor, _name + "_")] = _in_place(DIRECT[getattr(Tensor, _name)], _name)
for _name, _operator in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}.items():
    DIRECT[getattr(Tensor, f"__i{_name}__")] = DIRECT[getattr(Tensor, _operator + "_")]
for _name in _WITH_OUT:
    WRITERS.setdefault(getattr(torch, _name), _writer(DIRECT[getattr(torch, _name)]))


def _first(
    one: Callable[[tuple[Any, ...], Any], bool], other: Callable[[tuple[Any, ...], Any], bool]
) -> Callable[[tuple[Any, ...], Any], bool]:
    return lambda args, out: one(args, out) or other(args, out)


for _name, _dims in {"matmul": None, "mm": (2, 2), "mv": (2, 1), "bmm": (3, 3)}.items():
    _function = getattr(torch, _name)
    _one = _direct_writer(_product_into(_dims), 2, TENSORS)
    WRITERS[_function] = _first(_one, WRITERS[_function])

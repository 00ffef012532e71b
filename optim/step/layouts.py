"""Whether tensors are still of the types, dtypes, shapes and strides that were checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, eq, is_
from typing import Any

from torch import Tensor

Fit = Callable[..., bool]

_dtype, _device, _layout = map(attrgetter, ("dtype", "device", "layout"))


def watched(tensors: Sequence[Tensor]) -> Fit:
    """A function of as many objects: whether they are alike in all that a kernel depends on.

    All but the addresses: class, dtype, device, layout, shape, strides, lazy negation. It holds
    none of the tensors. Also False where an object is no tensor, and where a condition differs that
    changes no step, like `requires_grad`.
    """
    guards = _guards()
    if guards is None:
        return compared(tensors)
    sizes = [list(t.shape) for t in tensors]
    strides = [list(t.stride()) for t in tensors]
    made = guards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Fit = made.check
    return check


def _guards() -> Any:
    """The comparison that torch.compile's guards are made of: one call for thousands of tensors.

    Not public; None where torch has it no more.
    """
    try:
        from torch._C._dynamo.guards import TensorGuards
    except ImportError:
        return None
    return TensorGuards


def compared(tensors: Sequence[Tensor]) -> Fit:
    """The same through public functions, several times as slow."""
    types, dtypes, layouts = (list(map(f, tensors)) for f in (type, _dtype, _layout))
    devices, sizes, strides = (list(map(f, tensors)) for f in (_device, Tensor.size, Tensor.stride))

    def fit(*found: Any) -> bool:
        # One after the other, as each makes sense where those before hold.
        return (
            all(map(is_, map(type, found), types))
            and all(map(is_, map(_layout, found), layouts))
            and all(map(is_, map(_dtype, found), dtypes))
            and all(map(eq, map(_device, found), devices))
            and all(map(eq, map(Tensor.size, found), sizes))
            and all(map(eq, map(Tensor.stride, found), strides))
            and not any(map(Tensor.is_neg, found))
        )

    return fit

"""Views: each component is viewed, memory is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from mcf.tensor.ops.componentwise import register, register_views
from mcf.tensor.registry import implements
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _in_place(func: OpOverload) -> None:
    """Register an operator that changes the shape of its argument."""

    def implementation(x: MCFTensor, *args: Any) -> MCFTensor:
        # What one component refuses must not have changed another.
        for c in x.components:
            func(aten.alias.default(c), *args)
        for c in x.components:
            func(c, *args)
        return x

    implements(func)(implementation)


_in_place(aten.t_.default)
_in_place(aten.transpose_.default)
_in_place(aten.squeeze_.default)
_in_place(aten.squeeze_.dim)
_in_place(aten.squeeze_.dims)
_in_place(aten.unsqueeze_.default)

register_views(
    aten.alias.default,
    aten.detach.default,
    aten.diagonal.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unbind.int,
    aten.unfold.default,
    aten.unsqueeze.default,
    aten.view.default,
    aten._reshape_alias.default,
)
register(aten._unsafe_view.default)


def _strided(func: OpOverload) -> Any:
    """An operator that lays a component out anew in its memory."""

    def implementation(x: MCFTensor, size: Any, stride: Any, offset: int | None = None) -> Any:
        parts = x.components
        start = parts[0].storage_offset()
        # The tensor's offset is its first component's; others may lie elsewhere in theirs.
        shifts = [None if offset is None else offset - start + c.storage_offset() for c in parts]
        return [func(c, size, stride, k) for c, k in zip(parts, shifts, strict=True)]

    return implementation


_as_strided = _strided(aten.as_strided.default)


@implements(aten.as_strided.default)
def as_strided(x: MCFTensor, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Elements at any strides of the components' memory."""
    return wrap(_as_strided(x, size, stride, storage_offset))


@implements(aten.as_strided_.default)
def as_strided_(x: MCFTensor, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """The tensor itself laid out anew."""
    # What one component refuses must not have changed another.
    _as_strided(x, size, stride, storage_offset)
    _strided(aten.as_strided_.default)(x, size, stride, storage_offset)
    return x

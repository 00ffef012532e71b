"""Views: each component is viewed, memory is shared."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from mcf.tensor.dispatch.componentwise import register
from mcf.tensor.dispatch.registry import implements
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten


def _in_place(func: OpOverload) -> None:
    """Register an operator that changes the shape of its argument."""

    def implementation(x: MCFTensor, *args: Any) -> MCFTensor:
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
_in_place(aten.as_strided_.default)

register(
    aten.alias.default,
    aten.as_strided.default,
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
    aten._unsafe_view.default,
    aten._reshape_alias.default,
)

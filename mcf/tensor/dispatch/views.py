"""Views: each component is viewed, memory is shared."""

from __future__ import annotations

import torch

from mcf.tensor.dispatch.componentwise import register

aten = torch.ops.aten

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

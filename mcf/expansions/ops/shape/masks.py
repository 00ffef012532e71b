"""Select elements by a mask, searching the mask once for all components."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.arithmetic.componentwise import on_each
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, MCFTensor, wrap
from mcf.kernels import registry

aten = torch.ops.aten


def _masked(x: Any, mask: Any) -> MCFTensor | None:
    """Return x[mask] for a mask of x's leading dimensions; None if unsupported.

    PyTorch searches the mask once per component, and each search is much slower than NumPy's.
    """
    if type(x) is not MCFTensor or type(mask) is not Tensor or mask.dtype is not torch.bool:
        return None
    own = x.__dict__
    first, dims = own["_c0"], mask.ndim
    if type(first) is not Tensor or first.device.type != "cpu" or mask.device.type != "cpu":
        return None
    if dims == 0 or first.shape[:dims] != mask.shape or watched() or mask.requires_grad:
        return None
    parts = COMPONENTS[own["_terms"]](own)
    if first.shape == mask.shape:
        found = registry.on(first.device).picked(parts, mask)
        if found is not None:
            return wrap(found)
    places = torch.from_numpy(np.flatnonzero(mask.numpy()))
    if dims > 1:
        parts = tuple([c.flatten(0, dims - 1) for c in parts])
    return wrap([c.index_select(0, places) for c in parts])


def _plain_on_cpu(tensors: Sequence[Any]) -> bool:
    """Return whether all are plain CPU tensors that nobody traces."""
    return all(type(c) is Tensor and c.device.type == "cpu" for c in tensors) and not watched()


_scatter = aten.masked_scatter.default
_index, _select = on_each(aten.index.Tensor), on_each(aten.masked_select.default)


@implements(aten.index.Tensor)
def index(x: Any, indices: Any) -> Any:
    """Return x[indices]."""
    found = _masked(x, indices[0]) if len(indices) == 1 else None
    return _index(x, indices) if found is None else found


@implements(aten.masked_select.default)
def masked_select(x: Any, mask: Any) -> Any:
    """Return the elements where a mask is True, as a vector."""
    same = isinstance(mask, Tensor) and mask.shape == x.shape
    found = _masked(x, mask) if same else None
    return _select(x, mask) if found is None else found


@implements(aten.masked_scatter.default)
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Replace the elements of x where a mask is True by those of a source, in order."""
    a, s = aligned(x, source)
    if type(mask) is Tensor and _plain_on_cpu((*a, mask, *s)) and a[0].shape == mask.shape:
        found = registry.on(mask.device).replaced(a, mask, s)
        if found is not None:
            return wrap(found)
    return wrap([_scatter(c, mask, v) for c, v in zip(a, s, strict=True)])

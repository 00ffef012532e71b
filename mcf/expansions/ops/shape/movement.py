"""Implement exact operators that move elements, joining, indexing and masking, and sequences.

Mixed operands are promoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.expansions.conversion import converted, plain
from mcf.expansions.creation import linspace
from mcf.expansions.dispatch.registry import OPERATORS, implements, overloads
from mcf.expansions.launch.operations import selected
from mcf.expansions.ops.shape.scattering import index_put
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, wrap
from mcf.kernels.operators import WHERE

aten = torch.ops.aten


@implements(aten.block_diag.default)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Return the block diagonal matrix of some matrices."""
    parts = aligned(*tensors)
    return wrap([aten.block_diag.default(list(c)) for c in zip(*parts, strict=True)])


# `_op` skips the Python wrapper of OpOverload.
_cat, _stack = aten.cat.default._op, aten.stack.default._op


def _parts(tensors: Sequence[Tensor]) -> Sequence[Components]:
    """Return the components of tensors to be joined, promoted to one format."""
    found = []
    for x in tensors:
        if type(x) is not MCFTensor:
            return aligned(*tensors)
        own = x.__dict__
        found.append(COMPONENTS[own["_terms"]](own))
    first, terms = found[0][0].dtype, len(found[0])
    alike = all(c[0].dtype is first and len(c) == terms for c in found)
    return found if alike else aligned(*tensors)


@implements(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along a dimension."""
    return wrap([_cat(list(c), dim) for c in zip(*_parts(tensors), strict=True)])


@implements(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along a new dimension."""
    return wrap([_stack(list(c), dim) for c in zip(*_parts(tensors), strict=True)])


@implements(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """Return x where the condition is True, y elsewhere."""
    found = selected(WHERE, condition, x, y)
    if found is not None:
        return found
    if isinstance(condition, MCFTensor):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got an expansion tensor of "
            f"{condition.dtype}"
        )
    a, b = aligned(x, y)
    return wrap([aten.where.self(condition, u, v) for u, v in zip(a, b, strict=True)])


@implements(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Replace the elements of x where the mask is True by a number."""
    # A value with dimensions is refused below, as in PyTorch.
    if isinstance(x, MCFTensor) and not (isinstance(value, Tensor) and value.dim()):
        found = selected(WHERE, mask, value, x)
        if found is not None and found.dtype is x.dtype and found.terms == x.terms:
            return found
    if isinstance(mask, MCFTensor):
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got an expansion tensor of {mask.dtype}"
        )
    a, v = aligned(x, value)
    return wrap([aten.masked_fill.Tensor(c, mask, w) for c, w in zip(a, v, strict=True)])


@implements(aten.constant_pad_nd.default)
def constant_pad_nd(x: MCFTensor, pad: list[int], value: Any = 0) -> Tensor:
    """Pad x with a number."""
    a, v = aligned(x, value)
    inside = aten.constant_pad_nd.default(torch.ones_like(a[0], dtype=torch.bool), pad, False)
    return wrap(
        [
            torch.where(inside, aten.constant_pad_nd.default(c, pad, 0), w)
            for c, w in zip(a, v, strict=True)
        ]
    )


def _with_source(func: OpOverload, position: int) -> None:
    """Register an operator of x and, at a position, a source of x's dtype: a tensor or a number."""

    def implementation(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        a, s = aligned(x, args[position])
        before, after = args[:position], args[position + 1 :]
        return wrap([func(c, *before, v, *after, **kwargs) for c, v in zip(a, s, strict=True)])

    implements(func)(implementation)


for _func in overloads("select_scatter slice_scatter diagonal_scatter as_strided_scatter"):
    _with_source(_func, 0)
_with_source(aten.index_fill.int_Tensor, 2)
OPERATORS[aten.index_fill.int_Scalar] = OPERATORS[aten.index_fill.int_Tensor]


# If an index repeats, PyTorch's threads decide which value is written. The choice could differ
# between components, so it is made once, by writing the values' positions.


def _numbered(values: Tensor) -> Tensor:
    """Return the linear index of each element, as an integer tensor of the same shape."""
    return torch.arange(values.numel(), device=values.device).reshape(values.shape)


def _taken(parts: Sequence[Tensor], number: Tensor) -> Components:
    """Return the elements at flat positions, of each component."""
    return tuple(c.reshape(-1)[number] for c in parts)


def _placed(write: Any, read: Any) -> None:
    """Register an operator that writes slices or elements of a source to indices of a dimension."""

    def implementation(x: Any, dim: int, index: Tensor, source: Any) -> Tensor:
        a, s = aligned(x, source)
        if len(s) > 1:
            place = torch.empty(a[0].shape, dtype=torch.int64, device=a[0].device)
            s = _taken(s, read(write(place, dim, index, _numbered(s[0])), dim, index))
        return wrap([write(c, dim, index, v) for c, v in zip(a, s, strict=True)])

    implements(write)(implementation)


_placed(aten.scatter.src, aten.gather.default)
_placed(aten.index_copy.default, aten.index_select.default)


@implements(aten.scatter.value)
def scatter_value(x: MCFTensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Return x with a number written at the indices."""
    a, v = aligned(x, value)
    return wrap(
        [aten.scatter.src(c, dim, index, w.expand(index.shape)) for c, w in zip(a, v, strict=True)]
    )


@implements(aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    """Set x[indices] = values, rounded to x's format; += with `accumulate`."""
    if not isinstance(x, MCFTensor):
        assert isinstance(values, MCFTensor)
        return aten.index_put_.default(x, indices, plain(values, x.dtype), accumulate)  # type: ignore[no-any-return]
    if accumulate:
        return torch.ops.aten.copy_.default(x, index_put(x, indices, values, True))  # type: ignore[no-any-return]
    parts = converted(values, x.dtype, x.terms)
    masks = all(i is None or i.dtype in (torch.bool, torch.uint8) for i in indices)
    if len(parts) > 1 and parts[0].numel() > 1 and not masks:
        place = torch.empty(x.shape, dtype=torch.int64, device=x.device)
        aten.index_put_.default(place, indices, _numbered(parts[0]))
        parts = _taken(parts, aten.index.Tensor(place, indices))
    for c, v in zip(x.components, parts, strict=True):
        # The values may be a view of x.
        aten.index_put_.default(c, indices, v.clone())
    return x


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim():
        raise RuntimeError(f"linspace: start and end must have no dimensions, got {value.dim()}")
    if torch.is_grad_enabled() and value.requires_grad:
        raise RuntimeError("linspace: start and end have no derivatives; detach them")
    value = value.detach()
    return value.to_fractions() if isinstance(value, MCFTensor) else value.item()


@implements(torch.linspace)
def _linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> Any:
    """Return `mcf.linspace` between the exact values, in the format of the first expansion."""
    like = start if isinstance(start, MCFTensor) else end
    return linspace(
        _number(start),
        _number(end),
        steps,
        terms=like.terms,
        dtype=dtype or like.dtype,
        device=device or like.device,
        requires_grad=kwargs.get("requires_grad", False),
    )


@implements(torch.logspace)
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **kwargs: Any) -> Any:
    """Return the base to the power of the numbers of `linspace`."""
    return torch.pow(base, _linspace(start, end, steps, **kwargs))

"""Implement copies, conversions and factories such as `zeros_like`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.expansions.components import needs_pieces, write
from mcf.expansions.conversion import converted, plain
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import OPERATORS, UnsupportedError, implements
from mcf.expansions.ops.arithmetic.componentwise import register
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import FORMATS, format_of

aten = torch.ops.aten

register(
    aten._pin_memory.default,
    aten.clone.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)


@implements(aten._local_scalar_dense.default)
def number(x: MCFTensor) -> float:
    """Return the Python number that PyTorch reads; raise unless one component holds the value.

    `x.item()` and `float(x)`, which are documented to round, do not call this.
    """
    first, *lower = (c.item() for c in x.components)
    if any(lower):
        raise UnsupportedError(
            "expected a Python number, got an expansion tensor, which would be rounded; "
            "pass float(x), which rounds, or write it as an operation: x + a * y for torch.add(x, "
            "y, alpha=a), mcf.full for torch.full"
        )
    return float(first)


@implements(aten.is_pinned.default)
def is_pinned(x: MCFTensor, device: Any = None) -> bool:
    """Return whether the components are in pinned memory."""
    return all(c.is_pinned() for c in x.components)


@implements(aten.copy_.default)
def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Write the source's value, rounded to nearest in the target's format."""
    if not isinstance(target, MCFTensor):
        assert isinstance(source, MCFTensor)
        return target.copy_(plain(source, target.dtype), non_blocking)
    new = converted(source, target.dtype, target.terms)
    if watched():
        for t, s in zip(target.components, new, strict=True):
            t.copy_(s, non_blocking)
    else:
        write(target.components, new, non_blocking)
    return target


@implements(aten._to_copy.default)
def to_copy(x: MCFTensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """Copy with another dtype, device or layout; an integer dtype gives a plain tensor."""
    dtype = x.dtype if dtype is None else dtype
    if dtype not in FORMATS:
        return aten._to_copy.default(plain(x, dtype), **kwargs)  # type: ignore[no-any-return]
    moved = [aten._to_copy.default(c, **kwargs) for c in x.components]
    return wrap(moved if dtype is x.dtype else convert(moved, dtype, x.terms))


@implements(aten.fill_.Scalar, aten.fill_.Tensor)
def fill_(x: Tensor, value: Any) -> Tensor:
    """Set every element to a number."""
    if not isinstance(x, MCFTensor):
        return x.fill_(plain(value, x.dtype))
    if isinstance(value, Tensor):
        for t, s in zip(x.components, converted(value, x.dtype, x.terms), strict=True):
            t.fill_(s)
        return x
    numbers = components_of(value, format_of(x.dtype), x.terms)
    if x.device.type == "cpu" and not watched():
        write(x.components, [torch.tensor(v, dtype=x.dtype, device=x.device) for v in numbers])
        return x
    for t, v in zip(x.components, numbers, strict=True):
        t.fill_(v)
    return x


@implements(aten.fill.Scalar, aten.fill.Tensor)
def fill(x: MCFTensor, value: Any) -> Tensor:
    """Return a tensor like x filled with a number."""
    return fill_(wrap([torch.empty_like(c) for c in x.components]), value)


@implements(aten.zero_.default)
def zero_(x: MCFTensor) -> MCFTensor:
    """Set every element to zero."""
    _on_each(torch._foreach_zero_, Tensor.zero_, x.components)
    return x


def neg_(x: MCFTensor) -> MCFTensor:
    """Change the sign of every element."""
    _on_each(torch._foreach_neg_, Tensor.neg_, x.components)
    return x


def _on_each(
    function: Callable[[list[Tensor]], Any], one: Callable[[Tensor], Any], targets: Sequence[Tensor]
) -> None:
    """Change all components in one call, so that no interrupt can separate them.

    Args:
        function: the function of a list, such as `torch._foreach_neg_`.
        one: the function of one tensor, for transforms and forked children without list support.
        targets: the components.
    """
    if watched() or needs_pieces(targets[0]):
        for t in targets:
            one(t)
    else:
        function([*targets])


# `implements` would correct aliasing; this returns the argument itself.
OPERATORS[aten.neg_.default] = neg_


def _filled(
    func: Any, x: MCFTensor, values: tuple[float, ...] | None, *args: Any, **kwargs: Any
) -> Tensor:
    """Create each component by `func`, filled with `values` if these are given."""
    dtype = kwargs.get("dtype") or x.dtype
    if dtype not in FORMATS:
        return func(x.components[0], *args, **kwargs)  # type: ignore[no-any-return]
    kwargs["dtype"] = dtype
    made = [func(c, *args, **kwargs) for c in x.components]
    if values is not None:
        for m, v in zip(made, values, strict=True):
            m.fill_(v)
    return wrap(made)


def _register_likes() -> None:
    for func in (
        aten.empty_like.default,
        aten.zeros_like.default,
        aten.new_empty.default,
        aten.new_zeros.default,
        aten.new_empty_strided.default,
    ):
        implements(func)(lambda x, *a, func=func, **k: _filled(func, x, None, *a, **k))


_register_likes()


@implements(aten._new_zeros_with_same_feature_meta.default)
def new_zeros_laid_out_like(x: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Return zeros with the layout of another tensor, for a tangent."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        # Tracing would record a constant for each tangent, not the operations on it.
        raise UnsupportedError(
            "torch.func.linearize and make_fx do not record tangents of expansion tensors; "
            "torch.func.jvp(f, primals, tangents) computes them"
        )
    first = x.components[0] if isinstance(x, MCFTensor) else x
    parts = other.components if isinstance(other, MCFTensor) else (other,)
    made = aten._new_zeros_with_same_feature_meta.default
    return wrap([made(first, part, self_num_batch_dims=self_num_batch_dims) for part in parts])


@implements(aten.ones_like.default)
def ones_like(x: MCFTensor, **kwargs: Any) -> Tensor:
    """Return ones with the format of x."""
    return _filled(aten.ones_like.default, x, (1.0,) + (0.0,) * (x.terms - 1), **kwargs)


@implements(aten.new_ones.default)
def new_ones(x: MCFTensor, size: list[int], **kwargs: Any) -> Tensor:
    """Return ones with the format of x."""
    return _filled(aten.new_ones.default, x, (1.0,) + (0.0,) * (x.terms - 1), size, **kwargs)


@implements(aten.full_like.default)
def full_like(x: MCFTensor, value: Any, **kwargs: Any) -> Tensor:
    """Return a tensor filled with the nearest expansion of a number."""
    dtype = kwargs.get("dtype") or x.dtype
    if dtype not in FORMATS:
        return aten.full_like.default(x.components[0], value, **kwargs)  # type: ignore[no-any-return]
    values = components_of(value, format_of(dtype), x.terms)
    return _filled(aten.empty_like.default, x, values, **kwargs)


@implements(aten.new_full.default)
def new_full(x: MCFTensor, size: list[int], value: Any, **kwargs: Any) -> Tensor:
    """Return a tensor filled with the nearest expansion of a number."""
    dtype = kwargs.get("dtype") or x.dtype
    if dtype not in FORMATS:
        return aten.new_full.default(x.components[0], size, value, **kwargs)  # type: ignore[no-any-return]
    values = components_of(value, format_of(dtype), x.terms)
    return _filled(aten.new_empty.default, x, values, size, **kwargs)

"""Implement signs, classification (`isnan`, ...) and logical functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.fused_formulas import composed
from mcf.expansions.launch.operations import selected
from mcf.expansions.ops.elementary.elementary import differentiable
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import Components, MCFTensor, broadcast, wrap
from mcf.kernels.operators import ABS, COPYSIGN, EQ, LT, WHERE
from mcf.reductions.norms import absolute

aten = torch.ops.aten


def _of_first(*funcs: Any) -> None:
    """Register functions that the first component decides; the others are smaller, or 0."""
    for func in funcs:
        implements(func)(
            lambda x, *args, func=func, **kwargs: func(x.components[0], *args, **kwargs)
        )


_of_first(
    aten.isnan.default,
    aten.isinf.default,
    aten.isfinite.default,
    aten.isposinf.default,
    aten.isneginf.default,
    aten.signbit.default,
    aten.logical_not.default,
    aten.nonzero.default,
    aten.count_nonzero.default,
    aten.count_nonzero.dim_IntList,
    aten.nonzero_static.default,
    aten.any.default,
    aten.any.dim,
    aten.any.dims,
    aten.all.default,
    aten.all.dim,
    aten.all.dims,
)


def _flip_sign(x: Components, negative: Tensor) -> Components:
    return tuple(torch.where(negative, -c, c) for c in x)


def _sign(x: Components) -> Components:
    first = x[0].sgn()
    return first, *(torch.zeros_like(first) for _ in x[1:])


@implements(aten.abs.default)
def magnitude(x: MCFTensor) -> MCFTensor:
    """Return |x|."""
    found = selected(ABS, x)
    return wrap(absolute(x.components)) if found is None else found


@implements(aten.sign.default, aten.sgn.default)
def sign(x: MCFTensor) -> MCFTensor:
    """Return -1, 0 or 1: the sign of the first component."""
    return wrap(_sign(x.components))


# Above autograd too, since PyTorch's derivatives are plain zeros.
implements(torch.abs, Tensor.abs, Tensor.__abs__, torch.absolute, Tensor.absolute)(
    differentiable("abs", magnitude, torch.sign)
)
implements(torch.sign, Tensor.sign, torch.sgn, Tensor.sgn)(
    differentiable("sign", sign, torch.zeros_like)
)


@implements(aten.copysign.Tensor, aten.copysign.Scalar)
def copysign(x: Any, y: Any) -> Tensor:
    """Return |x| with the sign of y, exact."""
    found = selected(COPYSIGN, x, y)
    if found is not None:
        return found
    a, b = aligned(x, y)
    a = broadcast(*a, b[0])[:-1]
    return wrap(_flip_sign(a, a[0].signbit() ^ b[0].signbit()))


@implements(torch.copysign, Tensor.copysign)
def copysign_of(x: Any, y: Any) -> Any:
    """Return |x| with the sign of y; the gradient of y is zero."""
    if not recorded(x) and (type(y) in _NUMBERS or (isinstance(y, Tensor) and not y.requires_grad)):
        return copysign(x, y)
    signs = y.detach() if isinstance(y, Tensor) and y.requires_grad else y
    return forward(torch.copysign, (x, signs), {})


_NUMBERS = frozenset({int, float})


def _nonzero(x: Any) -> Tensor:
    result: Tensor = x != 0
    return result


implements(aten.logical_and.default)(lambda x, y: _nonzero(x) & _nonzero(y))
implements(aten.logical_or.default)(lambda x, y: _nonzero(x) | _nonzero(y))
implements(aten.logical_xor.default)(lambda x, y: _nonzero(x) ^ _nonzero(y))


@implements(aten.heaviside.default)
def heaviside(x: Any, values: Any) -> Tensor:
    """Return 0 for x < 0, 1 for x > 0 and `values` for x = 0."""
    if x.dtype is not values.dtype:
        raise RuntimeError("heaviside is not yet implemented for tensors with different dtypes.")
    return composed(_step, *map(wrap, aligned(x, values)))  # type: ignore[no-any-return]


def _step(o: Any, x: Any, values: Any) -> Any:
    # Neither comparison holds for zero and NaN; NaN propagates.
    step = o(WHERE, o(LT, x, 0.0), 0.0, o(WHERE, o(LT, 0.0, x), 1.0, x))
    return o(WHERE, o(EQ, x, 0.0), values, step)

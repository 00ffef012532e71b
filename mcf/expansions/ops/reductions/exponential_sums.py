"""Implement softmax, logsumexp and related functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf import elementary
from mcf.elementary import fixed
from mcf.elementary.fused import Formula
from mcf.expansions.conversion import promote
from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.fused_formulas import composed
from mcf.expansions.launch.row_functions import along
from mcf.expansions.ops.elementary.constants import constant
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.operators import ADD, COPYSIGN, EQ, MAXIMUM, SUB, WHERE
from mcf.reductions.rows import Rows

aten = torch.ops.aten


def _along_rows(name: str, func: OpOverload, alone: float) -> None:
    """Register a function of rows, which is `alone` for zero-dimensional tensors."""

    def of_rows(x: MCFTensor, dim: int, half_to_float: bool = False) -> MCFTensor:
        few = along(name, x, dim)
        if few is not None:
            return few
        if x.dim() == 0 or x.numel() == 0:
            return _trivial(name, x, dim, alone)
        return wrap(getattr(elementary, name)(x.components, dim))

    implements(func)(of_rows)


# exp(x_i) / sum_j exp(x_j), and x_i - logsumexp(x).
_along_rows("softmax", aten._softmax.default, 1)
_along_rows("log_softmax", aten._log_softmax.default, 0)


def _trivial(name: str, x: MCFTensor, dim: int, value: float) -> MCFTensor:
    """Handle zero-dimensional and empty tensors."""
    last = max(x.dim(), 1)
    if not -last <= dim < last:
        raise IndexError(f"{name}: dim must be in [{-last}, {last - 1}], got {dim}")
    # x - x is NaN for infinities and NaN.
    zero: Any = x - x
    return zero + value  # type: ignore[no-any-return]


@implements(aten._safe_softmax.default)
def safe_softmax(x: MCFTensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    """Return the softmax, 0 where all elements are -inf."""
    given: Any = x if dtype is None else x.to(dtype)
    out = given.softmax(dim)
    return torch.where((given == -torch.inf).all(dim, keepdim=True), 0, out)


@implements(aten.logsumexp.default)
def logsumexp(x: MCFTensor, dim: Sequence[int], keepdim: bool = False) -> MCFTensor:
    """Return log(sum_j exp(x_j)) over some dimensions."""
    if len(dim) == 1:
        few = along("logsumexp", x, dim[0], keepdim)
        if few is not None:
            return few
    dims = list(Rows.of(x.shape, dim).dims)
    if x.numel() == 0:
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        none: Any = x.new_full(shape, -torch.inf)
        return none if keepdim else none.squeeze(dims)  # type: ignore[no-any-return]
    if x.dim() == 0:
        return wrap([c.clone() for c in x.components])
    if len(dims) == x.dim():
        few = along("logsumexp", x, None, keepdim)
        if few is not None:
            return few
    rest = [d for d in range(x.dim()) if d not in dims]
    moved = tuple(c.permute(*rest, *dims).flatten(len(rest)) for c in x.components)
    out = elementary.logsumexp(moved, -1)
    if keepdim:
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        out = tuple(c.reshape(shape) for c in out)
    return wrap(out)


@implements(aten._softmax_backward_data.default)
def softmax_backward(grad: Any, result: Any, dim: int, input_dtype: torch.dtype) -> Any:
    """Return result (grad - sum(grad result))."""
    weighted = grad * result
    return weighted - result * weighted.sum(dim, keepdim=True)


@implements(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Any, result: Any, dim: int, input_dtype: torch.dtype) -> Any:
    """Return grad - exp(result) sum(grad)."""
    return grad - result.exp() * grad.sum(dim, keepdim=True)


def _log_of_sum(o: Any, a: Any, b: Any) -> Any:
    # Equal operands have gap 0, including infinities, whose difference is NaN.
    gap = o(WHERE, o(EQ, a, b), 0, o(COPYSIGN, o(SUB, a, b), -1.0))
    return o(ADD, o(MAXIMUM, a, b), o(Formula("log1p"), o(Formula("exp"), gap)))


class _LogAddExp(torch.autograd.Function):
    """log(exp(a) + exp(b)) with the derivatives sigmoid(a - b) and sigmoid(b - a)."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return composed(_log_of_sum, a, b)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gap = torch.where(a == b, 0, a - b)
        ga, gb = grad * torch.sigmoid(gap), grad * torch.sigmoid(-gap)
        return ga.sum_to_size(a.shape), gb.sum_to_size(b.shape)


@implements(torch.logaddexp, Tensor.logaddexp, aten.logaddexp.default)
def logaddexp(x: Any, y: Any) -> Any:
    """Return log(exp(x) + exp(y))."""
    if not recorded(x) and not recorded(y):
        return composed(_log_of_sum, x, y)
    return _LogAddExp.apply(*map(promote, (x, y)))  # type: ignore[no-untyped-call]


@implements(torch.logaddexp2, Tensor.logaddexp2, aten.logaddexp2.default)
def logaddexp2(x: Any, y: Any) -> Any:
    """Return log2(2**x + 2**y)."""
    a, b = map(promote, (x, y))
    same = a == b
    top = torch.maximum(a, b)
    gap: Any = torch.where(same, 0, -(a - b).abs())
    ln2 = constant(fixed.ln2(), gap)
    return top + torch.log1p(torch.exp(gap * ln2)) / ln2

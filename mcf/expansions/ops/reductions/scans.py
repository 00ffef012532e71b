"""Implement softmax, logsumexp, running logarithms and extremes, and sums that skip NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf import elementary
from mcf.elementary import fixed
from mcf.elementary.fused import Formula
from mcf.expansions.conversion import promote
from mcf.expansions.dispatch.recorded import recorded, unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.launch.fused_formulas import by_torch, composed
from mcf.expansions.launch.row_functions import along as in_one_call
from mcf.expansions.launch.row_functions import arranged
from mcf.expansions.ops.arithmetic.constants import constant
from mcf.expansions.ops.order.order import canonical
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.operators import ADD, COPYSIGN, EQ, LT, MAXIMUM, MUL, SUB, WHERE
from mcf.kernels.ordering import running_extremes
from mcf.kernels.row_tasks import RowTask, along
from mcf.reductions.rows import Rows

aten = torch.ops.aten


def _along_rows(name: str, func: OpOverload, alone: float) -> None:
    """Register a function of rows, which is `alone` for zero-dimensional tensors."""

    def of_rows(x: MCFTensor, dim: int, half_to_float: bool = False) -> MCFTensor:
        few = in_one_call(name, x, dim)
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
        few = in_one_call("logsumexp", x, dim[0], keepdim)
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
        few = in_one_call("logsumexp", x, None, keepdim)
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


# Rows up to this length take log2(count) steps over all elements, which needs fewer launches.
SHORT = 4096

Parts = tuple[Any, ...]
Together = Callable[[Parts, Parts], Parts]


def _cut(x: Parts, first: int, count: int) -> Parts:
    return tuple(c.narrow(-1, first, count) for c in x)


def _every_other(x: Parts, first: int, count: int) -> Parts:
    return tuple(c[..., first : first + 2 * count : 2].contiguous() for c in x)


def _doubling(together: Together, x: Parts) -> Parts:
    """Return x_0, x_0 x_1, ... for an associative function along the last dimension.

    After the step of width k each element combines the last 2 k elements up to itself.
    """
    count, width = x[0].shape[-1], 1
    while width < count:
        rest = count - width
        later = together(_cut(x, 0, rest), _cut(x, width, rest))
        both = zip(_cut(x, 0, width), later, strict=True)
        x = tuple(torch.cat(pair, -1) for pair in both)
        width *= 2
    return x


def running(together: Together, x: Parts) -> Parts:
    """Return x_0, x_0 x_1, ... as `_doubling`; long rows need two combinations per element."""
    count = x[0].shape[-1]
    if count <= SHORT:
        return _doubling(together, x)
    # Scan the pairs to get every second result; the others need one more combination.
    half, rest = count // 2, (count - 1) // 2
    pairs = together(_every_other(x, 0, half), _every_other(x, 1, half))
    even = running(together, pairs)
    odd = together(_cut(even, 0, rest), _every_other(x, 2, rest))
    firsts = [torch.cat([c[..., :1], o], -1) for c, o in zip(x, odd, strict=True)]
    found = []
    for f, e in zip(firsts, even, strict=True):
        mixed = torch.stack([f.narrow(-1, 0, half), e], -1).flatten(-2)
        found.append(torch.cat([mixed, f.narrow(-1, half, 1)], -1) if count % 2 else mixed)
    return tuple(found)


def _added(x: Parts, y: Parts) -> Parts:
    return (torch.logaddexp(x[0], y[0]),)


def _sum(o: Any, m: Any, n: Any, s: Any, t: Any) -> Any:
    """Return s exp(m - k) + t exp(n - k) with k = max(m, n)."""
    # Equal operands have gap 0, including infinities, whose difference is NaN.
    gap = o(WHERE, o(EQ, m, n), 0, o(COPYSIGN, o(SUB, m, n), -1.0))
    later = o(LT, m, n)
    small, large = o(WHERE, later, s, t), o(WHERE, later, t, s)
    return o(ADD, large, o(MUL, small, o(Formula("exp"), gap)))


def _scaled(x: Parts, y: Parts) -> Parts:
    """Combine (m, s) and (n, t) to a pair for s exp(m) + t exp(n), with exponent max(m, n)."""
    return torch.maximum(x[0], y[0]), composed(_sum, x[0], y[0], x[1], y[1])


def _scaled_recorded(x: Parts, y: Parts) -> Parts:
    """Combine pairs as `_scaled`, in functions that autograd records."""
    return torch.maximum(x[0], y[0]), _sum(by_torch, x[0], y[0], x[1], y[1])


@implements(torch.logcumsumexp, Tensor.logcumsumexp, aten.logcumsumexp.default)
def logcumsumexp(x: Any, dim: int) -> Any:
    """Return log(exp(x_0) + ... + exp(x_k)) for each k, by a tree of combinations.

    For more than SHORT elements it is m_k + log(s_k), with the running maximum m_k and s_k the sum
    of exp(x_i - m_k), which is in [1, k + 1]. Trees have depth D <= 2 log2(count) (Brent and Kung
    1982, doi:10.1109/TC.1982.1675982), with one exponential of a difference per combination. With
    relative error bounds a of a sum, p of a product, e of exp and l of log, to first order,

        |error| <= D (a + p + e) + a log(count) + l log(s_k) + a |result|,

    since the mean of m_k - x_i, weighted by exp(x_i), is at most log(count).
    """
    along(x.shape or (1,), dim)
    if x.dim() == 0 or not x.numel():
        return x.clone()
    rows = x.movedim(dim, -1)
    if x.shape[dim] <= SHORT:
        return _doubling(_added, (rows,))[0].movedim(-1, dim)
    m = rows.detach().contiguous()
    if recorded(x):
        # Value 1 with the derivative of exp; 0 replaces the NaN difference of infinities.
        ones: Any = torch.where(m.isfinite(), rows - m, 0).exp()
        m, s = running(_scaled_recorded, (m, ones))
    else:
        m, s = running(_scaled, (m, torch.ones_like(m)))
    return (m + s.log()).movedim(-1, dim)


def _extremes(x: Any, dim: int, largest: bool) -> tuple[Any, Tensor]:
    """Return running extremes and their indices, the last of equal ones; NaN propagates."""
    if type(x) is MCFTensor and not recorded(x):
        few = arranged("running_largest" if largest else "running_smallest", x, dim)
        if few is not None:
            return few
    if x.dim() == 0:
        along((1,), dim)
        return x.clone(), torch.zeros((), dtype=torch.int64, device=x.device)
    found = _by_loop(x, dim, largest)
    if found is not None:
        return found
    keys = [c.movedim(dim, -1) for c in canonical(x.detach())]
    size = max(1, x.shape[dim])
    flat = [c.reshape(c.numel() // size, c.shape[-1]) for c in keys]
    index = running_extremes(flat, largest).view(keys[0].shape).movedim(-1, dim)
    return x.gather(dim, index), index.contiguous()


def _by_loop(x: Any, dim: int, largest: bool) -> tuple[Any, Tensor] | None:
    """Return running extremes by an executor's loop over rows; None if unsupported."""
    if type(x) is not MCFTensor or recorded(x):
        return None
    given = list(x.components)
    first, fmt = given[0], FORMATS[x.dtype]
    if not first.numel() or type(first) is not Tensor or unseen(first):
        return None
    if fmt != FP64 and first.device.type != "cpu":
        return None
    count, inner = along(first.shape, dim)
    given = [c.contiguous() for c in given]
    # The loop computes keys of pairs itself.
    pairs = len(given) == 2
    keys = given if pairs else [k.contiguous() for k in canonical(wrap(given))]
    index = torch.empty(given[0].shape, dtype=torch.int64, device=first.device)
    out = [torch.empty_like(c) for c in given]
    name = "running_largest" if largest else "running_smallest"
    held = fmt if pairs else FP64
    task = RowTask(name, len(keys), len(out), inner=inner, format=fmt, keys=held)
    if not registry.rows(task, (first.numel() // count, count), [index, *out, *keys, *given]):
        return None
    return wrap(out), index


@implements(torch.cummax, Tensor.cummax, aten.cummax.default)
def cummax(x: Any, dim: int) -> Any:
    """Return the running maximum and its index."""
    return torch.return_types.cummax(_extremes(x, dim, True))


@implements(torch.cummin, Tensor.cummin, aten.cummin.default)
def cummin(x: Any, dim: int) -> Any:
    """Return the running minimum and its index."""
    return torch.return_types.cummin(_extremes(x, dim, False))


@implements(torch.nansum, Tensor.nansum, aten.nansum.default)
def nansum(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return the sum over dimensions of elements that are not NaN."""
    kept = torch.where(x.isnan(), 0, x)
    return kept.sum(dim, keepdim=keepdim, dtype=dtype)


@implements(torch.nanmean, Tensor.nanmean)
def nanmean(
    x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return the mean over dimensions of elements that are not NaN."""
    if dtype is not None and not dtype.is_floating_point:
        # Let PyTorch raise its error.
        torch.nanmean(torch.empty(0, device="cpu"), dtype=dtype)
    count = (~x.isnan()).sum(dim, keepdim=keepdim)
    return nansum(x, dim, keepdim, dtype=dtype) / count

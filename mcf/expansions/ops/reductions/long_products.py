"""Implement derivatives of products of many numbers, without intermediate overflow.

The derivative of a product by one factor is the product of the others; PyTorch divides the product
by the factor. Partial products may over- or underflow where the derivative does not. So numbers are
stored as m 2^e, with 1/2 <= |m| < 1 and integer e, until the last step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import pulled_back, unseen
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.ops.arithmetic.constants import exponents, two_to
from mcf.expansions.ops.reductions.scans import running
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import format_of

# An expansion m and an integer tensor e stand for m 2^e.
Number = tuple[Any, Tensor]
# The exponent of zero, below that of any product.
_NONE = -(1 << 40)
# Beyond this exponent all results are 0 or infinity in every format.
_FAR = 4096


def _split(x: Any, exponent: Tensor | int = 0) -> Number:
    """Return x 2^exponent with a mantissa in [1/2, 1) if it is finite."""
    e = exponents(x)
    # Subnormal numbers need two steps: their inverse power of two is out of range.
    half = e // 2
    dtype = x.dtype
    mantissa = x * two_to(-half, dtype) * two_to(half - e, dtype)
    return mantissa, torch.where(x.detach() == 0, _NONE, e + exponent)


def _plus(x: Number, y: Number) -> Number:
    e = torch.maximum(x[1], y[1])
    least = format_of(x[0].dtype).emin
    a, b = (m * two_to((k - e).clamp(min=least), m.dtype) for m, k in (x, y))
    return _split(a + b, e)


def _value(x: Number) -> Any:
    return torch.ldexp(x[0], x[1].clamp(-_FAR, _FAR))


def _times(x: Number, y: Number) -> Number:
    return x[0] * y[0], x[1] + y[1]


def _products(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
    return _split(*_times((x[0], x[1]), (y[0], y[1])))


def _linear(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
    """Compose linear maps: return s -> d (a s + b) + c for s -> a s + b, then s -> d s + c.

    Each coefficient is stored as mantissa and exponent.
    """
    factor: Number = (y[0], y[1])
    return (
        *_split(*_times((x[0], x[1]), factor)),
        *_plus(_times((x[2], x[3]), factor), (y[2], y[3])),
    )


def _before(x: Number) -> Number:
    """Return the products of all earlier elements along the last dimension, the first being 1."""
    m, e = x
    fmt, count = format_of(m.dtype), m.shape[-1]
    if count < fmt.emax - fmt.p * (m.terms + 1):
        # A product of this many mantissas cannot underflow in any component.
        m, e = m.cumprod(-1), e.cumsum(-1)
    else:
        m, e = running(_products, x)
    half = torch.full_like(m.detach().narrow(-1, 0, 1), 0.5)
    one = torch.ones_like(e.narrow(-1, 0, 1))
    return torch.cat([half, m.narrow(-1, 0, count - 1)], -1), torch.cat(
        [one, e.narrow(-1, 0, count - 1)], -1
    )


def _reversed(x: Number) -> Number:
    return x[0].flip(-1), x[1].flip(-1)


def _stays_inside(x: Any, grad: Any = None) -> bool:
    """Return whether products of elements along the last dimension stay far inside the range.

    Then the plain computation has the same bits as that with separate exponents.
    """
    if unseen(x.detach().components[0]):
        return False
    e = exponents(x)
    # Largest |log2| of a number, rounded up: it is in [2^(e - 1), 2^e).
    width = torch.maximum(e, 1 - e).sum(-1).max()
    if grad is not None:
        width = width + exponents(grad).abs().max() + x.shape[-1].bit_length() + 1
    fmt = format_of(x.dtype)
    return bool(width < fmt.emax - fmt.p * (x.terms + 1))


def _products_before(x: Any) -> Any:
    """Return the products of all earlier elements along the last dimension, the first being 1."""
    one = torch.ones_like(x.detach().narrow(-1, 0, 1))
    return torch.cat([one, x.narrow(-1, 0, x.shape[-1] - 1).cumprod(-1)], -1)


def _linear_inside(x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, ...]:
    """Compose linear maps as `_linear`, without separate exponents."""
    return x[0] * y[0], x[1] * y[0] + y[1]


def products_of_others(x: Any) -> Any:
    """Return for each element along the last dimension the product of the others."""
    if _stays_inside(x):
        return _products_before(x) * _products_before(x.flip(-1)).flip(-1)
    parts = _split(x)
    after = _reversed(_before(_reversed(parts)))
    return _value(_times(_before(parts), after))


def running_products_slope(x: Any, grad: Any) -> Any:
    """Return the derivative of the running products along the last dimension, times grad.

    With g = grad it is p_j s_j, where p_j is the product of the elements before j and
    s_j = g_j + x_(j + 1) s_(j + 1).
    """
    # No sum follows the last element.
    count = x.shape[-1] - 1
    if _stays_inside(x, grad):
        last = x.flip(-1)
        shifted = torch.cat(
            [torch.zeros_like(last.narrow(-1, 0, 1)), last.narrow(-1, 0, count)], -1
        )
        _, sums = running(_linear_inside, (shifted, grad.flip(-1)))
        return _products_before(x) * sums.flip(-1)
    parts = _split(x)
    m, e = _reversed(parts)
    factor = (
        torch.cat([torch.zeros_like(m.narrow(-1, 0, 1)), m.narrow(-1, 0, count)], -1),
        torch.cat([torch.full_like(e.narrow(-1, 0, 1), _NONE), e.narrow(-1, 0, count)], -1),
    )
    _, _, sum_m, sum_e = running(_linear, (*factor, *_reversed(_split(grad))))
    return _value(_times(_before(parts), _reversed((sum_m, sum_e))))


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
        ctx.save_for_backward(x)
        ctx.along = dim, keepdim
        return x.prod() if dim is None else x.prod(dim, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        dim, keepdim = ctx.along
        if x.dim() == 0 or x.numel() == 0:
            return grad.reshape(x.shape) if x.dim() == 0 else torch.zeros_like(x), None, None
        if dim is None:
            slope = products_of_others(x.reshape(-1)).reshape(x.shape)
        else:
            slope = products_of_others(x.movedim(dim, -1)).movedim(-1, dim)
            grad = grad if keepdim else grad.unsqueeze(dim)
        # The gradient at a NaN is NaN.
        return grad * torch.where(x.isnan(), x, slope), None, None


class _RunningProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, dim: int) -> Any:
        ctx.save_for_backward(x)
        ctx.dim = dim
        return x.cumprod(dim)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        if x.dim() == 0 or x.numel() == 0:
            return grad, None
        rows, up = x.movedim(ctx.dim, -1), grad.movedim(ctx.dim, -1)
        slope = running_products_slope(rows, up).movedim(-1, ctx.dim)
        return torch.where(x.isnan(), x, slope), None


def _is_ours(x: Any, dtype: torch.dtype | None) -> bool:
    """Return whether autograd records the product of floats."""
    floats = dtype is None or dtype.is_floating_point
    return floats and isinstance(x, MCFTensor) and pulled_back((x,))


@implements(torch.prod, Tensor.prod)
def prod(
    input: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Return the product of all elements, or along a dimension."""
    if not _is_ours(input, dtype):
        given = (input,) if dim is None else (input, dim, keepdim)
        return forward(torch.prod, given, {} if dtype is None else {"dtype": dtype})
    x = input if dtype is None else input.to(dtype)
    return _Product.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]


@implements(torch.cumprod, Tensor.cumprod)
def cumprod(input: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Return the running products along a dimension."""
    if not _is_ours(input, dtype):
        return forward(torch.cumprod, (input, dim), {} if dtype is None else {"dtype": dtype})
    x = input if dtype is None else input.to(dtype)
    return _RunningProduct.apply(x, dim)  # type: ignore[no-untyped-call]

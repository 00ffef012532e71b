"""Create tensors of known values: zeros, ones, full, arange, linspace, eye and `*_like`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.parse import beyond, cut, exact
from mcf.expansions.creation import check_format, like_data, number_in
from mcf.expansions.progressions import progression
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import format_of

Device = torch.device | str | None


def shape_of(size: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape from `f(2, 3)` or `f((2, 3))`."""
    if len(size) == 1 and isinstance(size[0], (tuple, list, torch.Size)):
        return tuple(size[0])
    return tuple(size)


def leaf(x: MCFTensor, requires_grad: bool) -> MCFTensor:
    """Set `requires_grad` of a leaf, and return it."""
    x.requires_grad_(requires_grad)
    return x


def full(
    size: Sequence[int] | int,
    fill_value: Any,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create a tensor filled with the nearest expansion of a number.

    Args:
        size: its shape.
        fill_value: any number that `mcf.tensor` takes: "0.1", Fraction(1, 3), ...
        terms: number of components, 1 to 4; None for those of an expansion, else 2.
        dtype: of the components; None for that of a floating-point tensor or NumPy number, else
            torch's default dtype.
        device: its device; None for torch's default device.
        requires_grad: whether autograd records operations on it.
    """
    terms, dtype = like_data(fill_value, terms, dtype)
    fmt = format_of(dtype)
    shape = (size,) if isinstance(size, int) else tuple(size)
    values = components_of(exact(number_in(fill_value, "fill_value")), fmt, terms)
    return leaf(
        wrap([torch.full(shape, v, dtype=dtype, device=device) for v in values]), requires_grad
    )


def zeros(
    *size: Any,
    terms: int = 2,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create a tensor of zeros of shape `size`; other arguments as `mcf.full`."""
    return full(
        shape_of(size), 0, terms=terms, dtype=dtype, device=device, requires_grad=requires_grad
    )


def ones(
    *size: Any,
    terms: int = 2,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create a tensor of ones of shape `size`; other arguments as `mcf.full`."""
    return full(
        shape_of(size), 1, terms=terms, dtype=dtype, device=device, requires_grad=requires_grad
    )


def eye(
    n: int,
    m: int | None = None,
    *,
    terms: int = 2,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create the identity matrix of n rows and m columns; other arguments as `mcf.full`."""
    dtype = check_format(terms, dtype).dtype
    one = torch.eye(n, n if m is None else m, dtype=dtype, device=device)
    zero = [torch.zeros_like(one) for _ in range(terms - 1)]
    return leaf(wrap([one, *zero]), requires_grad)


def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create start, start + step, ... below end, each rounded to the nearest expansion.

    Args:
        start: the first number, as `mcf.tensor` takes it; a single argument is `end`, from 0.
        end: exclusive upper limit (lower limit for a negative step).
        step: not 0; "0.1" is one tenth.
        terms: as `mcf.full`, of all the numbers given.
        dtype: as `mcf.full`, of all the numbers given.
        device: as `mcf.full`.
        requires_grad: as `mcf.full`.
    """
    if end is None:
        start, end = 0, start
    terms, dtype = like_data([start, end, step], terms, dtype)
    a, b, s = (_finite(v, n) for v, n in ((start, "start"), (end, "end"), (step, "step")))
    if s == 0:
        raise ValueError("step must not be 0")
    if (b - a) * s < 0:
        raise ValueError(f"step must lead from start to end, got {step!r}")
    count = math.ceil((b - a) / s)
    return leaf(wrap(progression(a, s, count, terms, dtype, device)), requires_grad)


def linspace(
    start: Any,
    end: Any,
    steps: int,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create `steps` evenly spaced numbers from start to end, each the nearest expansion.

    Args:
        start: the first number, as `mcf.tensor` takes it.
        end: the last number.
        steps: number of elements, at least 0.
        terms: as `mcf.full`, of all the numbers given.
        dtype: as `mcf.full`, of all the numbers given.
        device: as `mcf.full`.
        requires_grad: as `mcf.full`.
    """
    terms, dtype = like_data([start, end], terms, dtype)
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    a, b = _finite(start, "start"), _finite(end, "end")
    gap = (b - a) / (steps - 1) if steps > 1 else Fraction(0)
    return leaf(wrap(progression(a, gap, steps, terms, dtype, device)), requires_grad)


def _finite(value: Any, name: str) -> Fraction:
    number = exact(number_in(value, name))
    if beyond(number) or (isinstance(number, float) and not math.isfinite(number)):
        raise ValueError(f"{name} must be finite, got {value!r:.200}")
    if cut(number):
        raise ValueError(f"{name} must have at most 3000 decimals")
    return Fraction(number)


def _format(like: Tensor, terms: int | None, dtype: torch.dtype | None) -> dict[str, Any]:
    own = like.terms if isinstance(like, MCFTensor) else 2
    return {"terms": own if terms is None else terms, "dtype": dtype or like.dtype}


def full_like(
    input: Tensor,
    fill_value: Any,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Call `mcf.full` with shape, format and device of a tensor; a plain tensor has 2 terms."""
    return full(
        input.shape,
        fill_value,
        device=device or input.device,
        requires_grad=requires_grad,
        **_format(input, terms, dtype),
    )


def zeros_like(input: Tensor, **options: Any) -> MCFTensor:
    """Create zeros with shape, format and device of a tensor; see `mcf.full_like`."""
    return full_like(input, 0, **options)


def ones_like(input: Tensor, **options: Any) -> MCFTensor:
    """Create ones with shape, format and device of a tensor; see `mcf.full_like`."""
    return full_like(input, 1, **options)

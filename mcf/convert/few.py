"""Convert small tensors between formats, with integer arithmetic on the CPU.

The rounding of `mcf.convert.numbers` equals that of `mcf.convert.rounding`: the nearest expansion.
For one or two numbers, integers are faster than about a hundred tensor operations.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.numbers import nearest
from mcf.kernels.components import Components as Components
from mcf.kernels.formats import FORMATS

# Largest number of elements: one takes 5 to 10 microseconds, the tensor operations some hundreds.
MOST = 32
# Limit if the format stays the same, which takes fewer tensor operations.
_ALIKE = 8

_level = torch._C._functorch.maybe_current_level
_modes = torch._C._len_torch_dispatch_stack


def visible(first: Tensor) -> bool:
    """Return whether a plain tensor is on the CPU and is not being traced."""
    if torch.compiler.is_compiling() or _modes() or _level() is not None:
        return False
    return type(first) is Tensor and first.device.type == "cpu"


def readable(components: Sequence[Tensor], most: int | None = None) -> bool:
    """Return whether plain components are small, on the CPU and not being traced."""
    return visible(components[0]) and components[0].numel() <= (MOST if most is None else most)


def rows(components: Sequence[Tensor]) -> list[tuple[float, ...]]:
    """Return the components of each element as Python floats."""
    if components[0].numel() == 1:
        return [tuple([c.item() for c in components])]
    return [*zip(*(c.flatten().tolist() for c in components), strict=True)]


def ratio(components: Sequence[float]) -> tuple[int, int]:
    """Return the exact sum of finite floats as integers n / d, where d is a power of two."""
    n, d = 0, 1
    for x in components:
        if x:
            a, b = x.as_integer_ratio()
            if b > d:
                n, d = n * (b // d), b
            n += a * (d // b)
    return n, d


def tensors(
    numbers: Sequence[Sequence[float | int]], shape: Sequence[int], dtype: torch.dtype
) -> list[Tensor]:
    """Return tensors of a shape from the components of each number."""
    kind = _KINDS.get(dtype)
    if kind is not None and len(numbers) < len(kind):
        return [_written(shape, dtype, kind, c) for c in zip(*numbers, strict=True)]
    columns = zip(*numbers, strict=True)
    return [torch.tensor(c, dtype=dtype, device="cpu").view(shape) for c in columns]


# ctypes arrays by dtype and length; building a tensor from a list takes three times as long.
_KINDS: dict[torch.dtype, list[Any]] = {
    dtype: [kind * count for count in range(MOST + 1)]
    for dtype, kind in (
        (torch.float64, ctypes.c_double),
        (torch.float32, ctypes.c_float),
        (torch.int64, ctypes.c_int64),
        (torch.int32, ctypes.c_int32),
    )
}


# empty_like takes half the time of empty with a dtype and a device.
@functools.lru_cache(256)
def _like(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _written(
    shape: Sequence[int], dtype: torch.dtype, kinds: list[Any], values: Sequence[float | int]
) -> Tensor:
    """Return a tensor with up to MOST elements, written through its address."""
    made = torch.empty_like(_like(tuple(shape), dtype))
    kinds[len(values)].from_address(made.data_ptr())[:] = values
    return made


def truncated_few(components: Sequence[Tensor]) -> Tensor | None:
    """Truncate small tensors below 2**53 to int64; return None if unsupported."""
    if not readable(components):
        return None
    out = []
    for row in rows(components):
        if not abs(row[0]) < _WHOLE:
            return None
        n, d = ratio(row)
        out.append((n // d if n >= 0 else -(-n // d),))
    return tensors(out, components[0].shape, torch.int64)[0] if out else None


# From 2**53 on a float has no fractional part.
_WHOLE = 2.0**53
# For larger powers of ten this takes longer than fractions.
_DECIMALS = 40


def rounded_few(components: Sequence[Tensor], decimals: int) -> list[Tensor] | None:
    """Round small finite tensors to decimals, ties to even; return None if unsupported."""
    if not readable(components) or not 0 <= decimals <= _DECIMALS:
        return None
    power, fmt, out = 10**decimals, FORMATS[components[0].dtype], []
    for row in rows(components):
        if not all(map(math.isfinite, row)):
            return None
        n, d = ratio(row)
        k, rest = divmod(n * power, d)
        k += 2 * rest > d or (2 * rest == d and k & 1)
        # A zero keeps the sign of the number.
        sign = math.copysign(1.0, row[0]) if n == 0 else n
        zero = (-0.0 if sign < 0 else 0.0, *(0.0,) * (len(row) - 1))
        out.append(nearest(k, power, fmt, len(row)) if k else zero)
    return tensors(out, components[0].shape, components[0].dtype) if out else None


def parts_few(components: Sequence[Tensor]) -> tuple[list[Tensor], Tensor] | None:
    """Return m and e with x = m 2**e, 1/2 <= |m| < 1, for small finite float64 tensors, else None.

    The components must be the nearest expansion of their sum.
    """
    first = components[0]
    if first.dtype is not torch.float64 or not readable(components):
        return None
    exponents, out = [], []
    for row in rows(components):
        if not all(map(math.isfinite, row)):
            return None
        m, e = math.frexp(row[0])
        if len(row) > 1 and abs(m) == 0.5 and row[1] * math.copysign(1.0, m) < 0:
            # A power of two with a low component of the other sign is less than it.
            e -= 1
        exponents.append((e,))
        # 2**-e is not a float64 for numbers of such exponents.
        if abs(e) > _RANGE:
            return None
        out.append(tuple([math.ldexp(x, -e) for x in row]))
    if not out:
        return None
    [e32] = tensors(exponents, first.shape, torch.int32)
    return tensors(out, first.shape, torch.float64), e32


_RANGE = 900


def converted_few(
    components: Sequence[Tensor], dtype: torch.dtype, terms: int
) -> list[Tensor] | None:
    """Convert small finite tensors as `convert` does; return None if unsupported."""
    if not readable(components, min(_ALIKE, MOST) if components[0].dtype is dtype else MOST):
        return None
    out, fmt = [], FORMATS[dtype]
    for row in rows(components):
        if not all(map(math.isfinite, row)):
            return None
        n, d = ratio(row)
        if n:
            found = nearest(n, d, fmt, terms)
            # If a next component of half an ulp rounds the first to infinity, the general path
            # decides.
            if abs(found[0]) >= fmt.largest:
                return None
            out.append(found)
        elif any(row):
            return None
        else:
            # A zero has the sign of the first component.
            out.append((row[0],) + (0.0,) * (terms - 1))
    return tensors(out, components[0].shape, dtype) if out else None

"""Few numbers from one format to another, by integers on the host.

The rounding of `mcf.convert.numbers` is that of `mcf.convert.rounding`: the nearest expansion. Some
hundred operations on tensors take longer than integers do for a number or two.
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

# A number takes some five to ten microseconds, operations on tensors some hundreds.
MOST = 32
# Where the format stays operations are few.
_ALIKE = 8

_level = torch._C._functorch.maybe_current_level
_modes = torch._C._len_torch_dispatch_stack


def visible(first: Tensor) -> bool:
    """Whether a plain tensor's numbers, which nobody traces, are in the host's memory."""
    if torch.compiler.is_compiling() or _modes() or _level() is not None:
        return False
    return type(first) is Tensor and first.device.type == "cpu"


def readable(components: Sequence[Tensor], most: int | None = None) -> bool:
    """Whether plain components have few numbers, which nobody traces, in the host's memory."""
    return visible(components[0]) and components[0].numel() <= (MOST if most is None else most)


def rows(components: Sequence[Tensor]) -> list[tuple[float, ...]]:
    """The components of each element as Python's floats."""
    if components[0].numel() == 1:
        return [tuple([c.item() for c in components])]
    return [*zip(*(c.flatten().tolist() for c in components), strict=True)]


def ratio(components: Sequence[float]) -> tuple[int, int]:
    """The sum of finite floats, exactly, as integers n / d with a power of two d."""
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
    """Numbers of a format, each as its components, as tensors of a shape."""
    kind = _KINDS.get(dtype)
    if kind is not None and len(numbers) < len(kind):
        return [_written(shape, dtype, kind, c) for c in zip(*numbers, strict=True)]
    columns = zip(*numbers, strict=True)
    return [torch.tensor(c, dtype=dtype, device="cpu").view(shape) for c in columns]


# What Python writes to memory, by how many; a tensor of a list takes three times as long.
_KINDS: dict[torch.dtype, list[Any]] = {
    dtype: [kind * count for count in range(MOST + 1)]
    for dtype, kind in (
        (torch.float64, ctypes.c_double),
        (torch.float32, ctypes.c_float),
        (torch.int64, ctypes.c_int64),
        (torch.int32, ctypes.c_int32),
    )
}


# What is made in the likeness of a tensor takes half of what it takes to say of which kind.
@functools.lru_cache(256)
def _like(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cpu")


def _written(
    shape: Sequence[int], dtype: torch.dtype, kinds: list[Any], values: Sequence[float | int]
) -> Tensor:
    """A tensor of a few elements."""
    made = torch.empty_like(_like(tuple(shape), dtype))
    kinds[len(values)].from_address(made.data_ptr())[:] = values
    return made


def truncated_few(components: Sequence[Tensor]) -> Tensor | None:
    """Few numbers below 2**53 without their fractions, int64; None for others."""
    if not readable(components):
        return None
    out = []
    for row in rows(components):
        if not abs(row[0]) < _WHOLE:
            return None
        n, d = ratio(row)
        out.append((n // d if n >= 0 else -(-n // d),))
    return tensors(out, components[0].shape, torch.int64)[0] if out else None


# From there on a float has no fraction.
_WHOLE = 2.0**53
# Powers of ten beyond this take longer than fractions do.
_DECIMALS = 40


def rounded_few(components: Sequence[Tensor], decimals: int) -> list[Tensor] | None:
    """Few finite numbers rounded to decimals, ties to even; None for others."""
    if not readable(components) or not 0 <= decimals <= _DECIMALS:
        return None
    power, fmt, out = 10**decimals, FORMATS[components[0].dtype], []
    for row in rows(components):
        if not all(map(math.isfinite, row)):
            return None
        n, d = ratio(row)
        k, rest = divmod(n * power, d)
        k += 2 * rest > d or (2 * rest == d and k & 1)
        # A zero has the sign of the number.
        sign = math.copysign(1.0, row[0]) if n == 0 else n
        zero = (-0.0 if sign < 0 else 0.0, *(0.0,) * (len(row) - 1))
        out.append(nearest(k, power, fmt, len(row)) if k else zero)
    return tensors(out, components[0].shape, components[0].dtype) if out else None


def parts_few(components: Sequence[Tensor]) -> tuple[list[Tensor], Tensor] | None:
    """m and e of few finite numbers x = m 2**e, 1/2 <= |m| < 1, of float64; None for others.

    The components are the nearest expansion of their sum.
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
            # A power of two with something of the other sign below is less than it.
            e -= 1
        exponents.append((e,))
        # Small numbers are left, whose factor is none of float64.
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
    """What `convert` gives for few finite numbers; None for others."""
    if not readable(components, min(_ALIKE, MOST) if components[0].dtype is dtype else MOST):
        return None
    out, fmt = [], FORMATS[dtype]
    for row in rows(components):
        if not all(map(math.isfinite, row)):
            return None
        n, d = ratio(row)
        if n:
            found = nearest(n, d, fmt, terms)
            # Where a next component of half an ulp rounds the first to infinity the other says so.
            if abs(found[0]) >= fmt.largest:
                return None
            out.append(found)
        elif any(row):
            return None
        else:
            # A zero has the sign of the first component.
            out.append((row[0],) + (0.0,) * (terms - 1))
    return tensors(out, components[0].shape, dtype) if out else None

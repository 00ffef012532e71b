"""Compute a, a + s, a + 2 s, ... on tensors, each rounded to the nearest expansion."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import torch
from torch import Tensor

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.expansions.tensor import Components
from mcf.kernels import operations
from mcf.kernels.algorithms import ieee
from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.torch.registers import primitives

# Elements computed at a time, and the largest number for which exact Fractions are faster.
_BLOCK, _FEW = 2**15, 256
# Number of elements of a format, over the whole process, from which compiled kernels pay off:
# compilation takes about 1 s.
_MANY = 2**17
_asked: Counter[tuple[int, torch.dtype]] = Counter()
# Exponents up to which no intermediate result leaves the range of float64.
_RANGE = 600

# The algorithms as torch operations on every executor, to compile nothing for one `arange`. Large
# progressions use the kernels of the same algorithms, with the same bits.
_bind = Binder(lambda f: f, primitives(FP64, FP64, {"rc": FP64}), {})
# By number of float64 components: product, sum, and b such that the error of a + k s is at most
# 2**-b (|a| + k |s|). The bounds of the operations are below 2**-102 and 2**-200.
_WORKING = {
    1: (lambda x, y: (x[0] * y[0],), lambda x, y: (x[0] + y[0],), 53),
    2: (_bind(ieee.MUL_FLOAT[2]), _bind(ieee.ADD[2]), 96),
    4: (_bind(ieee.MUL_FLOAT[4]), _bind(ieee.ADD[4]), 190),
}


def progression(
    a: Fraction,
    s: Fraction,
    count: int,
    terms: int,
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Components:
    """Return the components of a + k s for k from 0 to count - 1.

    Raises:
        RuntimeError: if there is not enough memory.
    """
    if count >= 2**60:
        raise RuntimeError(f"not enough memory for a {count.bit_length()}-bit number of elements")
    out = tuple(torch.empty(count, dtype=dtype, device=device) for _ in range(terms))
    if count and out[0].device.type != "meta":
        _asked[terms, dtype] += count
        _fill(out, a, s)
    return out


def _fill(out: Components, a: Fraction, s: Fraction) -> None:
    count = len(out[0])
    many = _asked[len(out), out[0].dtype] >= _MANY
    exact = _bits(a, s, count)
    # Otherwise numbers of finitely many bits may be ties, which need exact rounding.
    finite = range(0) if exact else _finite(a, s, count)
    for start in range(0, count, _BLOCK):
        part = tuple(c[start : start + _BLOCK] for c in out)
        first = a + start * s
        doubtful = _block(part, first, s, exact, many)
        if finite:
            doubtful = doubtful[(doubtful + (start - finite.start)) % finite.step != 0]
        places = doubtful.tolist()
        fmt = format_of(out[0].dtype)
        rows = [components_of(first + k * s, fmt, len(out)) for k in places]
        for c, column in zip(part, zip(*rows, strict=True), strict=bool(rows)):
            numbers = torch.tensor(column, dtype=torch.float64, device=c.device)
            c[doubtful.to(c.device)] = numbers.to(c.dtype)
    if finite:
        chosen = tuple(c[finite.start :: finite.step] for c in out)
        step = finite.step * s if len(finite) > 1 else Fraction(0)
        _fill(chosen, a + finite.start * s, step)


def _bits(a: Fraction, s: Fraction, count: int) -> int:
    """Return a number of bits that holds every intermediate result exactly, or 0 if none does."""
    d = math.lcm(a.denominator, s.denominator)
    unit = d.bit_length() - 1
    bits = (int(abs(a) * d) + count * int(abs(s) * d)).bit_length()
    in_range = unit <= _RANGE and bits - unit <= _RANGE
    return max(bits, 1) if d == 1 << unit and bits <= _WORKING[4][2] and in_range else 0


def _finite(a: Fraction, s: Fraction, count: int) -> range:
    """Return the k for which a + k s has finitely many bits; an empty range if all have."""
    d = math.lcm(a.denominator, s.denominator)
    odd = d >> ((d & -d).bit_length() - 1)
    first, step = int(a * d), int(s * d)
    common = math.gcd(step, odd)
    if odd == 1 or first % common:
        return range(0)
    period = odd // common
    start = -(first // common) * pow(step // common, -1, period) % period
    # A step beyond the range leaves at most one element.
    return range(start, count, min(period, count))


def _block(out: Components, a: Fraction, s: Fraction, exact: int, many: bool) -> Tensor:
    """Fill a block, and return the indices of elements that may be rounded wrongly."""
    dtype, terms, count = out[0].dtype, len(out), len(out[0])
    k = torch.arange(count, device="cpu")
    # With 30 more bits than the result, rounding is certain for nearly all elements.
    wanted = exact or terms * format_of(dtype).p + 30
    widths = [n for n in _WORKING if _WORKING[n][2] >= wanted and (exact or n > 1)]
    if not widths or count <= _FEW or not (_in_range(a) and _in_range(s)):
        return k
    width = widths[0]
    product, total, bits = _WORKING[width]
    if many and width > 1:
        product, total = operations.mul, operations.add
    first, step = (
        tuple(torch.tensor(x, dtype=torch.float64, device="cpu") for x in parts)
        for parts in (components_of(a, FP64, width), components_of(s, FP64, width))
    )
    kth = k.to(torch.float64)
    numbers = total(product(step, (kth,)), tuple(x.expand(count) for x in first))
    ends = [numbers]
    if not exact:
        error = (kth * step[0].abs() + first[0].abs()) * 2.0**-bits
        rest = (torch.zeros_like(error),) * (width - 1)
        ends = [total(numbers, (e, *rest)) for e in (-error, error)]
    low, high = (convert(e, dtype, terms) for e in (ends[0], ends[-1]))
    same = torch.ones(count, dtype=torch.bool, device="cpu")
    for c, x, y in zip(out, low, high, strict=True):
        c.copy_(x)
        same &= x == y
    return k[~same]


def _in_range(x: Fraction) -> bool:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return x == 0 or -_RANGE < e < _RANGE

"""Exact powers: of whole exponents, of powers of two, and of square roots.

A number x = M 2**E, with M odd, to a whole power k > 0 is M**k 2**(E k), a multiple of g = 2**(E
k). An approximation is corrected exactly: it is rounded to a multiple of g. Its error, in units of
g, is a small integer, which follows from the last 64 bits of both (32 in float32). Those of M**k
take a few integer products, however long M**k is.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.tables import Components
from mcf.elementary.working import (
    INTEGERS,
    collected,
    exponent,
    head,
    mantissa,
    minus,
    sanitized,
    scale_all,
    select,
    two_prod,
)
from mcf.kernels.formats import FP32, FP64

# How many more bits the exact power may have than its approximation: the difference, in units of
# the last bit, must fit in a float.
_BEYOND = {FP64: 40, FP32: 12}
# The longest M that is considered: the square of a longer one exceeds four components.
_LONGEST = {FP64: 300, FP32: 110}
# Exponents between which squares and cubes of two components are sums of floats.
_RANGE = {FP64: (-1000, 1000), FP32: (-149, 127)}
# Bits of k; for odd M >= 3 larger powers exceed the longest exact result.
_BITS_OF_K = 8
# Beyond this a power of two is 0 or infinite in every format.
_FAR = 4000.0


def _integer(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the integer i, with as many bits as x, and e with x = i 2**e, for any finite x."""
    width = working().format
    e = (exponent(x) - (width.p - 1)).clamp(min=width.emin - width.p + 1)
    return scale_all((x,), -e)[0].to(INTEGERS[width]), e


def _last_bit(x: Components) -> Tensor:
    """Return the exponent of the lowest set bit in any component; x is not zero."""
    found = []
    for c in x:
        i, e = _integer(c)
        lowest = exponent((i & -i).to(c.dtype)) + e
        found.append(torch.where(c == 0, 5000, lowest))
    return functools.reduce(torch.minimum, found)


def _last_word(x: Components) -> Tensor:
    """Return the sum of whole floats modulo 2 to the bits of a float, as an integer."""
    kind = INTEGERS[working().format]
    last = 8 * kind.itemsize - 1
    total = torch.zeros_like(x[0], dtype=kind)
    for c in x:
        i, e = _integer(c)
        e = e.to(kind)
        # The fraction bits of a whole float below 2**52 are zero.
        i = torch.where(e < 0, i >> (-e).clamp(0, last), i << e.clamp(0, last))
        total = total + torch.where(e > last, 0, i)
    return total


def _power_modulo(m: Tensor, k: Tensor) -> Tensor:
    """Return m**k modulo 2 to the bits of m for 0 <= k < 2**_BITS_OF_K."""
    total = torch.ones_like(m)
    for bit in range(_BITS_OF_K):
        total = torch.where((k >> bit) & 1 == 1, total * m, total)
        m = m * m
    return total


def exactly(
    x: Components, y: Components, whole: Tensor, result: Components, e: Tensor, terms: int
) -> tuple[Components, Tensor]:
    """Correct an approximation result * 2**e of x**y to the exact power, if that is short enough.

    This holds if y is whole and positive and x**y has at most 40 bits (12 in float32) more than the
    approximation; if x is a power of two and y times its exponent is whole; and in float64 if x is
    a square of at most four components and y half of an odd number.

    Args:
        x: positive, normalised, finite; working components.
        y: not zero, normalised, finite.
        whole: whether y is an integer.
        result: components of relative error below 2**10 u**len(result).
        e: int64.
        terms: components wanted.
    """
    longest = working().format.p * len(result) + _BEYOND[working().format]
    result = head(result, max(terms, len(result)))
    # Powers of two come before roots, using the exponent that the approximation needed as well.
    # Their roots are powers of two, to twice the power.
    m, top = mantissa(x)
    single = m[0] == 1.0
    for c in x[1:]:
        single = single & (c == 0)
    result, e = _of_two(y, top, single, result, e)
    half = _halves(y, whole)
    short = (whole | half) & ~single & (y[0] > 0) & (y[0] < 1 << _BITS_OF_K)
    if not bool(short.any()):
        return result, e
    # Everything is selected by `short`, so that a formula can skip it.
    found, unit = _of_whole(x, y, whole & short, half & short, longest, result, e)
    return select(short, found, result), torch.where(short, unit, e)


def _halves(y: Components, whole: Tensor) -> Tensor:
    """Return where 2 y is whole and y is not; nowhere in float32, which lacks bits."""
    if working().format is not FP64:
        return torch.zeros_like(whole)
    half = ~whole & (y[0].abs() < 1 << _BITS_OF_K)
    for c in y:
        half = half & (2.0 * c == (2.0 * c).floor())
    return half


def _of_whole(
    x: Components,
    y: Components,
    whole: Tensor,
    half: Tensor,
    longest: int,
    result: Components,
    e: Tensor,
) -> tuple[Components, Tensor]:
    """Return exact powers for small whole y, or half of that if x is a square; x not a power of 2.

    Powers have at most `longest` bits.
    """
    width = working().format
    if width is FP64:
        x, y, whole = _rooted(x, y, whole, half)
    small = whole & (y[0] < 1 << _BITS_OF_K)
    _, top = mantissa(x)
    last = _last_bit(x)
    k = torch.where(small, y[0], 1.0).to(torch.int64)
    unit = last * k
    length = exponent(result[0]) + e - unit
    result, e, short = _of_two_components(x, k, small, (unit, top), result, e)
    good = small & ~short & (top - last < _LONGEST[width]) & (length < longest)
    good = good & (unit > working().bottom)
    if not bool(good.any()):
        return result, e
    base = scale_all(sanitized(x, good), torch.where(good, -last, 0))
    near = scale_all(sanitized(result, good), torch.where(good, e - unit, 0))
    near = tuple(c.round() for c in near)
    off = _power_modulo(_last_word(base), k) - _last_word(near)
    exact = collected((*near, off.to(near[0].dtype)), len(result))
    return select(good, exact, result), torch.where(good, unit, e)


def _of_two(
    y: Components, last: Tensor, single: Tensor, result: Components, e: Tensor
) -> tuple[Components, Tensor]:
    """Return 1 and y last where x = 2**last (`single`) and y last is whole."""
    if not bool(single.any()):
        return result, e
    f = last.to(y[0].dtype)
    known = single & (y[0].abs() < _FAR)
    y = sanitized(y, known)
    product = collected(tuple(t for c in y for t in two_prod(c, f)), 2)
    k = product[0]
    good = known & ((k == k.floor()) & (product[1] == 0) & (k.abs() < _FAR))
    # Beyond the range of every format, but within that of `leave`.
    most = 1900.0 if working().format is FP64 else 250.0
    k = torch.where(good, k, 0.0).clamp(-most, most).to(torch.int64)
    found = select(good, head((torch.ones_like(f),), len(result)), result)
    # Select by `single` once more, so that a formula can skip all the rest.
    return select(single, found, result), torch.where(single, torch.where(good, k, e), e)


def _of_two_components(
    x: Components,
    k: Tensor,
    small: Tensor,
    exponents: tuple[Tensor, Tensor],
    result: Components,
    e: Tensor,
) -> tuple[Components, Tensor, Tensor]:
    """Return squares and cubes of at most two components far apart, as sums of their products.

    They may be too long for the correction and still have few components, like that of 1 + 2**-200.
    """
    unit, top = exponents
    least, most = _RANGE[working().format]
    good = small & (k > 1) & (k < 4) & (unit > least) & (k * (top + 1) < most)
    for c in x[2:]:
        good = good & (c == 0)
    if len(x) < 2 or not bool(good.any()):
        return result, e, torch.zeros_like(good)
    x = head(sanitized(x, good), 2)
    square = _product(x, x, 4)
    # The square of two components has three.
    found = select(k == 3, _product(square[:3], x, 4), square)
    found = found[: len(result)]
    return select(good, found, result), torch.where(good, 0, e), good


def _product(x: Components, y: Components, terms: int) -> Components:
    """Return the sum of all products, rounded once."""
    return collected(tuple(t for a in x for b in y for t in two_prod(a, b)), terms)


def _rooted(
    x: Components, y: Components, whole: Tensor, half: Tensor
) -> tuple[Components, Components, Tensor]:
    """Return the root of x, and 2 y, for half-integer y (`half`) and a square x; else x, y."""
    if not bool(half.any()):
        return x, y, whole
    # A square is 4**i times an odd one, which is 1 modulo 8.
    last = _last_bit(x)
    scaled = _last_word(scale_all(sanitized(x, half), torch.where(half, -last, 0)))
    perhaps = half & ((last & 1 == 0) & (scaled & 7 == 1))
    if not bool(perhaps.any()):
        return x, y, whole
    # Recompute the last bit: each of the two steps of a formula has its own.
    root, good = _root(sanitized(x, perhaps), torch.where(perhaps, _last_bit(x), 0))
    found = perhaps & good
    root = select(perhaps, head(root, len(x)), x)
    return select(found, root, x), select(found, tuple(2.0 * c for c in y), y), whole | found


def _root(x: Components, last: Tensor) -> tuple[Components, Tensor]:
    """Return two components of the root of x, given its last bit, and where they are exact."""
    m, e = mantissa(x)
    odd = e & 1
    m, unit = scale_all(m, odd), (last - e + odd) >> 1
    root = ex.sqrt(head(m, 2 if len(x) <= 2 else 4))
    # The last bit of a square is the square of that of its root.
    unit = unit.clamp(-400, 0)
    near = collected(scale_all(tuple(c.round() for c in scale_all(root, -unit)), unit), 2)
    products = tuple(t for a in near for b in near for t in two_prod(a, b))
    rest = collected((*products, *minus(m)), 2)
    return scale_all(near, (e - odd) >> 1), (rest[0] == 0) & (rest[1] == 0)

"""pow and hypot: exact powers, small powers by products, and the general computation.

A small whole or half power is a function of a few products, rounded once. A number x = M 2**E, with
M odd, to a whole power k > 0 is M**k 2**(E k), a multiple of g = 2**(E k). An approximation is
corrected exactly: it is rounded to a multiple of g. Its error, in units of g, is a small integer,
which follows from the last 64 bits of both (32 in float32). Those of M**k take a few integer
products, however long M**k is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.elementary import exponential, logarithm, tables
from mcf.elementary import working as ex
from mcf.elementary.declarations import POWER, quotient_by
from mcf.elementary.error_steps import Steps
from mcf.elementary.exponential import _REST, exp_error
from mcf.elementary.format import WORKING, working
from mcf.elementary.operator import function
from mcf.elementary.tables import TERMS, Components
from mcf.kernels.formats import FP32, FP64, Format

# The largest exponent. A square is one product, x**-1 a reciprocal.
LARGEST = 16
WHOLE = (*range(-LARGEST, -1), *range(3, LARGEST + 1))
HALVES = tuple(k / 2 for k in range(1 - 2 * LARGEST, 2 * LARGEST, 2))
# Equal numbers have equal hashes, whatever their type.
EXPONENTS = frozenset((*WHOLE, *HALVES))


def name_of(k: float) -> str:
    """Return the name of the function x -> x**k."""
    size = f"{abs(int(k))}" if k == int(k) else f"{abs(int(2 * k))}_halves"
    return f"power_{size}" if k > 0 else f"power_minus_{size}"


def serves(terms: int) -> bool:
    """Return whether products have bits to spare for results of `terms` components.

    Four float64 components leave none, and four of any format can hold cubes of two numbers that
    are further apart than a product keeps.
    """
    return terms < TERMS


def raised(x: Components, k: int) -> Components:
    """Return x**k for k > 0, from the highest bit of k downwards."""
    total = x
    for bit in bin(k)[3:]:
        total = ex.mul(total, total)
        if bit == "1":
            total = ex.mul(total, x)
    return total


def _whole_power(k: int) -> Callable[..., Components]:
    def compute(x: Components, fmt: Format, terms: int) -> Components:
        y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
        good = y[0].isfinite() & (y[0] != 0)
        m, e = ex.mantissa(ex.sanitized(y, good, 1.0))
        # Pad with zeros, so that a product keeps more than its factors have.
        power = raised((*m, *(torch.zeros_like(m[0]) for _ in range(w - len(m)))), abs(k))
        # Beyond the range of every format, but within that of `leave`.
        result = ex.reciprocal(power) if k < 0 else power
        out = ex.leave(result, fmt, terms, (e * k).clamp(-1900, 1900))
        edge = x[0] * x[0] * x[0] if k % 2 else x[0] * x[0]
        return ex.special(~good, 1.0 / edge if k < 0 else edge, out)

    return compute


def _half_power(twice: int) -> Callable[..., Components]:
    k = abs(twice)

    def compute(x: Components, fmt: Format, terms: int) -> Components:
        y, w = ex.enter(x, fmt), ex.working_terms(fmt, terms)
        good = y[0].isfinite() & (y[0] > 0)
        y = ex.sanitized(y, good, 1.0)
        if twice == 1 and terms == 1 and fmt is working().format:
            # The root may be closer to a tie than two components can tell.
            out = ex.sqrt(y)
        else:
            m, e = ex.mantissa(y)
            odd = e & 1
            m = ex.scale_all(ex.head(m, w), odd)
            root = ex.sqrt(m)
            power = root if k == 1 else ex.mul(raised(m, k // 2), root)
            result = ex.reciprocal(power) if twice < 0 else power
            out = ex.leave(result, fmt, terms, ((e - odd >> 1) * twice).clamp(-1900, 1900))
        edge = x[0].abs()
        edge = torch.where((x[0] < 0) & (edge != math.inf), math.nan, edge)
        return ex.special(~good, 1.0 / edge if twice < 0 else edge, out)

    return compute


for _k in WHOLE:
    function("x", called=name_of(_k), float32=False, auxiliary=True)(_whole_power(_k))
for _half in HALVES:
    function("x", called=name_of(_half), float32=False, auxiliary=True)(_half_power(int(2 * _half)))
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
    e = (ex.exponent(x) - (width.p - 1)).clamp(min=width.emin - width.p + 1)
    return ex.scale_all((x,), -e)[0].to(ex.INTEGERS[width]), e


def _last_bit(x: Components) -> Tensor:
    """Return the exponent of the lowest set bit in any component; x is not zero."""
    found = []
    for c in x:
        i, e = _integer(c)
        lowest = ex.exponent((i & -i).to(c.dtype)) + e
        found.append(torch.where(c == 0, 5000, lowest))
    return functools.reduce(torch.minimum, found)


def _last_word(x: Components) -> Tensor:
    """Return the sum of whole floats modulo 2 to the bits of a float, as an integer."""
    kind = ex.INTEGERS[working().format]
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


def corrected(
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
    result = ex.head(result, max(terms, len(result)))
    # Powers of two come before roots, using the exponent that the approximation needed as well.
    # Their roots are powers of two, to twice the power.
    m, top = ex.mantissa(x)
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
    return ex.select(short, found, result), torch.where(short, unit, e)


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
    _, top = ex.mantissa(x)
    last = _last_bit(x)
    k = torch.where(small, y[0], 1.0).to(torch.int64)
    unit = last * k
    length = ex.exponent(result[0]) + e - unit
    result, e, short = _of_two_components(x, k, small, (unit, top), result, e)
    good = small & ~short & (top - last < _LONGEST[width]) & (length < longest)
    good = good & (unit > working().bottom)
    if not bool(good.any()):
        return result, e
    base = ex.scale_all(ex.sanitized(x, good), torch.where(good, -last, 0))
    near = ex.scale_all(ex.sanitized(result, good), torch.where(good, e - unit, 0))
    near = tuple(c.round() for c in near)
    off = _power_modulo(_last_word(base), k) - _last_word(near)
    exact = ex.collected((*near, off.to(near[0].dtype)), len(result))
    return ex.select(good, exact, result), torch.where(good, unit, e)


def _of_two(
    y: Components, last: Tensor, single: Tensor, result: Components, e: Tensor
) -> tuple[Components, Tensor]:
    """Return 1 and y last where x = 2**last (`single`) and y last is whole."""
    if not bool(single.any()):
        return result, e
    f = last.to(y[0].dtype)
    known = single & (y[0].abs() < _FAR)
    y = ex.sanitized(y, known)
    product = ex.collected(tuple(t for c in y for t in ex.two_prod(c, f)), 2)
    k = product[0]
    good = known & ((k == k.floor()) & (product[1] == 0) & (k.abs() < _FAR))
    # Beyond the range of every format, but within that of `leave`.
    most = 1900.0 if working().format is FP64 else 250.0
    k = torch.where(good, k, 0.0).clamp(-most, most).to(torch.int64)
    found = ex.select(good, ex.head((torch.ones_like(f),), len(result)), result)
    # Select by `single` once more, so that a formula can skip all the rest.
    return ex.select(single, found, result), torch.where(single, torch.where(good, k, e), e)


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
    x = ex.head(ex.sanitized(x, good), 2)
    square = _product(x, x, 4)
    # The square of two components has three.
    found = ex.select(k == 3, _product(square[:3], x, 4), square)
    found = found[: len(result)]
    return ex.select(good, found, result), torch.where(good, 0, e), good


def _product(x: Components, y: Components, terms: int) -> Components:
    """Return the sum of all products, rounded once."""
    return ex.collected(tuple(t for a in x for b in y for t in ex.two_prod(a, b)), terms)


def _rooted(
    x: Components, y: Components, whole: Tensor, half: Tensor
) -> tuple[Components, Components, Tensor]:
    """Return the root of x, and 2 y, for half-integer y (`half`) and a square x; else x, y."""
    if not bool(half.any()):
        return x, y, whole
    # A square is 4**i times an odd one, which is 1 modulo 8.
    last = _last_bit(x)
    scaled = _last_word(ex.scale_all(ex.sanitized(x, half), torch.where(half, -last, 0)))
    perhaps = half & ((last & 1 == 0) & (scaled & 7 == 1))
    if not bool(perhaps.any()):
        return x, y, whole
    # Recompute the last bit: each of the two steps of a formula has its own.
    root, good = _root(ex.sanitized(x, perhaps), torch.where(perhaps, _last_bit(x), 0))
    found = perhaps & good
    root = ex.select(perhaps, ex.head(root, len(x)), x)
    return ex.select(found, root, x), ex.select(found, tuple(2.0 * c for c in y), y), whole | found


def _root(x: Components, last: Tensor) -> tuple[Components, Tensor]:
    """Return two components of the root of x, given its last bit, and where they are exact."""
    m, e = ex.mantissa(x)
    odd = e & 1
    m, unit = ex.scale_all(m, odd), (last - e + odd) >> 1
    root = ex.sqrt(ex.head(m, 2 if len(x) <= 2 else 4))
    # The last bit of a square is the square of that of its root.
    unit = unit.clamp(-400, 0)
    near = ex.collected(ex.scale_all(tuple(c.round() for c in ex.scale_all(root, -unit)), unit), 2)
    products = tuple(t for a in near for b in near for t in ex.two_prod(a, b))
    rest = ex.collected((*products, *ex.minus(m)), 2)
    return ex.scale_all(near, (e - odd) >> 1), (rest[0] == 0) & (rest[1] == 0)


def _products(y: Components, a: Tensor) -> Components:
    """Return floats whose sum is y * a exactly."""
    return tuple(t for c in y for t in ex.two_prod(c, a))


def _power(x: Components, y: Components, count: int) -> tuple[Components, Tensor, Tensor]:
    """Return components and an exponent of x**y for x > 0, and the float nearest to y log(x).

    The exponent must be known to more bits than the result has. So log(x) is two floats, whose
    products with y are exact, and an expansion of about 2**-18 of it.
    """
    m, e = ex.mantissa(x)
    # m must be at least sqrt(1/2): otherwise the tables of exponents and nodes would cancel.
    high = m[0] > math.sqrt(2)
    m = tuple(torch.where(high, 0.5 * c, c) for c in m)
    logs, lead, lift = logarithm.split(m, e + high.to(torch.int64), count)
    first, second = lead
    y = ex.scale_all(y, -lift)
    v = y[0] * first
    inside = v.abs() <= working().exp_limit
    y = ex.sanitized(y, inside, 0.0)
    k, floats = exponential.steps(torch.where(inside, v, 0.0), count)
    # In float32 only the products of three components fit.
    most = 4 if working().format is FP64 else 3
    r = exponential.reduced(_products(y[:most], first), floats, count)
    tail = ex.mul(ex.head(y, count), logs)
    if len(y) > most:
        tail = ex.add(tail, _products(y[most:], first))
    products = _products(y, second)
    if working().format is FP64:
        # The products of y[j] are below 2**(-43 - 53 j), the tail below 2**-8, r below 2**-9.
        groups = [(0, tail[:1]), (0, tail[1:2]), (1, tail[2:]), (1, r[1:])]
        groups += [(j >> 1, products[j : j + 1]) for j in range(0, len(products), 2)]
        groups += [(j + 1 >> 1, products[j : j + 1]) for j in range(1, len(products), 2)]
        argument = ex.gathered(r[0], groups, count)
    else:
        argument = ex.collected((*r, *products, *tail), count)
    result, e = exponential.combined(k, argument)
    return result, e, v


def _whole(y: Components) -> tuple[Tensor, Tensor]:
    """Return whether y is an integer, and whether it is an odd one."""
    whole = torch.ones_like(y[0], dtype=torch.bool)
    odd = torch.zeros_like(whole)
    for c in y:
        whole &= c == c.floor()
        odd ^= torch.remainder(c, 2.0) == 1.0
    return whole, whole & odd


def _plainly(x: Components, y: Components, out: Components) -> Components:
    """Return 1/x and sqrt(x) of a float as those operations round them, for y = -1 and 1/2.

    Quotients and roots may be closer to a tie than two components can tell.
    """
    out = ex.select(y[0] == -1.0, ex.reciprocal(x), out)
    return ex.select(y[0] == 0.5, ex.sqrt(x), out)


def _against_one(a: Components) -> tuple[Tensor, Tensor]:
    """Return whether a > 1, and whether a = 1."""
    rest = a[1] if len(a) > 1 else torch.zeros_like(a[0])
    edge = a[0] == 1
    return (a[0] > 1) | (edge & (rest > 0)), edge & (rest == 0)


def pow_error(e: Steps) -> float:
    """Return the error of pow, of small powers by products where those serve.

    For x**k or x**-k by squaring it is k - 1 times that of a product, since squaring doubles the
    error of x**j. A half power replaces one product by the root.
    """
    found = _power_error(e)
    if e.fmt is FP64 and serves(e.result):
        found = max(found, (LARGEST - 1) * e.mul() + e.sqrt() + e.div())
    return found


def _power_error(e: Steps) -> float:
    """Return the error of exp(y log x); the logarithm is two floats and a tail of 2**-18 of it.

    Products of the two floats are exact. For sums below four components see `_reduced`: the
    arguments add nine floats each.
    """
    tail = 4 * e.mul() + 2 * e.add() + 3 * e.collect() + e.div() + 2 * e.constant()
    exact = e.fmt is not FP64 or e.terms == tables.TERMS
    sums = 2 * e.collect() * _REST if exact else e.constant()
    return exp_error(e, WORKING[e.fmt].exp_limit * 2.0**-18 * (tail + 64 * e.constant()) + sums)


@function("x", "y", bound=pow_error, worst=0.5, slope=POWER)
def pow(first: Components, second: Components, fmt: Format, terms: int) -> Components:
    """Return x**y with the special values of C99 (Annex F.10.4.4); NaN for x < 0 and non-integer y.

    Whole powers, powers of two and odd half powers of squares are exact if they have that many
    components (and at most 252 bits, except for squares and cubes). In float32 registers odd half
    powers are not exact, and the limit is 108 bits.
    """
    x, y = ex.enter(first, fmt), ex.enter(second, fmt)
    w = ex.working_terms(fmt, terms)
    whole, odd = _whole(y)
    down = torch.signbit(x[0])
    a = ex.signed(x, ex.sign_of(down))
    good = a[0].isfinite() & (a[0] > 0) & y[0].isfinite() & (y[0] != 0)
    base, by = ex.sanitized(a, good, 1.0), ex.sanitized(y, good, 1.0)
    result, e, v = _power(base, by, w)
    result, e = corrected(base, by, whole, result, e, terms)
    out = ex.leave(result, fmt, terms, e)
    if fmt is working().format and terms == 1:
        out = _plainly(base, by, out)
    # The result is beyond the range of every format.
    out = ex.special(v > working().exp_limit, math.inf, out)
    out = ex.special(v < -working().exp_limit, 0.0, out)
    # If x is 0 or infinite, or y infinite, the result is 0 or infinity, depending on which side of
    # 1 |x| is.
    above, is_one = _against_one(a)
    infinite = torch.where(y[0] > 0, above, ~above)
    edge = torch.where(infinite, math.inf, 0.0)
    edge = torch.where(is_one, 1.0, edge)
    ends = a[0].isinf() | (a[0] == 0) | y[0].isinf()
    out = ex.special(ends, edge.to(fmt.dtype), out)
    out = ex.signed(out, ex.sign_of(down & odd).to(fmt.dtype))
    out = ex.special(down & ~whole & ~ends, math.nan, out)
    out = ex.special(x[0].isnan() | y[0].isnan(), math.nan, out)
    one = (y[0] == 0) | (is_one & ~down)
    return ex.special(one, 1.0, out)


@function(
    "x",
    "y",
    bound=lambda e: e.sqrt() + (e.add() + e.mul()) / 2,
    worst=4.63,
    slope=quotient_by("hypot"),
)
def hypot(first: Components, second: Components, fmt: Format, terms: int) -> Components:
    """Return sqrt(x^2 + y^2) without overflow; infinite if x or y is, even if the other is NaN."""
    x, y = ex.enter(first, fmt), ex.enter(second, fmt)
    w = ex.working_terms(fmt, terms)
    finite = x[0].isfinite() & y[0].isfinite()
    x, y = ex.sanitized(x, finite), ex.sanitized(y, finite)
    x = ex.signed(x, ex.sign_of(x[0] < 0))
    y = ex.signed(y, ex.sign_of(y[0] < 0))
    swap = y[0] > x[0]
    n = max(len(x), len(y))
    x, y = ex.head(x, n), ex.head(y, n)
    x, y = ex.select(swap, y, x), ex.select(swap, x, y)
    zero = x[0] == 0
    _, e = ex.mantissa(ex.sanitized(x, ~zero))
    x, y = ex.scale_all(ex.head(x, w), -e), ex.scale_all(ex.head(y, w), -e)
    # If the smaller is below 2**-300 of the larger (2**-60 in float32), its square is negligible.
    y = ex.sanitized(y, y[0] > (2.0**-300 if working().format is FP64 else 2.0**-60), 0.0)
    out = ex.leave(ex.sqrt(ex.add(ex.mul(x, x), ex.mul(y, y))), fmt, terms, e)
    out = ex.special(zero, 0.0, out)
    infinite = first[0].isinf() | second[0].isinf()
    beyond = torch.where(infinite, math.inf, math.nan)
    return ex.special(~finite, beyond.to(fmt.dtype), out)

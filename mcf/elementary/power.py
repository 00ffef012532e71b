"""pow and hypot: special values, and the general computation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import exponential, logarithm, whole_powers
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.ordered_sums import gathered
from mcf.elementary.tables import Components
from mcf.elementary.working import (
    collected,
    enter,
    head,
    leave,
    mantissa,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    two_prod,
    working_terms,
)
from mcf.kernels.formats import FP64, Format

Arguments = tuple[Components, ...]


def _products(y: Components, a: Tensor) -> Components:
    """Return floats whose sum is y * a exactly."""
    return tuple(t for c in y for t in two_prod(c, a))


def _power(x: Components, y: Components, count: int) -> tuple[Components, Tensor, Tensor]:
    """Return components and an exponent of x**y for x > 0, and the float nearest to y log(x).

    The exponent must be known to more bits than the result has. So log(x) is two floats, whose
    products with y are exact, and an expansion of about 2**-18 of it.
    """
    m, e = mantissa(x)
    # m must be at least sqrt(1/2): otherwise the tables of exponents and nodes would cancel.
    high = m[0] > math.sqrt(2)
    m = tuple(torch.where(high, 0.5 * c, c) for c in m)
    logs, lead, lift = logarithm.split(m, e + high.to(torch.int64), count)
    first, second = lead
    y = scale_all(y, -lift)
    v = y[0] * first
    inside = v.abs() <= working().exp_limit
    y = sanitized(y, inside, 0.0)
    k, floats = exponential.steps(torch.where(inside, v, 0.0), count)
    # In float32 only the products of three components fit.
    most = 4 if working().format is FP64 else 3
    r = exponential.reduced(_products(y[:most], first), floats, count)
    tail = ex.mul(head(y, count), logs)
    if len(y) > most:
        tail = ex.add(tail, _products(y[most:], first))
    products = _products(y, second)
    if working().format is FP64:
        # The products of y[j] are below 2**(-43 - 53 j), the tail below 2**-8, r below 2**-9.
        groups = [(0, tail[:1]), (0, tail[1:2]), (1, tail[2:]), (1, r[1:])]
        groups += [(j >> 1, products[j : j + 1]) for j in range(0, len(products), 2)]
        groups += [(j + 1 >> 1, products[j : j + 1]) for j in range(1, len(products), 2)]
        argument = gathered(r[0], groups, count)
    else:
        argument = collected((*r, *products, *tail), count)
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


@function("x", "y")
def pow(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return x**y with the special values of C99 (Annex F.10.4.4); NaN for x < 0 and non-integer y.

    Whole powers, powers of two and odd half powers of squares are exact if they have that many
    components (and at most 252 bits, except for squares and cubes). In float32 registers odd half
    powers are not exact, and the limit is 108 bits.
    """
    first, second = arguments
    x, y = enter(first, fmt), enter(second, fmt)
    w = working_terms(fmt, terms)
    whole, odd = _whole(y)
    down = torch.signbit(x[0])
    a = signed(x, sign_of(down))
    good = a[0].isfinite() & (a[0] > 0) & y[0].isfinite() & (y[0] != 0)
    base, by = sanitized(a, good, 1.0), sanitized(y, good, 1.0)
    result, e, v = _power(base, by, w)
    result, e = whole_powers.exactly(base, by, whole, result, e, terms)
    out = leave(result, fmt, terms, e)
    if fmt is working().format and terms == 1:
        out = _plainly(base, by, out)
    # The result is beyond the range of every format.
    out = special(v > working().exp_limit, math.inf, out)
    out = special(v < -working().exp_limit, 0.0, out)
    # If x is 0 or infinite, or y infinite, the result is 0 or infinity, depending on which side of
    # 1 |x| is.
    above, is_one = _against_one(a)
    infinite = torch.where(y[0] > 0, above, ~above)
    edge = torch.where(infinite, math.inf, 0.0)
    edge = torch.where(is_one, 1.0, edge)
    ends = a[0].isinf() | (a[0] == 0) | y[0].isinf()
    out = special(ends, edge.to(fmt.dtype), out)
    out = signed(out, sign_of(down & odd).to(fmt.dtype))
    out = special(down & ~whole & ~ends, math.nan, out)
    out = special(x[0].isnan() | y[0].isnan(), math.nan, out)
    one = (y[0] == 0) | (is_one & ~down)
    return special(one, 1.0, out)


def _plainly(x: Components, y: Components, out: Components) -> Components:
    """Return 1/x and sqrt(x) of a float as those operations round them, for y = -1 and 1/2.

    Quotients and roots may be closer to a tie than two components can tell.
    """
    out = select(y[0] == -1.0, ex.reciprocal(x), out)
    return select(y[0] == 0.5, ex.sqrt(x), out)


def _against_one(a: Components) -> tuple[Tensor, Tensor]:
    """Return whether a > 1, and whether a = 1."""
    rest = a[1] if len(a) > 1 else torch.zeros_like(a[0])
    edge = a[0] == 1
    return (a[0] > 1) | (edge & (rest > 0)), edge & (rest == 0)


@function("x", "y")
def hypot(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return sqrt(x^2 + y^2) without overflow; infinite if x or y is, even if the other is NaN."""
    first, second = arguments
    x, y = enter(first, fmt), enter(second, fmt)
    w = working_terms(fmt, terms)
    finite = x[0].isfinite() & y[0].isfinite()
    x, y = sanitized(x, finite), sanitized(y, finite)
    x = signed(x, sign_of(x[0] < 0))
    y = signed(y, sign_of(y[0] < 0))
    swap = y[0] > x[0]
    n = max(len(x), len(y))
    x, y = head(x, n), head(y, n)
    x, y = select(swap, y, x), select(swap, x, y)
    zero = x[0] == 0
    _, e = mantissa(sanitized(x, ~zero))
    x, y = scale_all(head(x, w), -e), scale_all(head(y, w), -e)
    # If the smaller is below 2**-300 of the larger (2**-60 in float32), its square is negligible.
    y = sanitized(y, y[0] > (2.0**-300 if working().format is FP64 else 2.0**-60), 0.0)
    out = leave(ex.sqrt(ex.add(ex.mul(x, x), ex.mul(y, y))), fmt, terms, e)
    out = special(zero, 0.0, out)
    infinite = first[0].isinf() | second[0].isinf()
    beyond = torch.where(infinite, math.inf, math.nan)
    return special(~finite, beyond.to(fmt.dtype), out)

"""Tables of the scaled modified Bessel functions and their derivatives, in integers.

Coefficients of exp(-x) I_0(x) follow from its differential equation, x y'' + (2 x + 1) y' + y = 0,
and the power series of I_0 and I_1 at the nodes; exp(-x) I_1(x) is the sum of exp(-x) I_0(x) and
its derivative, and divided by x in its table. y = exp(x) K_0(x) satisfies
x y'' + (1 - 2 x) y' - y = 0, and exp(x) K_1(x) = y - y' (NIST's Digital Library of Mathematical
Functions, 10.31 and 10.40, https://dlmf.nist.gov/10.31).

(-1)^m times the derivatives of order m of exp(-x) I_0(x) and exp(x) K_0(x) are positive for x > 0.
Each derivative of exp(-x) I_1(x) has one zero z there, and is divided by x - z.
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

from torch import Tensor

from mcf.elementary import fixed
from mcf.elementary.gamma_series import derived, quotient, quotient_about
from mcf.elementary.series import Nodes
from mcf.elementary.tables import register_tables, table_of, zero_table

# Coefficients of 1, x, x^2, ...
Polynomial = tuple[int, ...]
# The highest order of a derivative.
LAST = 4
# Coefficients in a row of the functions' tables, and of their derivatives'. Binomial coefficients,
# up to C(44, 4), slow the fall of the latter by SPARE bits.
DEGREES, SLOPE_DEGREES, SPARE = 40, 44, 18.0
# Extra coefficients for the division by x - z, and bits of a zero.
_MORE, _ZERO_BITS = 8, 640
# Bits of the coefficients of I and K.
_I_BITS, _K_BITS = 448, 576


def named(name: str, m: int) -> str:
    """Return the name of the derivative of order m of i0e, i1e, k0e or k1e."""
    return f"{name}_{m}" if m else name


def nodes_of(name: str, m: int = 0) -> Nodes:
    """Return the table of a derivative up to 256, from 0 for I_n, from 1 for K_n."""
    octaves, first = (9, None) if name[0] == "i" else (8, 0)
    degrees, spare = (SLOPE_DEGREES, SPARE) if m else (DEGREES, 0.0)
    return Nodes(f"{named(name, m)}_series", octaves, degrees, first, spare)


def hankel(order: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in sqrt(2 pi x) exp(-x) I_n(x)."""
    top = math.prod((2 * j - 1) ** 2 - 4 * order**2 for j in range(1, k + 1))
    return Fraction(top, math.factorial(k) * 8**k)


def slope_hankel(name: str, m: int, k: int) -> Fraction:
    """Return the coefficient of x^-k in the derivative's Hankel series, divided by (1/2)_m."""
    share = math.prod(Fraction(2 * (k + j) + 1, 2 * j + 1) for j in range(m))
    c = hankel(int(name[1]), k) * share
    return -c if name[0] == "k" and k % 2 else c


def _first_kind(x: Fraction, one: int) -> tuple[int, int]:
    """Return I_0(x) and 2 I_1(x) / x by their power series, in units of 1 / one."""
    p, q = (x * x / 4).as_integer_ratio()
    term, zero, first, k = one, 0, 0, 0
    while term:
        zero, first = zero + term, first + term // (k + 1)
        k += 1
        term = term * p // (q * k * k)
    return zero, first


def _values(c: Fraction) -> tuple[int, int]:
    """Return exp(-c) I_0(c) and exp(-c) I_1(c)."""
    bits = _I_BITS + 2 * int(c) + 16
    zero, first = _first_kind(c, 1 << bits)
    first = first * c.numerator // (2 * c.denominator)
    whole, part = divmod(c, 1)
    decay = fixed.exp(-fixed.to_fixed(part))
    for _ in range(int(whole)):
        decay = decay * _inverse_e() >> fixed.BITS
    cut = bits + fixed.BITS - _I_BITS
    return zero * decay >> cut, first * decay >> cut


@functools.cache
def _inverse_e() -> int:
    return fixed.exp(-fixed.ONE // 2) ** 2 >> fixed.BITS


@functools.cache
def _i_series() -> list[tuple[list[int], Fraction, Fraction]]:
    """Return coefficients of exp(-x) I_0(x) in v = (x - node) / half, with each node and half."""
    found = []
    for c, h in nodes_of("i0e").points():
        zero, one = _values(c)
        a = [zero, int((one - zero) * h)]
        for k in range(SLOPE_DEGREES + _MORE + LAST):
            total = (k + 1) * (k + 2 * c + 1) * h * a[k + 1] + (2 * k + 1) * h * h * a[k]
            a.append(int(-total / (c * (k + 2) * (k + 1))))
        found.append((a, c, h))
    return found


def _start() -> tuple[int, int]:
    """Return exp(x) K_0(x) and exp(x) K_1(x) at 256 by Hankel's series, to about 730 bits."""
    root = fixed.root(fixed.pi() // 512)
    found = []
    for order in (0, 1):
        total = sum(hankel(order, k) / (-256) ** k for k in range(500))
        found.append(root * total.numerator // total.denominator >> (fixed.BITS - _K_BITS))
    return found[0], found[1]


def _continued(y: int, slope: int, start: int, r: int, count: int) -> list[int]:
    """Return coefficients of exp(x) K_0(x) at start r/64 in v = 64 (x - node) / start."""
    a = [y, slope]
    for k in range(count - 2):
        top = (k + 1) * (2 * start * r - 64 * (k + 1)) * a[k + 1] + (2 * k + 1) * start * a[k]
        a.append(top // (64 * r * (k + 1) * (k + 2)))
    return a


@functools.cache
def _k_series() -> list[tuple[tuple[list[int], list[int]], Fraction]]:
    """Return coefficients of exp(x) K_0(x) and (up to `DEGREES`) exp(x) K_1(x), and half-widths.

    They are continued from node to node downwards, a direction in which errors shrink.
    """
    zero, one = _start()
    found = []
    start, r = 256, 64
    slope = (zero - one) * start // 64
    a = _continued(zero, slope, start, r, 120)
    while (start, r) != (1, 65):
        following = (start, r - 2) if r > 65 else (start // 2, 127)
        # The step in units of this node's v, doubled.
        step = Fraction(following[0] * following[1], start) - r
        p, q = step.as_integer_ratio()
        y = slope = 0
        for k in range(len(a) - 1, 0, -1):
            y, slope = a[k] + y * p // q, k * a[k] + slope * p // q
        y = a[0] + y * p // q
        slope = slope * following[0] // start
        start, r = following
        a = _continued(y, slope, start, r, 120)
        second = [x - (k + 1) * a[k + 1] * 64 // start for k, x in enumerate(a[:DEGREES])]
        found.append(((a, second), Fraction(start, 64)))
    return found[::-1]


def _combined(a: Polynomial, b: Polynomial) -> Polynomial:
    length = max(len(a), len(b))
    return tuple(
        x + y
        for x, y in zip(a + (0,) * (length - len(a)), b + (0,) * (length - len(b)), strict=True)
    )


def _moved(a: Polynomial, m: int, sign: int) -> Polynomial:
    """Return (sign x - m) a + x a'."""
    return _combined((0, *(sign * c for c in a)), tuple((k - m) * c for k, c in enumerate(a)))


@functools.cache
def factors(kind: str, m: int) -> tuple[Polynomial, Polynomial]:
    """Return a and b of x^m f^(m)(x) for f = exp(x) K_0(x) and f = exp(-x) I_1(x).

    For the former it is exp(x) (a K_0 + b x K_1), for the latter exp(-x) (a I_0 + b I_1).
    """
    if m == 0:
        return ((1,), (0,)) if kind == "k0e" else ((0,), (1,))
    a, b = factors(kind, m - 1)
    if kind == "k0e":
        # K_0' = -K_1 and (x K_1)' = -x K_0.
        return (
            _combined(_moved(a, m - 1, 1), (0, 0, *(-c for c in b))),
            _combined(_moved(b, m - 1, 1), tuple(-c for c in a)),
        )
    # I_0' = I_1 and I_1' = I_0 - I_1 / x.
    return (
        _combined(_moved(a, m - 1, -1), (0, *b)),
        _combined(_combined(_moved(b, m - 1, -1), tuple(-c for c in b)), (0, *a)),
    )


def _beside_zero(m: int, x: Fraction) -> Fraction:
    """Return a I_0 + b I_1 of `factors`, by power series."""
    one = 1 << (_ZERO_BITS + 64)
    zero, first = _first_kind(x, one)
    a, b = (sum(c * x**k for k, c in enumerate(factor)) for factor in factors("i1e", m))
    return (a * zero + b * first * x / 2) / one


@functools.cache
def zero_of(m: int) -> Fraction:
    """Return the zero of the m-th derivative of exp(-x) I_1(x), by bisection and secant steps."""
    if m == 0:
        return Fraction(0)
    low, high = Fraction(1, 4), Fraction(64)
    for _ in range(24):
        middle = (low + high) / 2
        up = (_beside_zero(m, middle) > 0) == (m % 2 == 0)
        low, high = (low, middle) if up else (middle, high)
    before, at = low, high
    old = _beside_zero(m, before)
    for _ in range(8):
        new = _beside_zero(m, at)
        if new == old:
            break
        following = at - new * (at - before) / (new - old)
        before, old, at = at, new, Fraction(round(following * 2**_ZERO_BITS), 2**_ZERO_BITS)
    return at


def _less_zero(row: list[int], c: Fraction, half: Fraction, m: int) -> list[int]:
    """Return coefficients of a derivative of exp(-x) I_1(x) over x - z, from exp(-x) I_0(x)."""
    slope = [int((k + 1) * b / half) for k, b in enumerate(row[1:])]
    total = [x + y for x, y in zip(row, slope, strict=False)]
    found, at = derived(total, m, half, SLOPE_DEGREES + _MORE), c - zero_of(m)
    divide = quotient_about if abs(at) < half else quotient
    return divide(found, round(at * (1 << _I_BITS)), half, _I_BITS)


def _made(name: str, m: int) -> Tensor:
    """Return the coefficients of (-1)^m times a derivative, over x - z for i1e."""
    degrees, order = nodes_of(name, m).degrees, int(name[1])
    if name[0] == "k":
        rows = (derived(pair[order], m, half, degrees) for pair, half in _k_series())
        return table_of(rows, _K_BITS)
    if order:
        return table_of((_less_zero(*row, m) for row in _i_series()), _I_BITS, degrees)
    return table_of((derived(a, m, half, degrees) for a, _, half in _i_series()), _I_BITS)


for _name in ("i0e", "i1e", "k0e", "k1e"):
    for _m in range(1 if _name == "k1e" else LAST + 1):
        register_tables(**{nodes_of(_name, _m).name: functools.partial(_made, _name, _m)})
for _m in range(1, LAST + 1):
    register_tables(**{f"i1e_{_m}_zero": lambda m=_m: zero_table(zero_of(m))})

"""fmod, remainder and whole quotients: exact except for the rounding to the result's format.

A quotient with fewer bits than a float is known within 1 from the leading components. x minus that
many y is a sum of some floats, whose sign decides between the whole numbers. Longer quotients, and
numbers near an end of the range, are computed by integers on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.convert.few import ratio, rows
from mcf.convert.numbers import nearest
from mcf.elementary import fused
from mcf.elementary import working as ex
from mcf.elementary.format import working
from mcf.elementary.fused import Step
from mcf.elementary.operator import function
from mcf.elementary.tables import TERMS, Components
from mcf.kernels.formats import Format

# A function of two rows of components, whether to round towards zero, a format and terms.
OfRow = Callable[..., tuple[float, ...]]
# Smaller CPU inputs use integers: compiling a kernel takes some seconds.
_FEWEST = 256


def modulo(
    a: Sequence[float], b: Sequence[float], towards_zero: bool, fmt: Format, terms: int
) -> tuple[float, ...]:
    """Return a - q b of two expansions, in integers, rounded once to the nearest expansion."""
    zeros = (0.0,) * (terms - 1)
    x, y = a[0], b[0]
    if not math.isfinite(x) or math.isnan(y) or y == 0:
        return (math.nan, *zeros)
    other = math.copysign(1.0, x) != math.copysign(1.0, y)
    if math.isinf(y):
        if x and other and not towards_zero:
            return (y, *zeros)
        return (*a, *zeros)[:terms]
    n, d = ratio(a)
    m, e = ratio(b)
    # The denominators are powers of two.
    n, m, d = (n * (e // d), m, e) if e > d else (n, m * (d // e), d)
    r = n % m
    if towards_zero and r and (n < 0) != (m < 0):
        r -= m
    first, *rest = nearest(r, d, fmt, terms)
    return (first if first else math.copysign(0.0, x), *rest)


def _less(x: Components, q: Tensor, y: Components) -> Components:
    """Return floats whose sum is x - q y exactly."""
    return (*x, *(-t for c in y for t in ex.two_prod(c, q)))


def exactly(arguments: tuple[Components, ...], towards_zero: bool) -> Components:
    """Return four components of the exact remainder, the whole quotient, and 1 if correct, else 0.

    Let q be floor(x0 / y0) of magnitudes. The quotient of the leading components has a relative
    error of at most 3 u, less than 1/2 in all, so q is the whole quotient or a neighbour of it.
    Products with a whole number have no bit below those of y: nothing underflows.
    """
    x, y = arguments
    width = working()
    down, other = torch.signbit(x[0]), torch.signbit(x[0]) ^ torch.signbit(y[0])
    a, b = ex.signed(x, ex.sign_of(down)), ex.signed(y, ex.sign_of(torch.signbit(y[0])))
    usual = (a[0] < 1 / width.low) & (b[0] < 1 / width.low) & (b[0] > width.low)
    for c in b[1:]:
        usual = usual & ((c == 0) | (c.abs() > width.low))
    a, b = ex.sanitized(a, usual), ex.sanitized(b, usual)
    q = (a[0] / b[0]).floor()
    usual = usual & (q < 2.0 ** (width.format.p - 3))
    q = torch.where(usual, q, 0.0)
    floats = _less(a, q, b)
    (first,) = ex.collected(floats, 1)
    (beyond,) = ex.collected((*floats, *ex.minus(b)), 1)
    under, over = first < 0, beyond >= 0
    q = torch.where(under, q - 1.0, torch.where(over, q + 1.0, q))
    if not towards_zero:
        # For the sign of y take the next multiple, unless the remainder is zero.
        some = (first != 0) & (beyond != 0)
        q = torch.where(other & some, q + 1.0, q)
    floats = _less(a, q, b)
    found = ex.collected(floats, TERMS)
    if len(y) > 2:
        (rest,) = ex.collected((*floats, *ex.minus(found)), 1)
    else:
        # If the last component is zero the others are the exact result.
        rest = found[-1]
    known = usual & (rest == 0)
    return (*ex.signed(found, ex.sign_of(down)), q * ex.sign_of(other), known.to(found[0].dtype))


def _of(towards_zero: bool) -> Step:
    def compute(arguments: tuple[Components, ...], fmt: Format, count: int) -> Components:
        x, y = (ex.enter(v, fmt) for v in arguments)
        return exactly((x, y), towards_zero)

    name = "truncated_remainder" if towards_zero else "floored_remainder"
    return Step(name, compute, ("x", "y"), enters=True)


_STEPS = {towards_zero: _of(towards_zero) for towards_zero in (True, False)}


def with_sign(r: Sequence[Tensor], x: Components) -> Components:
    """Return a remainder whose zeros have the sign of x."""
    first, *lower = r
    return (torch.where(first == 0, torch.copysign(first, x[0]), first), *lower)


def quotient(
    a: Sequence[float], b: Sequence[float], towards_zero: bool, fmt: Format, terms: int
) -> tuple[float, ...]:
    """Return a / b rounded down, or towards zero, as the nearest expansion of that whole number.

    Infinities, NaN and zeros follow PyTorch: a division by 0 gives the quotient a / 0. An infinite
    a gives NaN (infinity when rounding towards zero). An infinite b gives -1 when rounding down a
    negative quotient.
    """
    zeros = (0.0,) * (terms - 1)
    x, y = a[0], b[0]
    sign = math.copysign(1.0, x) * math.copysign(1.0, y)
    if math.isnan(x) or math.isnan(y) or (x == 0 == y):
        return (math.nan, *zeros)
    if y == 0:
        return (math.copysign(math.inf, sign), *zeros)
    if math.isinf(x):
        lost = math.isinf(y) or not towards_zero
        return (math.nan if lost else math.copysign(math.inf, sign), *zeros)
    if math.isinf(y):
        below = x != 0 and sign < 0 and not towards_zero
        return (-1.0 if below else math.copysign(0.0, sign), *zeros)
    n, d = ratio(a)
    m, e = ratio(b)
    n, m = n * e, m * d
    if m < 0:
        n, m = -n, -m
    k = n // m
    if towards_zero and k < 0 and k * m != n:
        k += 1
    if k:
        return nearest(k, 1, fmt, terms)
    # The quotient of a zero; its low components take the sign of x where that of x / y is not y's.
    return (math.copysign(0.0, sign), *(math.copysign(0.0, x),) * (terms - 1))


def small_quotient(
    x: Components, y: Components, whole: Tensor, known: Tensor, fmt: Format, terms: int
) -> tuple[Components, Tensor]:
    """Return a whole quotient of one float as an expansion, and where that is correct."""
    good = (known > 0) & (whole.abs() < 2.0 ** (fmt.p - 4))
    for c in (x[0], y[0]):
        size = c.abs()
        good = good & (size > 2.0 ** (fmt.emin // 2)) & (size < 2.0 ** (fmt.emax // 2))
    zero = whole == 0
    nothing = torch.zeros_like(x[0])
    other, down = torch.signbit(x[0]) ^ torch.signbit(y[0]), torch.signbit(x[0])
    sign, low = (torch.where(t, -nothing, nothing) for t in (other, down))
    first = torch.where(zero, sign, whole.to(fmt.dtype))
    return (first, *(torch.where(zero, low, nothing) for _ in range(terms - 1))), good


def _by_integers(
    x: Components, y: Components, towards_zero: bool, fmt: Format, terms: int, of_row: OfRow
) -> Components:
    given = zip(rows(x), rows(y), strict=True)
    found = [of_row(a, b, towards_zero, fmt, terms) for a, b in given]
    t = torch.tensor(found, dtype=torch.float64, device="cpu").to(x[0].device, fmt.dtype)
    return tuple(t[:, k].reshape(x[0].shape) for k in range(terms))


def _divided(
    x: Components, y: Components, fmt: Format, terms: int, towards_zero: bool, of_row: OfRow
) -> Components:
    """Return remainders (`of_row` is `modulo`) or quotients: by a step where it knows them."""
    x, y = (tuple(c.contiguous() for c in v) for v in (x, y))
    if x[0].device.type == "cpu" and x[0].numel() < _FEWEST:
        return _by_integers(x, y, towards_zero, fmt, terms, of_row)
    *exact, whole, known = fused.run_step(_STEPS[towards_zero], fmt, terms, (x, y))
    if of_row is modulo:
        found = with_sign(torch.ops.mcf.convert(exact, fmt.dtype, terms), x)
        undefined = ~x[0].isfinite() | y[0].isnan() | (y[0] == 0)
        out, good = ex.special(undefined, math.nan, found), (known != 0) | undefined
    else:
        out, good = small_quotient(x, y, whole, known, fmt, terms)
    (at,) = (~good).nonzero(as_tuple=True)
    if len(at) == 0:
        return out
    a, b = (tuple(c[at] for c in v) for v in (x, y))
    few = _by_integers(a, b, towards_zero, fmt, terms, of_row)
    return tuple(c.index_put((at,), found) for c, found in zip(out, few, strict=True))


@function("x", "y", fused=False)
def fmod(x: Components, y: Components, fmt: Format, terms: int) -> Components:
    """Return x - y trunc(x/y), with the sign of x; NaN for infinite x or y = 0.

    A zero has the sign of x. The result is exact except for the rounding to its components.
    Quotients below 2**50 (2**21 in float32 registers) of numbers in normal range are fast. Others
    are computed in Python's integers on the CPU, in some microseconds per element.
    """
    return _divided(x, y, fmt, terms, True, modulo)


@function("x", "y", fused=False)
def remainder(x: Components, y: Components, fmt: Format, terms: int) -> Components:
    """Return x - y floor(x/y), with the sign of y; NaN for infinite x or y = 0.

    A zero has the sign of x. The result is exact except for the rounding to its components.
    Quotients below 2**50 (2**21 in float32 registers) of numbers in normal range are fast. Others
    are computed in Python's integers on the CPU, in some microseconds per element.
    """
    return _divided(x, y, fmt, terms, False, modulo)


@function("x", "y", fused=False)
def floor_quotient(x: Components, y: Components, fmt: Format, terms: int) -> Components:
    """Return x / y rounded down: the nearest expansion of floor(x / y), from the exact quotient.

    Quotients below 2**(p - 4) of numbers in normal range take some sums of floats. Others take
    integers on the CPU, some microseconds per element.
    """
    return _divided(x, y, fmt, terms, False, quotient)


@function("x", "y", fused=False)
def trunc_quotient(x: Components, y: Components, fmt: Format, terms: int) -> Components:
    """Return x / y rounded towards zero: the nearest expansion of trunc(x / y).

    See `floor_quotient`.
    """
    return _divided(x, y, fmt, terms, True, quotient)

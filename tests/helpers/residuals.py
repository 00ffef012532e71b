"""Errors of arithmetic on expansions at some ten million a second: exact residuals in a loop.

    add, renormalize   r - (x + y)        mul, square   r - x y        fma   r - (x y + z)
    div, reciprocal    r y - x            sqrt          r r - x        rsqrt r r x - 1

A residual is a sum of products of components. It is added up without any rounding in a fixed-point
number: digits of 28 bits in int64, which have room for 128 products before carries are passed on.
Only then it becomes a float64, with what it is divided by, so that an error is known to 2**-45 of
itself. What comes that near to a bound is left to `worst.errors`, which has no rounding at all;
`tests/kernels/test_residuals.py` compares the two.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format

Array = np.ndarray[Any, np.dtype[Any]]

# Relative error of `Found.error` and `Found.allowed`, generously.
SLACK = 2.0**-45

_DIGIT = 28
_MASK = (1 << _DIGIT) - 1
_KINDS = {"add": 0, "renormalize": 0, "mul": 1, "square": 1, "fma": 2}
_KINDS |= {"div": 3, "reciprocal": 3, "sqrt": 4, "rsqrt": 5}


@dataclasses.dataclass
class Found:
    """What a chunk of results showed.

    Args:
        error: |r - t| / reference in units of u^n, `reference` as the table of bounds has it; NaN
            where an argument or the result is outside the range for which bounds are stated.
        absolute: the part of it that one eta in the absolute bound allows.
        share: for `fma`, whose reference is |x y| + |t|, the part of it that |x y| is; 0 else.
        disordered: whether the result is not normalised.
    """

    error: Array
    absolute: Array
    share: Array
    disordered: Array

    def beyond(self, absolute: int) -> Array:
        """The error less what `absolute` eta allow, for the relative bound to be compared with."""
        return np.maximum(self.error - self._allowed(absolute), 0.0)

    def suspects(self, relative: float, of_product: float, absolute: int) -> Array:
        """Where the bound may be broken: all where it is, and few where it is not."""
        allowed = relative + (of_product - relative) * self.share + self._allowed(absolute)
        return np.flatnonzero(self.error * (1 + SLACK) > allowed * (1 - SLACK))

    def _allowed(self, absolute: int) -> Array:
        # Where the result is far below eta this overflows, and infinity is as good.
        with np.errstate(over="ignore"):
            return absolute * self.absolute


# What only loops call; LLVM puts it in line, in half the time that Numba's own `inline` takes.
_inner = numba.njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)


@_inner
def _digits(x, unit, out):
    """Split x = sum of out[k] * 2**(28 (first + k) + unit), three signed digits; returns first."""
    bits = np.float64(x).view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    whole = bits & 0xFFFFFFFFFFFFF
    if exponent:
        whole |= 1 << 52
    else:
        exponent = 1
    if whole == 0:
        out[0] = out[1] = out[2] = 0
        return 0
    position = exponent - 1075 - unit
    first = position // _DIGIT
    shift = position - first * _DIGIT
    # 53 bits and a shift of at most 27 are 80 bits.
    low = (whole & _MASK) << shift
    high = (whole >> _DIGIT) << shift
    middle = (low >> _DIGIT) + (high & _MASK)
    sign = -1 if bits < 0 else 1
    out[0] = sign * (low & _MASK)
    out[1] = sign * (middle & _MASK)
    out[2] = sign * ((high >> _DIGIT) + (middle >> _DIGIT))
    return first


@_inner
def _carry(total):
    """Pass carries on; every digit but the last is then in [0, 2**28)."""
    carry = np.int64(0)
    for k in range(len(total) - 1):
        digit = total[k] + carry
        carry = digit >> _DIGIT
        total[k] = digit & _MASK
    total[len(total) - 1] += carry


@_inner
def _magnitude(total):
    """|total| as m * 2**k, m a float64 correct to 2**-52 of itself; destroys total."""
    _carry(total)
    if total[len(total) - 1] < 0:
        for k in range(len(total)):
            total[k] = -total[k]
        _carry(total)
    top = len(total) - 1
    while top > 2 and total[top] == 0:
        top -= 1
    high = np.float64(total[top]) * 2.0**_DIGIT + np.float64(total[top - 1])
    return high * 2.0**_DIGIT + np.float64(total[top - 2]), _DIGIT * (top - 2)


@_inner
def _value(x, i):
    """The sum of the components, correct to a few ulps of float64."""
    out = 0.0
    for k in range(x.shape[0] - 1, -1, -1):
        out += x[k, i]
    return out


@_inner
def _split_all(x, i, unit, digits, firsts):
    for k in range(x.shape[0]):
        firsts[k] = _digits(x[k, i], unit, digits[k])


@_inner
def _add(total, n, digits, firsts, scale, sign):
    """Add sign * 2**(28 * scale) * the number."""
    for k in range(n):
        at = firsts[k] + scale
        for d in range(3):
            total[at + d] += sign * digits[k, d]


@_inner
def _add_product(total, n, a, a_firsts, m, b, b_firsts, sign):
    for k in range(n):
        for j in range(m):
            at = a_firsts[k] + b_firsts[j]
            for d in range(3):
                f = sign * a[k, d]
                # Of a narrow format's three digits one or two are zero.
                if f != 0:
                    for e in range(3):
                        total[at + d + e] += f * b[j, e]


@_inner
def _disordered(r, i, p, eta):
    """Whether |r[k + 1]| <= ulp(r[k]) / 2 fails somewhere."""
    for k in range(r.shape[0] - 1):
        if r[k + 1, i] != 0:
            half = max(math.frexp(r[k, i])[1] - p, eta) - 1
            if r[k, i] == 0 or abs(r[k + 1, i]) > math.ldexp(1.0, half):
                return True
    return False


@numba.njit(cache=True)
def _fill(kind, x, y, z, r, unit, length, p, eta, limit, error, absolute, share, disordered):
    """Fill the arrays of `Found`."""
    n, one, tiny = r.shape[0], -unit // _DIGIT, math.ldexp(1.0, eta + r.shape[0] * p)
    total, exact, product = np.zeros((3, length), np.int64)
    xd, yd, zd, rd = np.zeros((4, 16, 3), np.int64)
    xf, yf, zf, rf = np.zeros((4, 16), np.int64)
    for i in range(r.shape[1]):
        live = (kind != 3 or y[0, i] != 0) and (kind != 5 or x[0, i] != 0)
        for a in (x, y, z, r):
            for k in range(a.shape[0]):
                live &= abs(a[k, i]) < limit
        if not live:
            error[i] = absolute[i] = np.nan
            continue
        disordered[i] = _disordered(r, i, p, eta)
        total[:] = 0
        _split_all(x, i, unit, xd, xf)
        _split_all(r, i, unit, rd, rf)
        # The error relative to the reference t is found / size * 2**shift.
        if kind < 3:
            # total = r - t and exact = t, in units of 2**unit or its square.
            exact[:] = 0
            _split_all(y, i, unit, yd, yf)
            if kind == 0:
                _add(exact, x.shape[0], xd, xf, 0, 1)
                _add(exact, y.shape[0], yd, yf, 0, 1)
                place = unit
            else:
                _add_product(exact, x.shape[0], xd, xf, y.shape[0], yd, yf, 1)
                place = 2 * unit
            size, shift = 0.0, 0
            if kind == 2:
                product[:] = exact
                size, shift = _magnitude(product)
                _split_all(z, i, unit, zd, zf)
                _add(exact, z.shape[0], zd, zf, one, 1)
            total[:] = -exact
            _add(total, n, rd, rf, 0 if kind == 0 else one, 1)
            found, power = _magnitude(total)
            more, at = _magnitude(exact)
            most = max(shift, at)
            own = math.ldexp(size, shift - most)
            size = own + math.ldexp(more, at - most)
            if size == 0:
                error[i], absolute[i] = 0.0 if found == 0 else np.inf, 0.0
            else:
                share[i] = own / size
                error[i] = math.ldexp(found / size, power - most + n * p)
                absolute[i] = math.ldexp(1 / size, eta - most - place + n * p)
        elif kind == 3:
            _split_all(y, i, unit, yd, yf)
            _add_product(total, n, rd, rf, y.shape[0], yd, yf, 1)
            _add(total, x.shape[0], xd, xf, one, -1)
            found, power = _magnitude(total)
            size, shift = math.frexp(abs(_value(x, i)))
            if size == 0:
                error[i], absolute[i] = 0.0 if found == 0 else np.inf, 0.0
            else:
                error[i] = math.ldexp(found / size, power + 2 * unit - shift + n * p)
                absolute[i] = math.ldexp(tiny * (abs(_value(y, i)) + 1) / size, -shift)
        elif kind == 4:
            # |r - t| = |r r - x| / (r + t)
            root, got = math.sqrt(_value(x, i)), _value(r, i)
            _add_product(total, n, rd, rf, n, rd, rf, 1)
            _add(total, x.shape[0], xd, xf, one, -1)
            found, power = _magnitude(total)
            if root == 0:
                error[i], absolute[i] = 0.0 if found == 0 else np.inf, 0.0
            else:
                error[i] = math.ldexp(found / (got + root), power + 2 * unit + n * p) / root
                absolute[i] = (tiny + tiny / root) / root
        else:
            # |r sqrt(x) - 1| = |r r x - 1| / (r sqrt(x) + 1)
            _add_product(product, n, rd, rf, n, rd, rf, 1)
            _carry(product)
            for j in range(length):
                if product[j] != 0:
                    for k in range(x.shape[0]):
                        for d in range(3):
                            if xd[k, d] != 0:
                                total[xf[k] + d + j] += xd[k, d] * product[j]
                    product[j] = 0
            total[3 * one] -= 1
            found, power = _magnitude(total)
            size = _value(x, i)
            inverse = _value(r, i) * math.sqrt(size)
            error[i] = math.ldexp(found / (inverse + 1), power + 3 * unit + n * p)
            absolute[i] = tiny * (1 + size) + tiny / size


@numba.njit(cache=True)
def _extent(x, least, most):
    """Exponents of the smallest and the largest finite number in x, and those given."""
    for k in range(x.shape[0]):
        for i in range(x.shape[1]):
            size = abs(x[k, i])
            if size != 0 and size < np.inf:
                exponent = math.frexp(size)[1]
                least, most = min(least, exponent), max(most, exponent)
    return least, most


def _doubles(components: Sequence[Tensor]) -> Array:
    return torch.stack([t.double() for t in components]).numpy()


def residuals(
    operation: str, fmt: Format, given: Sequence[Sequence[Tensor]], result: Sequence[Tensor]
) -> Found:
    """The errors of a result.

    Args:
        operation: a name in `mcf.kernels.operations`.
        fmt: of the components.
        given: the arguments, each a tuple of one-dimensional tensors.
        result: what the operation returned.
    """
    kind = _KINDS[operation]
    arrays = [_doubles(c) for c in given]
    if operation == "reciprocal":
        arrays.insert(0, np.ones((1, arrays[0].shape[1])))
    if operation == "square":
        arrays.append(arrays[0])
    r = _doubles(result)
    none = np.zeros((0, r.shape[1]))
    x, y, z = (*arrays, none, none)[:3]
    least, most = 0, 1
    for a in (x, y, z, r):
        least, most = _extent(a, least, most)
    # A component's 53 bits begin at unit or above.
    unit = -_DIGIT * (-(least - 54) // _DIGIT + 1)
    factors = (1, 2, 2, 2, 2, 3)[kind]
    length = factors * ((most - unit) // _DIGIT + 3) + 3
    error, absolute = np.empty((2, r.shape[1]))
    share, disordered = np.zeros(r.shape[1]), np.zeros(r.shape[1], np.bool_)
    eta, limit = fmt.emin - fmt.p + 1, float(fmt.max) / 8
    into = (error, absolute, share, disordered)
    _fill(kind, x, y, z, r, unit, length, fmt.p, eta, limit, *into)
    return Found(*into)

"""erfcx and log_ndtr: the scaled complementary error function, and the normal log-probability.

Up to 32 exp(x^2) erfc(x) comes from the table of `mcf.elementary.error`, beyond from the asymptotic
series

    sqrt(pi) x exp(x^2) erfc(x) = 1 - 1/(2 x^2) + 1 3/(2 x^2)^2 - 1 3 5/(2 x^2)^3 + ...

whose error is less than the first omitted term (NIST's Digital Library of Mathematical Functions,
7.12.1, https://dlmf.nist.gov/7.12).
"""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from mcf.elementary import arithmetic as ex
from mcf.elementary import error, fixed, logarithm, series
from mcf.elementary.format import working
from mcf.elementary.operator import function
from mcf.elementary.tables import Components, constant
from mcf.elementary.working import (
    collected,
    enter,
    head,
    leave,
    mantissa,
    minus,
    sanitized,
    scale_all,
    select,
    sign_of,
    signed,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

Arguments = tuple[Components, ...]

# From FAR on the asymptotic series is used; BITS is -log2 of the square of its inverse.
FAR = 32.0
BITS = 10.0


def asymptotic(k: int) -> Fraction:
    """Return the coefficient of 1 / x^(2 k)."""
    return Fraction((-1) ** k * math.prod(range(1, 2 * k, 2)), 2**k)


def _scaled(z: Components, terms: int) -> tuple[Components, Tensor]:
    """Return components and an exponent of exp(z^2) erfc(z) for any z >= 0."""
    far = z[0] >= FAR
    near = error._erfcx(sanitized(head(z, terms), ~far))
    normal, e = mantissa(sanitized(head(z, terms), far, FAR))
    one = head((torch.ones_like(z[0]),), terms)
    inverse = ex.div(one, normal)
    small = scale_all(inverse, -e.clamp(max=400))
    # Beyond this the series is 1.
    square = sanitized(ex.mul(small, small), z[0] < working().huge, 0.0)
    value = ex.mul(series.polynomial(square, BITS, asymptotic), inverse)
    half = fixed.to_fraction(fixed.two_over_root_pi()) / 2
    value = ex.mul(value, constant(half, terms, z[0].device))
    return select(far, value, near), torch.where(far, -e, 0)


@function("x")
def erfcx(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return exp(x^2) erfc(x), 1/(sqrt(pi) x) for large x; infinite beyond the range.

    The error is relative to the result everywhere. Below 0 it is 2 exp(x^2) - erfcx(-x).
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    down = y[0] < 0
    good = y[0].isfinite() & (y[0] >= -working().erf_far) & (y[0] != 0)
    a = signed(sanitized(y, good), sign_of(down & good))
    value, k = _scaled(a, w)
    growth, e = error._gauss(sanitized(a, down & good), w, 0, 1.0)
    below = ex.add(series.scaled(growth, 2.0), minus(scale_all(value, -e)))
    out = leave(select(down, below, value), fmt, terms, torch.where(down, e, k))
    beyond = torch.where(y[0] == 0, 1.0, torch.where(down, math.inf, 0.0))
    return special(~good, torch.where(y[0].isnan(), y[0], beyond).to(fmt.dtype), out)


@function("x")
def log_ndtr(arguments: Arguments, fmt: Format, terms: int) -> Components:
    """Return the logarithm of the normal distribution function, log(erfc(-x / sqrt(2)) / 2).

    The error is relative to the result everywhere. From 0 on it is log(1 - c), c = erfc(x /
    sqrt(2)) / 2. Below, it is -x^2 / 2 + log(erfcx(-x / sqrt(2)) / 2), whose terms are both
    negative.
    """
    (x,) = arguments
    y, w = enter(x, fmt), working_terms(fmt, terms)
    down = y[0] < 0
    end = working().gauss_far
    good = y[0].isfinite() & (y[0] <= end)
    y = sanitized(y, good)
    a = signed(y, sign_of(down & good))
    half_root = constant(fixed.to_fraction(fixed.root(fixed.ONE // 2)), w, a[0].device)
    value, k = _scaled(ex.mul(head(a, w), half_root), w)
    value = series.scaled(value, 0.5)
    gauss, e = error._gauss(sanitized(a, ~down), w, 1)
    tail = ex.mul(gauss, value)
    thin = ~down & (e < -working().thin)
    one, zero = torch.ones_like(a[0]), torch.zeros_like(a[0])
    beside = sanitized(scale_all(minus(tail), e), ~thin, 0.0)
    floats = select(down, (*value, zero), (one, *beside))
    lead = torch.where(down, value[0], collected((one, *beside), 1)[0])
    log, j = logarithm.log(floats, lead, w, 0, torch.where(down, k, 0))
    # A small square is negligible next to log(2); next to a large one the rest is.
    normal, m = mantissa(sanitized(head(a, w), a[0] != 0))
    square, m = minus(ex.mul(normal, normal)), 2 * m - 1
    large, most = down & (a[0] >= working().huge), working().addend
    both = ex.add(scale_all(square, m.clamp(-most, most)), log)
    result = select(down, select(large, square, both), select(thin, minus(tail), log))
    exponents = torch.where(down, torch.where(large, m, 0), torch.where(thin, e, j))
    out = leave(result, fmt, terms, exponents)
    beyond = torch.where(x[0].isnan(), x[0], torch.where(down, -math.inf, -0.0).to(fmt.dtype))
    return special(~good, beyond, out)

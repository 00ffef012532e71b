"""Powers of small whole and half exponents, each a function of a few products rounded once."""

from __future__ import annotations

import math

import torch

from mcf.elementary import arithmetic as ex
from mcf.elementary.format import working
from mcf.elementary.fused import PROGRAMS, Compute, Program
from mcf.elementary.tables import TERMS, Components
from mcf.elementary.working import (
    enter,
    head,
    leave,
    mantissa,
    sanitized,
    scale_all,
    special,
    working_terms,
)
from mcf.kernels.formats import Format

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


def _power(k: int) -> Compute:
    def compute(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        (x,) = arguments
        y, w = enter(x, fmt), working_terms(fmt, terms)
        good = y[0].isfinite() & (y[0] != 0)
        m, e = mantissa(sanitized(y, good, 1.0))
        # Pad with zeros, so that a product keeps more than its factors have.
        power = raised((*m, *(torch.zeros_like(m[0]) for _ in range(w - len(m)))), abs(k))
        # Beyond the range of every format, but within that of `leave`.
        result = ex.reciprocal(power) if k < 0 else power
        out = leave(result, fmt, terms, (e * k).clamp(-1900, 1900))
        edge = x[0] * x[0] * x[0] if k % 2 else x[0] * x[0]
        return special(~good, 1.0 / edge if k < 0 else edge, out)

    compute.__name__ = name_of(k)
    return compute


def _half_power(twice: int) -> Compute:
    k = abs(twice)

    def compute(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        (x,) = arguments
        y, w = enter(x, fmt), working_terms(fmt, terms)
        good = y[0].isfinite() & (y[0] > 0)
        y = sanitized(y, good, 1.0)
        if twice == 1 and terms == 1 and fmt is working().format:
            # The root may be closer to a tie than two components can tell.
            out = ex.sqrt(y)
        else:
            m, e = mantissa(y)
            odd = e & 1
            m = scale_all(head(m, w), odd)
            root = ex.sqrt(m)
            power = root if k == 1 else ex.mul(raised(m, k // 2), root)
            result = ex.reciprocal(power) if twice < 0 else power
            out = leave(result, fmt, terms, ((e - odd >> 1) * twice).clamp(-1900, 1900))
        edge = x[0].abs()
        edge = torch.where((x[0] < 0) & (edge != math.inf), math.nan, edge)
        return special(~good, 1.0 / edge if twice < 0 else edge, out)

    compute.__name__ = name_of(twice / 2)
    return compute


for _k in WHOLE:
    PROGRAMS[name_of(_k)] = Program(_power(_k), ("x",))
for _half in HALVES:
    PROGRAMS[name_of(_half)] = Program(_half_power(int(2 * _half)), ("x",))

"""Results that are numbers of the format are exact: powers, roots, powers of two, logarithms.

And the ends of the ranges: logarithms beside their poles, powers of what is beside 1. The same
inputs failed before powers were corrected (`2**3` was 8 + 2**-104), before 1 - 1 was taken out of
log1p, and before the exponents of atanh had their table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
import mcf.elementary
from mcf.kernels import BF16, FP16, FP32, FP64
from mcf.kernels.exact import is_finite, rounding
from mcf.kernels.formats import Format
from tests.helpers.elementary import worst
from tests.helpers.everyday import everyday
from tests.helpers.sums import values

# Values: on the torch executor, which compiles nothing.
pytestmark = pytest.mark.usefixtures("on_torch")

FORMATS = [BF16, FP16, FP32, FP64]
each_format = pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
each_length = pytest.mark.parametrize("terms", [1, 2, 3, 4])


def parts(value: Fraction, fmt: Format, terms: int) -> list[Fraction] | None:
    """The components of a number, None where they do not hold it."""
    rn, out = rounding(fmt), []
    for _ in range(terms):
        c = rn(value)
        if not is_finite(c):
            return None
        out.append(Fraction(c))
        value -= out[-1]
    return out if value == 0 else None


def expansions(rows: Iterable[list[Fraction]], fmt: Format) -> tuple[Tensor, ...]:
    """Rows of components as tensors."""
    columns = zip(*rows, strict=True)
    return tuple(
        torch.tensor([float(c) for c in column], dtype=torch.float64).to(fmt.dtype)
        for column in columns
    )


def bases(fmt: Format, terms: int) -> list[Fraction]:
    """Small integers, odd integers of every number of bits, and those times powers of two."""
    odd = [2, 3, 5, 7, 10, 15, 127, 129, 2**70 + 1, 2**90 - 1, 2**53 + 2**11]
    for bits in range(8, fmt.p * terms, 9):
        odd += [2**bits - 1, 2**bits + 1, 2**bits - 5 ** (bits // 3)]
    out = [Fraction(m) for m in odd]
    out += [Fraction(m, 2**k) for m in (1, 3, 11, 2**11 - 1) for k in (1, 4, fmt.p)]
    return out + [-x for x in out]


# Bits of a power that may be corrected.
LONGEST = 252


def whole_powers(fmt: Format, terms: int) -> list[tuple[Fraction, Fraction]]:
    """Bases and whole exponents with a power that has no more components than given."""
    exponents = [*range(-4, 13), 17, 20, 23, 30, 37, 60, 66, 67, 91, 130, 133, 134, 135, 144]
    exponents += [fmt.emin, fmt.emin - fmt.p + 1, fmt.emax, -fmt.emax, fmt.emax // 2]
    out = []
    for x in bases(fmt, terms):
        for k in exponents:
            if abs(math.log2(abs(x)) * k) < 1100 and parts(Fraction(k), fmt, terms):
                power = x**k
                # Beyond, sums of a few bits far apart: squares and cubes of them are tested.
                long = k > 3 and power.numerator.bit_length() > LONGEST
                if not long and parts(x, fmt, terms) and parts(power, fmt, terms):
                    out.append((x, Fraction(k)))
    return out


@pytest.mark.sampled(every=8)
@each_length
@each_format
def test_whole_powers_are_exact(fmt: Format, terms: int) -> None:
    cases = whole_powers(fmt, terms)
    assert len(cases) > 200
    given = [expansions([parts(c[k], fmt, terms) or [] for c in cases], fmt) for k in (0, 1)]
    found = values(mcf.elementary.pow(*given))
    wrong = [(x, k) for (x, k), v in zip(cases, found, strict=True) if v != x ** int(k)]
    assert wrong == []


# With two components of float64 there are most cases, and nothing that three do not have.
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("fmt", "terms"),
    everyday(itertools.product(FORMATS, (1, 2, 3, 4)), lambda f, n: (f, n) != (FP64, 2)),
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_roots_and_powers_of_two_are_exact(fmt: Format, terms: int) -> None:
    cases: list[tuple[Fraction, Fraction, Fraction]] = []
    for root in bases(fmt, terms):
        for half in (1, 3, 5, 7) if root > 0 else ():
            if half < 3 or (root**half).numerator.bit_length() <= LONGEST:
                cases.append((root**2, Fraction(half, 2), root**half))
    for e in (-12, -9, 4, 6):
        for y in (Fraction(3, 4), Fraction(-5, 2), Fraction(1, 2), Fraction(-7, 4), Fraction(2)):
            if (e * y).denominator == 1:
                cases.append((Fraction(2) ** e, y, Fraction(2) ** int(e * y)))
    cases = [c for c in cases if all(parts(v, fmt, terms) for v in c)]
    assert len(cases) > 20
    x, y = (expansions([parts(c[k], fmt, terms) or [] for c in cases], fmt) for k in (0, 1))
    wrong = [c for c, v in zip(cases, values(mcf.elementary.pow(x, y)), strict=True) if v != c[2]]
    assert wrong == []


@pytest.mark.sampled(every=6)
@each_length
@each_format
def test_logarithms_of_powers_are_exact(fmt: Format, terms: int) -> None:
    for function, base, exponents in (
        (mcf.elementary.log2, 2, range(fmt.emin - fmt.p + 1, fmt.emax + 1)),
        (mcf.elementary.log10, 10, range(95)),
    ):
        cases = [(k, parts(Fraction(base) ** k, fmt, terms)) for k in exponents]
        some = [(k, row) for k, row in cases if row is not None]
        found = values(function(expansions([row for _, row in some], fmt)))
        wanted = [k for k, _ in some if parts(Fraction(k), fmt, terms) is not None]
        kept = [v for (k, _), v in zip(some, found, strict=True) if k in set(wanted)]
        assert kept == wanted


@pytest.mark.sampled
@each_length
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_powers_of_ten_beside_which_nothing_is_exact(fmt: Format, terms: int) -> None:
    """Some units in the last place beside 1000, the logarithm is not 3."""
    low = Fraction(1000) * fmt.u ** (terms - 1)
    for sign in (1, -1):
        row = parts(1000 + sign * Fraction(2) ** math.ceil(math.log2(low * fmt.u * 8)), fmt, terms)
        assert row is not None
        (value,) = values(mcf.elementary.log10(expansions([row], fmt)))
        assert (value > 3) - (value < 3) in (0, sign)
        if terms < 4:
            assert value != 3


@pytest.mark.sampled(every=4)
@each_length
def test_one_zero_and_signs(terms: int) -> None:
    def at(x: float) -> tuple[Tensor, ...]:
        zero = torch.zeros(1, dtype=torch.float64)
        return (torch.full_like(zero, x), *(zero for _ in range(terms - 1)))

    for name, x, wanted in (
        ("exp", 0.0, 1.0), ("exp", -0.0, 1.0), ("expm1", 0.0, 0.0), ("expm1", -0.0, -0.0),
        ("log", 1.0, 0.0), ("log2", 1.0, 0.0), ("log10", 1.0, 0.0), ("log1p", -0.0, -0.0),
        ("cos", 0.0, 1.0), ("cosh", 0.0, 1.0), ("acosh", 1.0, 0.0), ("acos", 1.0, 0.0),
        ("sigmoid", 0.0, 0.5), ("erfc", 0.0, 1.0), ("normal_cdf", 0.0, 0.5),
        ("sinh", -0.0, -0.0), ("tan", -0.0, -0.0), ("atanh", -0.0, -0.0),
    ):  # fmt: skip
        result = getattr(mcf.elementary, name)(at(x))
        assert [c.item() for c in result] == [wanted, *(0.0,) * (terms - 1)], name
        assert math.copysign(1, result[0].item()) == math.copysign(1, wanted), name
    for x, y, wanted in (
        (0.0, 0.0, 1.0), (-2.0, 3.0, -8.0), (-0.0, 3.0, -0.0), (-0.0, -3.0, -math.inf),
        (0.0, -2.0, math.inf), (-math.inf, 3.0, -math.inf), (-math.inf, -3.0, -0.0),
        (math.nan, 0.0, 1.0), (1.0, math.nan, 1.0), (-1.0, 1e300, 1.0), (-1.0, 2.0**53 - 1, -1.0),
        (2.0, 1e300, math.inf), (2.0, -1e300, 0.0), (-2.0, -1074.0, 5e-324), (0.5, 1074.0, 5e-324),
    ):  # fmt: skip
        result = mcf.elementary.pow(at(x), at(y))
        assert [c.item() for c in result] == [wanted, *(0.0,) * (terms - 1)], (x, y)
        assert math.copysign(1, result[0].item()) == math.copysign(1, wanted), (x, y)


def test_squares_roots_and_reciprocals_of_one_component_are_those_of_the_processor() -> None:
    """Near ties too, which a power of two components would not tell apart."""
    odd = [2**53 - 1, 2**53 - 3, 2**52 + 1, 2**52 + 3, 6369051672525772, 5592117679628511]
    odd += [(2**52 + 7919 * k * k + 2 * k + 1) for k in range(400)]
    x = torch.tensor(odd, dtype=torch.float64)
    # Those of torch may be those of a vector library, which are not always the nearest.
    roots = torch.tensor([math.sqrt(v) for v in odd], dtype=torch.float64)
    for y, wanted in ((2.0, x * x), (-1.0, 1 / x), (0.5, roots)):
        (found,) = mcf.elementary.pow((x,), (torch.full_like(x, y),))
        assert torch.equal(found, wanted), y


def test_tensors_to_whole_powers() -> None:
    two = mcf.tensor(2, terms=2, dtype=torch.float64)
    assert bool(two**3 == 8)
    assert bool(torch.exp2(3 * mcf.ones((), terms=2, dtype=torch.float64)) == 8)
    ten = mcf.tensor(10, terms=4, dtype=torch.float64)
    assert (ten ** torch.tensor(91.0, dtype=torch.float64)).to_fractions() == 10**91
    assert (ten**91).to_fractions() == 10**91
    k = mcf.tensor([-1074, -1000, -3, 0, 5, 1023], terms=3, dtype=torch.float64)
    wanted = [Fraction(2) ** j for j in (-1074, -1000, -3, 0, 5, 1023)]
    assert torch.exp2(k).to_fractions() == wanted
    assert (2**k).to_fractions() == wanted


# Beside a pole, beside 1, and what is left of a number after its leading component.
_TINY = [2.0**-1074, 2.0**-1070, 3 * 2.0**-1060, 2.0**-1022, 2.0**-901, 2.0**-300, 2.0**-110]
EDGES = {
    "log1p": [(-1.0, t) for t in _TINY] + [(-1.0, 2.0**-54), (2.0**-1000, -(2.0**-1060))],
    "atanh": [(1.0, -t) for t in _TINY] + [(-1.0, t) for t in _TINY],
    "acosh": [(1.0, t) for t in _TINY],
    "asin": [(1.0, -t) for t in _TINY],
    "acos": [(1.0, -t) for t in _TINY] + [(-1.0, t) for t in _TINY],
    "log": [(1.0, t) for t in _TINY] + [(t, 0.0) for t in _TINY] + [(2.0**-1000, 2.0**-1060)],
    "log2": [(1.0, -t) for t in _TINY] + [(t, 0.0) for t in _TINY],
    "log10": [(1.0, -t) for t in _TINY] + [(t, 0.0) for t in _TINY],
    "expm1": [(t, 0.0) for t in _TINY] + [(2.0**-1000, 2.0**-1060), (-40.0, 2.0**-1070)],
    "exp": [(-745.0, 2.0**-50), (-708.0, 2.0**-45), (2.0**-1000, 2.0**-1070), (709.75, 2.0**-46)],
    "erfc": [(26.5, 2.0**-60), (27.2, 2.0**-1070), (6.0, -(2.0**-1000)), (-6.0, 2.0**-1000)],
    "sinh": [(2.0**-1000, 2.0**-1060), (2.0**-1074, 0.0), (710.25, 2.0**-1000)],
    "tanh": [(2.0**-1000, 2.0**-1060), (2.0**-1074, 0.0), (40.0, -(2.0**-1000))],
    "tan": [(2.0**-1000, 2.0**-1060), (1.5707963267948966, 6.123233995736766e-17)],
    "gelu": [(-38.5, 2.0**-70), (2.0**-1000, 2.0**-1060), (-37.0, -(2.0**-1070))],
}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", EDGES)
def test_ends_of_the_ranges(name: str) -> None:
    for terms in (2, 3, 4):
        x = expansions([[Fraction(c) for c in row] for row in EDGES[name]], FP64)
        zero = torch.zeros_like(x[0])
        given = (*x, *(zero for _ in range(terms - 2)))
        relative, _ = worst(name, FP64, (given,), getattr(mcf.elementary, name)(given))
        assert relative <= mcf.bound(name, terms, torch.float64).relative * 2.0 ** (53 * terms)


def test_powers_of_what_is_beside_one() -> None:
    """Bases (1, 2^-1074) and its like: their logarithms are below the range, their powers not."""
    rows = [(2.0**-1074, 1e300), (-(2.0**-1074), 1e300), (2.0**-1074, -(2.0**1023)),
            (2.0**-1070, 1.5e308), (2.0**-300, 2.0**300), (-(2.0**-251), 1e76), (2.0**-600, 7.0),
            (3 * 2.0**-1074, 1.7e308), (2.0**-900, -1e271)]  # fmt: skip
    for terms in (2, 3, 4):
        x = expansions(
            [[Fraction(1), Fraction(d)] + [Fraction(0)] * (terms - 2) for d, _ in rows], FP64
        )
        y = expansions([[Fraction(y)] + [Fraction(0)] * (terms - 1) for _, y in rows], FP64)
        relative, _ = worst("pow", FP64, (x, y), mcf.elementary.pow(x, y))
        assert relative <= mcf.bound("pow", terms, torch.float64).relative * 2.0 ** (53 * terms)


@pytest.mark.sampled(every=6)
@each_length
@each_format
def test_powers_too_long_to_be_exact_are_within_the_bound(fmt: Format, terms: int) -> None:
    """Of as many bits as are corrected, and of more, where a correction would have no meaning."""
    small = Fraction(1, 2 ** (fmt.p // 2))
    cases = [
        (1 + m * small, Fraction(k))
        for m in (1, 3, -5, 7)
        for k in (2, 3, 5, 7, 8, 9, 11, 12, 13, 16, 17, 20, 24, 31, -3, -8)
    ]
    x, y = (expansions([parts(c[k], fmt, terms) or [] for c in cases], fmt) for k in (0, 1))
    limit = Fraction(mcf.bound("pow", terms, fmt.dtype).relative)
    for (base, k), found in zip(cases, values(mcf.elementary.pow(x, y)), strict=True):
        exact = base ** int(k)
        # Half of the smallest subnormal number, for fp16.
        room = limit * abs(exact) + fmt.min_subnormal * Fraction(33, 64)
        assert abs(found - exact) <= room, (base, k)

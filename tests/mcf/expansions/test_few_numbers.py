"""Exact: what integers on the host do with few numbers is what tensors do: bits, layouts, errors.

Caught mutants: a quotient rounded down where it is to be cut; `fmod` with the divisor's sign; lower
components left out of a sum; the sign of a zero lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.convert import few, rounding
from mcf.convert.numbers import components_of, nearest
from mcf.convert.rounding import convert
from mcf.expansions.ops.order.neighbours import largest
from mcf.kernels.formats import BF16, FORMATS, FP16, FP32, FP64, Format
from tests.helpers import assert_alike, assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.mcf.expansions.inputs import hard

pytestmark = pytest.mark.usefixtures("on_torch")

DTYPES = [*FORMATS]
# Ties of pairs, both ways; subnormal numbers, the largest, zeros and what is no number.
VALUES: list[Any] = [
    0.0, -0.0, 1, -2.5, Fraction(1, 3), Fraction(-22, 7), 7 * 2**20 + Fraction(1, 5),
    1 + Fraction(1, 2**24) + Fraction(1, 2**60), 1 + Fraction(1, 2**24) - Fraction(1, 2**60),
    -1 - Fraction(3, 2**9), Fraction(3, 2**1074), Fraction(-5, 2**1060), Fraction(7, 2**149),
    Fraction(2**53 - 1) * 2**971, 65519, Fraction(2**25 - 1) * 2**103,
    math.inf, -math.inf, math.nan,
]  # fmt: skip


def one(value: Any, dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    numbers = components_of(value, FORMATS[dtype], terms)
    return mcf.MCFTensor([torch.tensor([v], dtype=torch.float64).to(dtype) for v in numbers])


def _row(xs: list[mcf.MCFTensor]) -> mcf.MCFTensor:
    """Finite ones among numbers as one tensor."""
    parts = [x.components for x in xs if x.isfinite().all()]
    return mcf.MCFTensor([torch.cat(c) for c in zip(*parts, strict=True)])


@pytest.fixture
def by_tensors(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes torch's way the only one."""

    def leave() -> None:
        monkeypatch.setattr(few, "MOST", -1)
        monkeypatch.setattr(rounding, "_FEW", -1)

    return leave


@pytest.mark.parametrize(
    "source",
    everyday(DTYPES, lambda d: d is torch.float32),
    ids=str,
)
def test_conversions_are_those_of_tensors(source: torch.dtype, by_tensors: Any) -> None:
    xs = [one(v, source, terms) for v in VALUES for terms in (2, 3)]
    xs += [_row(xs[k::2][:count]) for k in (0, 1) for count in (7, 23)]
    kinds = [(dtype, terms) for dtype in DTYPES for terms in (1, 3)]

    def results() -> list[Any]:
        return [
            c for x in xs for dtype, terms in kinds for c in convert(x.components, dtype, terms)
        ] + [c for x in xs for f in (x.float, x.double, x.half, x.bfloat16) for c in f().components]

    at_once = results()
    by_tensors()
    assert_all_same_bits(at_once, results(), str(source))


def modulo(a: Fraction, b: Fraction, name: str) -> Fraction:
    r = a % b
    return r - b if name == "fmod" and r and (a < 0) != (b < 0) else r


@pytest.mark.sampled
@pytest.mark.parametrize("fmt", [FP64, FP32, FP16, BF16], ids=lambda fmt: str(fmt.dtype))
@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_remainders_are_exact_ones_rounded(name: str, fmt: Format) -> None:
    for a in VALUES:
        for b in (Fraction(1, 7), -3, Fraction(-9, 2**70), 1e30):
            x, y = one(a, fmt.dtype, 2), one(b, fmt.dtype, 2)
            p, q = x.to_fractions()[0], y.to_fractions()[0]
            if not (isinstance(p, Fraction) and isinstance(q, Fraction)) or q == 0:
                continue
            r = modulo(p, q, name)
            expected = components_of(r or math.copysign(0.0, x.components[0].item()), fmt, 2)
            for got in (getattr(torch, name)(x, y), getattr(mcf, name)(x, y)):
                found = [c.item() for c in got.components]
                assert [*map(float.hex, found)] == [*map(float.hex, expected)], (a, b)


QUOTIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "%": lambda x, y: x % y,
    "//": lambda x, y: x // y,
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor": lambda x, y: x.div(y, rounding_mode="floor"),
    "none": lambda x, y: torch.div(x, y, rounding_mode=None),
}


# Torch's way takes some milliseconds a quotient.
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
@pytest.mark.parametrize(
    "name",
    everyday(QUOTIENTS, lambda n: n not in ("floor", "remainder")),
)
def test_quotients_are_those_of_torchs_way(name: str, dtype: torch.dtype, by_tensors: Any) -> None:
    numbers = [-0.0, 1, -2.5, Fraction(-22, 7), 2**52 + Fraction(1, 3), 2.0**-1070, math.inf]
    cases = [(one(a, dtype, 3), one(b, dtype, 3)) for a in numbers for b in numbers[::-2]]
    # Whole quotients of pairs, and the numbers next to them.
    for k in (3, -7, 15, 16, 2**40 + 1):
        y = one(Fraction(1, 3), dtype, 2)
        x = one(k * y.to_fractions()[0], dtype, 2)
        cases += [(x, y), (x * (1 - 2.0**-14), y)]
    rows = [_row([case[k] for case in cases[-10:]]) for k in (0, 1)]
    cases += [(rows[0], rows[1]), (torch.cat(rows), torch.cat(rows[::-1]))]
    plain: list[Any] = [0.3, -2, 0, math.inf]
    cases += [(one(-2.5, dtype, 2), b) for b in plain]
    at_once = [QUOTIENTS[name](x, y) for x, y in cases]
    by_tensors()
    for k, (x, y) in enumerate(cases):
        assert_alike(at_once[k], QUOTIENTS[name](x, y), f"{name} {k}: {x} {y}")


# Numbers of one component whose quotient's rounding is another whole number; whole quotients up to
# the largest that one component holds and beyond, which two do.
WHOLE: list[tuple[Any, Any, torch.dtype, int]] = [
    (130, Fraction(227, 128), torch.bfloat16, 1),
    (-130, Fraction(227, 128), torch.bfloat16, 1),
    (2**24 - 1, 1, torch.float32, 2), (-(2**24) - 1, 1, torch.float32, 2),
    (2**53 + 1, 1, torch.float64, 2), (3 * (2**53 + 1), -3, torch.float64, 2),
    (Fraction(2**50 + 1, 2), 0.5, torch.float64, 2),
    (2**105 + 1, 1, torch.float64, 2), (3 * 2**104 - 1, 3, torch.float64, 2),
    (-(7 * 2**102) - 1, Fraction(7, 4), torch.float64, 2), (3**40, 3, torch.float64, 2),
]  # fmt: skip


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_whole_quotients_are_exact(mode: str, by_tensors: Any) -> None:
    """Mutants: a limit of the integers' way beyond one component; a difference in one component."""
    cases = [(one(a, dtype, terms), one(b, dtype, terms)) for a, b, dtype, terms in WHOLE]
    for _ in range(2):
        for (a, b, _, _), (x, y) in zip(WHOLE, cases, strict=True):
            exact = Fraction(a) / Fraction(b)
            expected = math.floor(exact) if mode == "floor" else math.trunc(exact)
            assert torch.div(x, y, rounding_mode=mode).to_fractions() == [expected], (a, b)
        by_tensors()


def test_a_quotient_of_integers_is_rounded_as_by_its_definition() -> None:
    for n in (1, -3, 2**53 + 1, 2**54 + 2, 3**40):
        for e in (0, 60, 1074, 1075, 1120):
            got, value = nearest(n, 2**e, FP64, 3), Fraction(n, 2**e)
            assert math.copysign(1.0, got[0]) == math.copysign(1.0, n)
            for x in got:
                assert x == float(value)
                value -= Fraction(x)
    assert nearest(2**1024 - 2**970, 1, FP64, 2) == (math.inf, 0.0)
    assert nearest(1 - 2**1024 + 2**970, 1, FP64, 2)[0] == -(2.0**1023) * (2 - 2.0**-52)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_components_that_are_normalised_come_back(dtype: torch.dtype, by_tensors: Any) -> None:
    tables = [
        [1.0, 2.0**-60], [1.0, 2.0**-20], [2.0**-60, 1.0], [-0.0, 0.0], [0.0, 2.0**-130],
        [math.inf, 0.0], [math.inf, 1.0], [math.nan, 0.0], [1.0, 2.0**-24, 2.0**-25],
    ]  # fmt: skip
    given = [[torch.tensor([v], dtype=dtype) for v in row] for row in tables]
    given += [[torch.ones(2, 2, dtype=dtype).t(), torch.zeros(2, dtype=dtype)]]
    at_once = [mcf.from_components(c) for c in given]
    first, own = given[0][0], at_once[0].components[0]
    assert first.data_ptr() != own.data_ptr()
    by_tensors()
    for got, components in zip(at_once, given, strict=True):
        assert_alike(got, mcf.from_components(components), str(components))
    recorded = [torch.ones(1, dtype=dtype, requires_grad=True), torch.zeros(1, dtype=dtype)]
    assert mcf.from_components(recorded).requires_grad


def test_a_recorded_number_keeps_its_derivative() -> None:
    x = mcf.tensor([1.5], dtype=torch.float64, requires_grad=True)
    for y in (x.to(torch.float32), x.float(), x % 0.4, x.to(terms=3)):
        assert y.requires_grad
    x.float().sum().backward()
    assert x.grad.item() == 1.0  # type: ignore[union-attr]


@pytest.mark.parametrize("terms", [2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_next_to_the_largest_number(
    dtype: torch.dtype, terms: int, by_tensors: Callable[[], None]
) -> None:
    """A sum that the next steps round to infinity; mutant: a first component that is finite."""
    top = list(largest(FORMATS[dtype], terms))
    cells = [torch.tensor([v, -v], dtype=torch.float64).to(dtype) for v in top]
    direction = torch.tensor([math.inf, -math.inf], dtype=dtype)
    above = [*cells[:-1], torch.nextafter(cells[-1], direction)]
    at_once = [convert(c, dtype, k) for c in (cells, above) for k in (2, terms)]
    by_tensors()
    assert at_once[0][0].isfinite().all()
    for got, c, k in zip(at_once, (cells, cells, above, above), (2, terms) * 2, strict=True):
        assert_all_same_bits(got, convert(c, dtype, k), f"{dtype} {k}")


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
def test_components_that_stay_are_those_that_are_computed(dtype: torch.dtype, terms: int) -> None:
    """Exact. Mutants: a tie, what is not in order, an infinity or -0 below taken as it is."""
    stayed = 0
    x = hard(dtype, terms, 64, terms)
    least = torch.full_like(x[0], -0.0)
    inputs = [tuple(c[k : k + 2] for c in x) for k in range(0, 64, 2)]
    inputs.append((x[0], *(least for _ in x[1:])))
    inputs += [tuple(c[2:8].reshape(2, 3).t() for c in x), tuple(c[:0] for c in x)]
    inputs += [tuple(c[2:4] * 2.0 ** (k > 0) for k, c in enumerate(x))]
    inputs += [(torch.full_like(c[:2], v), *x[1:]) for c in x[:1] for v in (torch.inf, torch.nan)]
    for given in inputs:
        parts = [c[: given[0].numel()] if c.shape != given[0].shape else c for c in given]
        found = rounding._unchanged(parts, dtype, terms)
        if found is not None:
            stayed += 1
            expected = torch.ops.mcf.convert(list(parts), dtype, terms)
            assert_all_same_bits(tuple(found), tuple(expected), f"{terms} {dtype}")
            assert [c.stride() for c in found] == [c.stride() for c in expected]
            assert not {c.data_ptr() for c in found} & {c.data_ptr() for c in parts}
    assert 5 < stayed < len(inputs)


@pytest.mark.parametrize(
    "dtype",
    everyday(DTYPES, lambda d: d is torch.float64),
    ids=str,
)
def test_fractions_decimals_and_exponents_are_those_of_tensors(
    dtype: torch.dtype, by_tensors: Any
) -> None:
    """Mutants: a fraction cut below a whole first component; ties away from zero; a zero's sign.

    And signs of what is so small that a product of it is zero, or that its denominator is no float.
    """
    values = [*VALUES, Fraction(1, 2), Fraction(3, 2), Fraction(-1, 8), Fraction(5, 1000)]
    values += [2**40 - Fraction(1, 2**30), Fraction(-(2**50)) + Fraction(1, 2**40), 2**53, -3]
    # A power of two and what is of the other sign below it.
    values += [1 - Fraction(1, 2**60), Fraction(1, 2**60) - 4, Fraction(25, 1000) + Fraction(1, 8)]
    xs = [one(v, dtype, terms) for v in values for terms in (1, 2, 3)]
    least = Fraction(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)
    xs += [one(v, dtype, 2) for a in (1, -1) for b in (least, -least) for v in (a * 2 + b, a + b)]
    row = mcf.MCFTensor([torch.cat([x.components[k] for x in xs[1::3]][:6]) for k in range(2)])
    xs += [row, row.reshape(2, 3).t(), row[:0], _row(xs[2:60:3])]

    def results() -> list[Any]:
        found: list[Any] = []
        for x in xs:
            if x.isfinite().all():
                found += [x.long(), x.to(torch.int64), x[None].long()]
            found += [torch.round(x, decimals=d) for d in (1, 2, 0, -1, 30)]
            found += [*torch.frexp(x)]
        return found

    at_once = results()
    by_tensors()
    for k, (got, expected) in enumerate(zip(at_once, results(), strict=True)):
        assert_alike(got, expected, f"{dtype} {k}")

"""Numbers of a million digits, exponents beyond everything, sizes that no memory holds.

What is long is read in time proportional to its length and exactly as what is short; what is large
is refused before it is begun. Caught mutants: greatest common divisors of long integers, decimals
cut without a last digit that shows it, exponents read before the digits that they shift.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.convert.numbers import components_of
from mcf.expansions import progressions
from mcf.kernels.exact import rounding
from mcf.kernels.formats import FORMATS, format_of

MILLION = 10**6
# Quadratic algorithms took 40 s and more for any of these; a busy machine takes a second.
SECONDS = 20.0

LONG: dict[str, tuple[Callable[[], Any], Fraction | float]] = {
    "decimals": (lambda: "0." + "3" * MILLION, Fraction(1, 3)),
    "a whole number": (lambda: "9" * MILLION, math.inf),
    "digits and decimals": (lambda: "9" * 300 + "." + "7" * MILLION, math.inf),
    "zeros and an exponent": (lambda: "0." + "0" * MILLION + "1e1000002", Fraction(10)),
    "digits and an exponent": (lambda: "3" + "0" * MILLION + "e-1000000", Fraction(3)),
    "zeros before the exponent": (lambda: "1e" + "0" * MILLION + "1", Fraction(10)),
    "an exponent": (lambda: "1e" + "9" * MILLION, math.inf),
    "a negative exponent": (lambda: "-1e-" + "9" * MILLION, Fraction(0)),
    "a denominator": (lambda: "1" + "0" * 5000 + "/3" + "0" * 5000, Fraction(1, 3)),
    "a fraction": (lambda: "1" * MILLION + "/" + "3" * MILLION, Fraction(1, 3)),
    "hexadecimal digits": (lambda: "0x0." + "5" * MILLION, Fraction(1, 3)),
    "a hexadecimal exponent": (lambda: "0x1p-" + "9" * MILLION, Fraction(0)),
    "hexadecimal zeros": (lambda: "0x0." + "0" * MILLION + "1p4000008", Fraction(16)),
    "a Decimal": (lambda: Decimal("0." + "3" * MILLION), Fraction(1, 3)),
    "a Decimal's exponent": (lambda: Decimal("1e999999999999"), math.inf),
    "an int": (lambda: -(1 << 3 * MILLION), -math.inf),
    "a Fraction": (lambda: Fraction((1 << 3 * MILLION) + 1, 3 << 3 * MILLION), Fraction(1, 3)),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", LONG)
def test_long_numbers_are_read_exactly_and_soon(name: str) -> None:
    make, value = LONG[name]
    given = make()
    begun = time.perf_counter()
    x = mcf.tensor(given)
    assert time.perf_counter() - begun < SECONDS
    want = components_of(value, format_of(torch.float32), 2)
    assert [c.item() for c in x.components] == list(want)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize(
    "half", [1 + Fraction(1, 2**24), Fraction(1, 2**150), Fraction(1, 2**1075)]
)
def test_the_last_digit_decides(side: int, half: Fraction) -> None:
    """Halfway between two numbers, the lower one even, and ten thousand decimals to one side."""
    dtype = torch.float64 if half < 2.0**-1000 else torch.float32
    text = _decimals(half)
    # The last digit of such a number is 5.
    assert text[-1] == "5"
    rest = "0" * 10_000 + "1" if side > 0 else "9" * 10_000
    moved = (text if side > 0 else text[:-1] + "4") + rest
    want, tie = (components_of(v, format_of(dtype), 1) for v in (_exactly(moved), half))
    assert mcf.tensor(moved, 1, dtype).components[0].item() == want[0]
    assert (want != tie) == (side > 0)


def _exactly(text: str) -> Fraction:
    """Python reads integers of 4300 digits at most."""
    whole, decimals = text.split(".")
    value = 0
    for k in range(0, len(decimals), 1000):
        part = decimals[k : k + 1000]
        value = value * 10 ** len(part) + int(part)
    return int(whole) + Fraction(value, 10 ** len(decimals))


def _decimals(x: Fraction) -> str:
    power = x.denominator.bit_length() - 1
    digits = str(x.numerator * 5**power).rjust(power + 1, "0")
    return f"{digits[:-power]}.{digits[-power:]}"


def test_the_nearest_expansion_is_a_chain_of_roundings() -> None:
    """Against rational arithmetic: ends of the range, ties, denominators of every kind."""
    draw = random.Random(1)
    for _ in range(2000):
        fmt, terms = draw.choice(list(FORMATS.values())), draw.randint(1, 4)
        ends = [draw.randint(-30, 30), draw.randint(-1150, -900)]
        ends += [fmt.emax + draw.randint(-2, 2), fmt.emin - fmt.p + draw.randint(-3, 3)]
        near = 2 ** draw.randint(1, 60) + draw.choice([-1, 0, 1])
        n = draw.choice([draw.getrandbits(12), draw.getrandbits(300), near])
        d = draw.choice([1, 3, 7, 10 ** draw.randint(1, 40), 2 ** draw.randint(0, 500)])
        value = draw.choice([1, -1]) * Fraction(n, d) * Fraction(2) ** draw.choice(ends)
        rest: Any = value
        want = []
        for _ in range(terms):
            x = rounding(fmt)(rest)
            want.append(float(x))
            rest = rest - x if math.isfinite(want[-1]) else Fraction(0)
        assert list(components_of(value, fmt, terms)) == want


@pytest.mark.parametrize(
    "call",
    [
        lambda: mcf.arange(0, 1e13),
        lambda: mcf.arange(0, 1, Decimal("1e-300")),
        lambda: mcf.arange(10**30),
        lambda: mcf.linspace(0, 1, 10**13),
        lambda: mcf.linspace(0, 1, 2**70),
        lambda: mcf.full((10**13,), "0.1"),
        lambda: mcf.zeros(10**13),
        lambda: mcf.eye(10**7),
        lambda: mcf.rand(10**13),
        lambda: mcf.ones(2**62, 2**62),
    ],
)
def test_what_no_memory_holds_is_refused_at_once(call: Callable[[], Any]) -> None:
    begun = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"memory|overflow"):
        call()
    assert time.perf_counter() - begun < SECONDS


PROGRESSIONS = [
    ("0", "700", "1"),
    ("0", "70", "0.1"),
    ("-3.7", "1", "1/97"),
    ("5", "-5", "-0.01"),
    ("1", "1.0001", "1e-7"),
    ("0", "1e-300", "1e-303"),
    ("-1e5", "1e5", "333/8"),
    ("1e30", "2e30", "3e27"),
]


@pytest.mark.sampled(every=16)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("many", [1 << 60, 1], ids=["steps", "kernels"])
def test_every_number_of_a_progression_is_the_nearest(
    dtype: torch.dtype, terms: int, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutants: a + k s rounded on the way; numbers on a border that are left where they are."""
    monkeypatch.setattr(progressions, "_MANY", many)
    fmt = format_of(dtype)
    for a, b, s in PROGRESSIONS:
        x = mcf.arange(a, b, s, terms=terms, dtype=dtype)
        first, step = Fraction(a), Fraction(s)
        want = [components_of(first + k * step, fmt, terms) for k in range(len(x))]
        assert list(zip(*(c.tolist() for c in x.components), strict=True)) == want
        assert len(x) == math.ceil((Fraction(b) - first) / step)
    for steps in (0, 1, 2, 700):
        y = mcf.linspace("-1/3", 2, steps, terms=terms, dtype=dtype)
        gap = Fraction(7, 3) / max(steps - 1, 1)
        want = [components_of(Fraction(-1, 3) + k * gap, fmt, terms) for k in range(steps)]
        assert list(zip(*(c.tolist() for c in y.components), strict=True)) == want


def test_blocks_of_a_long_progression_fit_together() -> None:
    x = mcf.arange(0, 10**5)
    assert torch.equal(x.to_plain(torch.float64), torch.arange(10**5, dtype=torch.float64))
    y = mcf.arange(0, 10**4, "0.1")
    for k in (0, 2**15 - 1, 2**15, 2**16, 10**5 - 1):
        assert torch.equal(y[k], mcf.tensor(Fraction(k, 10)))


def test_ends_of_too_many_decimals_are_refused() -> None:
    with pytest.raises(ValueError, match="start must have at most 3000 decimals"):
        mcf.arange("0." + "1" * 5000, 2)


def test_rounding_to_any_number_of_decimals() -> None:
    x = mcf.tensor(["0.1", "123.5"], 3)
    assert torch.equal(x.round(decimals=10**9), x)
    assert (x.round(decimals=-(10**9)) == 0).all()


def test_any_number_of_digits_is_printed() -> None:
    x = mcf.tensor("0.1", 2)
    mcf.set_printoptions(precision=10**9)
    try:
        text = str(x).split("(")[1].split(",")[0]
    finally:
        mcf.set_printoptions(profile="default")
    assert Fraction(text) == x.to_fractions()
    assert len(f"{x:.100000f}") == 100_002


def test_lists_are_as_deep_as_tensors() -> None:
    deep: Any = 1.0
    for _ in range(10_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    for data in (deep, circle):
        with pytest.raises(ValueError, match="more than 128 nested lists"):
            mcf.tensor(data)
    with pytest.raises(ValueError, match="brackets do not form a list"):
        mcf.tensor("[" * 100_000)
    with pytest.raises(ValueError, match="of 1000003 characters"):
        mcf.tensor("0.1" + "x" * MILLION)

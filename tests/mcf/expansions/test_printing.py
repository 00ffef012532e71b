"""Test `repr`, `str`, format specifications and print options: exact.

Printed numbers read back to the same components with the fewest digits. Specifications of one
float64 component are compared with Python's, more digits with rationals.

Caught mutants: an exponent of one digit; ties away from even; zeros that `g` keeps; one digit more
or less in `str`; a specification that is dropped for vectors; torch's options ignored.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch

import mcf
from mcf.convert import digits, printing
from mcf.convert.numbers import components_of
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from tests.helpers import assert_all_same_bits
from tests.mcf.expansions.inputs import hard


def brackets(x: mcf.MCFTensor) -> str:
    text = repr(x)
    return text[text.index("(") + 1 : text.rindex("]") + 1]


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_printed_numbers_read_back(dtype: torch.dtype) -> None:
    for terms in (1, 2, 4):
        c = hard(dtype, terms, 24, seed=7)
        x = mcf.tensor(mcf.MCFTensor(c), terms, dtype).reshape(2, 3, 4)
        again = mcf.tensor(brackets(x), terms, dtype)
        assert_all_same_bits(again.components, x.components, f"{terms} terms")


def test_fewest_digits_and_specials() -> None:
    x = mcf.tensor(["0.1", "-1234.5", "1e-30", "2e100", "inf", "nan", "-0", "0"], 2, torch.float64)
    assert brackets(x).split() == [
        "[",
        "0.1,",
        "-1234.5,",
        "1.e-30,",
        "2.e+100,",
        "inf,",
        "nan,",
        "-0.,",
        "0.]",
    ][1:] or "0.1" in brackets(x)
    for text in ("0.1", "-1234.5", "1.e-30", "2.e+100", "inf", "nan", "-0.", "0."):
        assert text in brackets(x)
    assert repr(mcf.tensor("0.1", 4, torch.float64)) == (
        "MCFTensor(0.1, terms=4, dtype=torch.float64)"
    )
    assert repr(mcf.tensor([])) == "MCFTensor([], terms=2, dtype=torch.float32)"


def test_options() -> None:
    x = mcf.tensor(["0.123456789", "1"])
    mcf.set_printoptions(precision=3)
    assert brackets(x) == "[0.123,    1.]"
    mcf.set_printoptions(threshold=5, edgeitems=1)
    assert brackets(mcf.arange(10)) == "[0., ..., 9.]"
    mcf.set_printoptions(profile="default")
    assert "0.123456789" in brackets(x)
    mcf.set_printoptions(threshold=math.inf)
    assert "..." not in brackets(mcf.arange(2000))


def test_wrong_options_change_nothing() -> None:
    before = dataclasses.asdict(printing.OPTIONS)
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"precision": 0}, ValueError, "precision must be at least 1, got 0"),
        ({"precision": 3, "threshold": -1}, ValueError, "threshold must be at least 0, got -1"),
        ({"edgeitems": 1.5}, TypeError, "edgeitems must be an integer, got 1.5"),
        ({"linewidth": True}, TypeError, "linewidth must be an integer, got True"),
        ({"precision": 3, "profile": "full"}, ValueError, "profile must be 'default', got 'full'"),
    ]
    for given, error, message in wrong:
        with pytest.raises(error, match=message):
            mcf.set_printoptions(**given)
        assert dataclasses.asdict(printing.OPTIONS) == before


def test_gradients_are_shown() -> None:
    x = mcf.tensor([1.0], requires_grad=True)
    assert "requires_grad=True" in repr(x)
    assert "grad_fn=<NegBackward0>" in repr(-x)


def test_powers_of_ten_and_carries() -> None:
    mcf.set_printoptions(precision=2)
    assert brackets(mcf.tensor(["0.999"])) == "[1.]"
    assert brackets(mcf.tensor(["0.125"])) == "[0.12]"


@pytest.mark.parametrize("low", [math.nan, math.inf, -math.inf])
def test_a_lower_component_that_is_not_finite_is_printed(low: float) -> None:
    x = mcf.MCFTensor([torch.tensor([1.0, 2.0]), torch.tensor([low, 0.0])])
    shown = {"nan": "nan", "inf": "inf", "-inf": "-inf"}[str(low)]
    assert brackets(x).replace(" ", "") == f"[{shown},2.]"
    assert shown in f"{x[0]:.3f}"
    first = x.to_fractions()[0]
    assert math.isnan(first) if math.isnan(low) else first == low


NUMBERS = [
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 3.5, 0.125, 9.5, 9.96, 99999.5, 999999.5, 1e-4, 1e-5, -123456.0,
    1234567.0, 1e15, 1e16, 1e22, 1e100, 5e-324, 1.7976931348623157e308, 0.1, 2 / 3, -1234.5678,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
SPECS = [
    "e", ".0e", ".3e", "E", "f", ".0f", ".1f", ".20f", "F", "g", ".0g", ".3g", ".12g", "G",
    "+.2f", " .2e", "-.3f", "#.0f", "#.0e", "#g", "#.3g", "12.3f", "<12.3f", "^13.2e",
    "*>14.1f", "x^15.3g", "=+12.2f", "012.2f", "+012.3e", ",.2f", "_.1f", "015,.2f", "016_.1f",
    ".3", ".0", ".17", ",.6g", "<012.1f", "0=9.1f", "}>12.2e",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _default_options() -> Iterator[None]:
    yield
    mcf.set_printoptions(profile="default")
    torch.set_printoptions(profile="default")
    torch._tensor_str.PRINT_OPTS.sci_mode = None


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("spec", SPECS)
def test_one_component_is_formatted_as_a_float(spec: str) -> None:
    for number in NUMBERS:
        x = mcf.tensor(number, 1, torch.float64)
        assert format(x, spec) == format(number, spec), (number, spec)


def test_a_specification_alone_has_the_digits_of_str() -> None:
    x = mcf.tensor("-1234.5", 2, torch.float64)
    assert f"{x}" == "-1234.5"
    assert f"{x:>10}" == "   -1234.5"
    assert f"{x:,}" == "-1,234.5"
    assert f"{mcf.tensor(3, 2)} {mcf.tensor('1e-30', 2)}" == "3.0 1e-30"
    assert f"{mcf.tensor('-inf'):8}|{mcf.tensor('nan'):+}" == "    -inf|+nan"


def test_more_digits_than_a_float_has() -> None:
    x = mcf.tensor("2/3", 4, torch.float64)
    value = x.to_fractions()
    for count in (40, 63, 300):
        assert f"{x:.{count}f}" == f"0.{round(value * 10**count):0{count}d}"
        scaled = str(round(value * 10 ** (count + 1)))
        assert f"{x:.{count}e}" == f"{scaled[0]}.{scaled[1:]}e-01"
        hundred = str(round(value * 10 ** (count + 2)))
        assert f"{x:.{count}%}" == f"{hundred[:2]}.{hundred[2:]}%"


@pytest.mark.parametrize("spec", ["d", "x", "5.f", ".3ff", "!r", "n", "s", "+-5"])
def test_other_specifications_are_refused(spec: str) -> None:
    for x in (mcf.tensor("0.1"), mcf.tensor(["0.1", "2"])):
        with pytest.raises(ValueError, match="format specification"):
            format(x, spec)


def test_vectors_are_formatted_number_by_number() -> None:
    x = mcf.tensor([["0.1", "-2"], ["1e10", "inf"]], 2, torch.float64)
    assert f"{x:.3e}" == ("[[ 1.000e-01, -2.000e+00],\n [ 1.000e+10,        inf]]")
    assert f"{x[0]:.1f}" == "[ 0.1, -2.0]"
    assert f"{x[0]}" == str(x[0])
    assert f"{mcf.zeros(0):.1f}" == "[]"
    with pytest.raises(TypeError, match="no values"):
        format(mcf.zeros(2, device="meta"), ".1f")


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_str_has_the_digits_that_every_expansion_of_the_format_holds(
    dtype: torch.dtype, terms: int
) -> None:
    """Any digits come back up to the count promised; the mutant's extra digit is noise."""
    fmt = FORMATS[dtype]
    bits = min(terms * fmt.p, 1 - (fmt.emin - fmt.p + 1))
    count = math.floor((bits - 1) * math.log10(2))
    assert digits.held(3, 2, fmt, terms) == count
    rng = torch.Generator().manual_seed(11)
    numbers = torch.randint(10**9, (count // 9 + 1, 40), generator=rng).tolist()
    for parts in zip(*numbers, strict=True):
        text = "1" + "".join(f"{p:09d}" for p in parts)[: count - 2] + "7" if count > 1 else "7"
        text = f"{text[0]}.{text[1:]}"
        x = mcf.tensor(text, terms, dtype)
        assert str(x).startswith(f"MCFTensor({text},")


def test_noise_is_not_shown_by_str_and_is_by_repr() -> None:
    x = 1 + mcf.tensor(2.0**-104, 2, torch.float64)
    assert str(x) == "MCFTensor(1., terms=2, dtype=torch.float64)"
    assert mcf.tensor(repr(x).split("(")[1].split(",")[0], 2, torch.float64).equal(x)
    assert repr(x) != str(x)
    small = mcf.tensor("1e-40", 2, torch.float32)
    assert str(small).startswith("MCFTensor(1.e-40, ")


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_half_a_unit_beyond_the_largest_number(fmt: Format) -> None:
    """The sum itself would be read as infinity, what is printed has these components."""
    largest = torch.finfo(fmt.dtype).max
    half = 2.0 ** (fmt.emax - fmt.p)
    for sign in (1, -1):
        value = sign * (Fraction(largest) + Fraction(half) * (1 - Fraction(1, 2**99)))
        x = mcf.tensor(value, 2, fmt.dtype)
        assert [c.item() for c in x.components] == [sign * largest, sign * half]
        text = repr(x).split("(")[1].split(",")[0]
        assert mcf.tensor(text, 2, fmt.dtype).equal(x)
        assert str(x)
    # A sum that no expansion has, of components that overlap: any digits.
    both = torch.full((2,), largest, dtype=fmt.dtype)
    assert repr(mcf.MCFTensor([both[0], both[1].clone()]))


def _fewest(parts: tuple[float, ...], fmt: Format) -> int:
    """By trying all: the fewest digits of a number whose nearest expansion is that of the sum."""
    value = sum(map(Fraction, parts), Fraction(0))
    wanted = components_of(value, fmt, len(parts))
    for count in range(1, 800):
        q, power = digits.significant(value.numerator, value.denominator, count)
        for near in (q - 1, q, q + 1):
            given = Fraction(near) * Fraction(10) ** (power - count + 1)
            if components_of(given, fmt, len(parts)) == wanted:
                return count
    raise AssertionError


@pytest.mark.parametrize("fmt", [FP64, FP32, FORMATS[torch.bfloat16], FORMATS[torch.float16]],
                         ids=lambda f: f.name)  # fmt: skip
def test_the_fewest_digits_are_those_of_trying_all(fmt: Format) -> None:
    """Ties, powers of two, gaps, zeros below, subnormals, components of the other form."""
    rows = [(1.0, 0.0), (2.0**-10, 2.0**-30), (1.0, -(2.0 ** -(fmt.p + 1))), (fmt.u * 3, 0.0)]
    for terms in (1, 2, 3):
        c = hard(fmt.dtype, terms, 24, seed=3)
        rows += list(zip(*(p.double().abs().tolist() if k == 0 else p.double().tolist()
                           for k, p in enumerate(c)), strict=True))  # fmt: skip
    # Half an ulp above an odd number, that belongs to the next one: another form of its sum.
    odd = 1 + 2.0 ** (1 - fmt.p)
    rows.append((odd, 2.0**-fmt.p, 0.0))
    tried = 0
    for parts in rows:
        parts = tuple(map(float, parts))
        if sum(map(Fraction, parts)) <= 0 or not all(map(math.isfinite, parts)):
            continue
        q, power = digits.shortest(parts, fmt)
        count = len(str(q))
        assert count == _fewest(parts, fmt), parts
        value = sum(map(Fraction, parts), Fraction(0))
        again = components_of(Fraction(q) * Fraction(10) ** (power - count + 1), fmt, len(parts))
        assert again == components_of(value, fmt, len(parts)), parts
        tried += 1
    assert tried > 40


def test_options_of_torch_are_followed_where_they_are_not_its_defaults() -> None:
    x = mcf.tensor(["0.123456789", "1"], 2)
    assert "0.123456789" in str(x)
    torch.set_printoptions(precision=3)
    assert str(x) == "MCFTensor([0.123, 1.000], terms=2, dtype=torch.float32)"
    torch.set_printoptions(sci_mode=True)
    assert "[1.235e-01, 1.000e+00]" in repr(x)
    # Ours before torch's.
    mcf.set_printoptions(precision=2, sci_mode=False)
    assert "[0.12,   1.]" in repr(x)
    mcf.set_printoptions(profile="default")
    torch.set_printoptions(profile="default", sci_mode=False)
    assert "[" + "0" * 0 + "0.000000" in repr(mcf.tensor(["1e-9"], 2))
    torch.set_printoptions(threshold=4, edgeitems=1, linewidth=30, sci_mode=None)
    assert repr(mcf.arange(9)) == (
        "MCFTensor([0., ..., 8.],\n          terms=2, dtype=torch.float32)"
    )


def test_large_and_small_numbers_have_exponents_as_torch_has_them() -> None:
    torch.set_printoptions(precision=2)
    for values in ([1.0, 2000.0], [1e9], [1e-5], [0.5, 400.0], [0.0, 3.0]):
        ours = str(mcf.tensor(values, 2, torch.float64))
        theirs = str(torch.tensor([*values, 0.25], dtype=torch.float64)[:-1])
        if any(v % 1 for v in values):
            assert ours[ours.index("[") : ours.index("]")] == theirs[7 : theirs.index("]")]
        exponents = values in ([1.0, 2000.0], [1e9], [1e-5])
        assert ("e" in ours[ours.index("[") : ours.index("]")]) == exponents


@pytest.mark.slow
def test_printing_takes_a_few_times_as_long_as_torch() -> None:
    """Some 4 and 8 times here, and 100 before digits came from integers; 30 is far from both."""
    x = mcf.tensor("1/3", 2, torch.float64) * mcf.arange(1, 1000, terms=2, dtype=torch.float64)
    plain = x.to_plain(torch.float64)

    def least(function: object) -> float:
        times = []
        for _ in range(7):
            start = time.process_time()
            function()  # type: ignore[operator]
            times.append(time.process_time() - start)
        return min(times)

    assert least(lambda: repr(x)) < 30 * least(lambda: repr(plain))

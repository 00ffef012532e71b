"""Test operators next to Python's and NumPy's numbers, and conversions to one number: exact.

Caught mutants: floor, ceil, trunc, round and bool of a rounded float; torch.full, torch.tensor and
alpha= that take the rounded value; a Decimal beyond float64 compared as infinity.
"""

from __future__ import annotations

import decimal
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
NUMBERS = (
    Fraction(1, 3),
    Fraction(1, 2),
    Fraction(-1, 10**400),
    Decimal("0.5"),
    Decimal("NaN"),
    10**30,
    -(10**400),
    np.longdouble(0.5),
)


@pytest.mark.sampled
@pytest.mark.parametrize("compare", COMPARISONS)
@pytest.mark.parametrize("number", NUMBERS, ids=repr)
def test_comparisons_take_the_exact_value_of_a_number(compare: Any, number: Any) -> None:
    data = [Fraction(1, 3), Fraction(1, 2), 0, 10**30, -(10**30), "inf", "-inf", "nan"]
    for terms in (1, 4):
        x = mcf.tensor(data, terms, torch.float64)
        exact = Fraction(*number.as_integer_ratio()) if number == number else float("nan")
        want = [compare(v, exact) for v in x.to_fractions()]
        assert compare(x, number).tolist() == want
        if not isinstance(number, np.longdouble):
            mirrored = [compare(exact, v) for v in x.to_fractions()]
            assert compare(number, x).tolist() == mirrored


def test_remainder_and_floor_division_take_fractions() -> None:
    x = mcf.tensor([7, -2])
    assert (x % Fraction(3, 2)).tolist() == [1.0, 1.0]
    assert (x // Fraction(3, 2)).tolist() == [4.0, -2.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ">f8", np.longdouble, np.int64, object])
def test_an_array_is_an_operand_that_loses_nothing(dtype: Any) -> None:
    x = mcf.tensor(["0.1", "0.3"], 4, torch.float64)
    array = np.array([3, -5], dtype=dtype)
    want = x * mcf.tensor([3, -5], 1, torch.float64)
    for product in (x * array, array * x):
        assert isinstance(product, mcf.MCFTensor)
        assert product.to_fractions() == want.to_fractions()
    assert torch.equal(array - x, -(x - array))
    assert (x < array).tolist() == (array > x).tolist() == [True, False]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.nn.utils.rnn.pad_sequence([x, x[:1]]),
        lambda x: x.apply_(abs),
    ],
)
def test_functions_that_would_write_to_plain_memory_are_refused(function: Any) -> None:
    with pytest.raises(mcf.UnsupportedError, match="not supported on"):
        function(mcf.tensor(["0.1", "0.2"]))


def test_a_plain_tensor_receives_sums_as_an_expansion() -> None:
    x, index = mcf.tensor(["0.1", "0.2"]), torch.tensor([1, 1])
    plain = torch.ones(2)
    want = (torch.ones(2) + mcf.tensor(["0", "0"])).index_add(0, index, x)
    for got in (
        plain.index_add(0, index, x),
        plain.scatter_add(0, index, x),
        plain.index_put((index,), x, accumulate=True),
    ):
        assert isinstance(got, mcf.MCFTensor)
        assert got.to_fractions() == want.to_fractions()
    none = plain.index_add(0, index[:0], x[:0])
    assert isinstance(none, mcf.MCFTensor)


def test_filling_a_plain_tensor_rounds_as_copying_does() -> None:
    assert torch.ones(2).fill_(mcf.tensor("0.1")).tolist() == torch.full((2,), 0.1).tolist()


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_rounded_quotients_of_special_values_are_those_of_torch(mode: str) -> None:
    inf = float("inf")
    x = torch.tensor([5.0, -5.0, 0.0, -0.0, 7.0, inf, -inf, -7.0, float("nan")])
    for y in (0.0, -0.0, inf, -inf, 2.0, -2.0, float("nan")):
        for divisor in (y, torch.tensor(y)):
            got = torch.div(mcf.tensor(x), divisor, rounding_mode=mode)
            assert repr(got.tolist()) == repr(torch.div(x, divisor, rounding_mode=mode).tolist())


def test_the_derivative_of_a_sign_is_zero_in_double_backward() -> None:
    x = mcf.tensor([0.0, -1.0, 2.0], requires_grad=True)
    (first,) = torch.autograd.grad((x.abs() * x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [0.0, -2.0, 2.0]


def test_what_is_not_supported_names_the_function() -> None:
    with pytest.raises(mcf.UnsupportedError, match=r"\(aten.bitwise_not.default\)"):
        torch.bitwise_not(mcf.tensor([0.5]))


def test_operators_say_what_is_wrong_with_a_tensor() -> None:
    """Mutant: torch's own methods, of which Python reports unsupported types alone."""
    x, far, imaginary = mcf.ones(2), torch.ones(2, device="meta"), torch.ones(2) * 1j
    for call in (lambda: x + far, lambda: far - x, lambda: x / mcf.ones(2, device="meta")):
        with pytest.raises(RuntimeError, match="on the devices"):
            call()
    with pytest.raises(TypeError, match="complex numbers"):
        torch.maximum(x, imaginary)
    with pytest.raises(TypeError, match="unsupported operand"):
        x + "1"


def test_to_takes_flags_by_position_beside_terms() -> None:
    x = mcf.tensor(["0.1"], 2)
    for y in (x.to("cpu", torch.float64, True, terms=3), x.to(torch.float64, False, True, terms=3)):
        assert (y.dtype, y.terms) == (torch.float64, 3)
        assert y.to_fractions() == x.to_fractions()


def test_swapped_tensors() -> None:
    """As `Module.to` does it, also with a plain tensor."""
    a, b, c = mcf.tensor(["0.1", "0.2"], 3), mcf.tensor(["0.3"], 2), torch.ones(4)
    a.tag = "a"
    expected = [a.components, b.components]
    torch.utils.swap_tensors(a, b)
    assert_all_same_bits(a.components, expected[1])
    assert_all_same_bits(b.components, expected[0])
    assert b.tag == "a"
    torch.utils.swap_tensors(a, c)
    assert_all_same_bits(c.components, expected[1])
    assert c.shape == (1,)
    assert (a == 1).all()


TENTH = mcf.tensor("0.1")
DEEP = mcf.tensor("0.1", 3, torch.float64)
BELOW_ONE = mcf.tensor(1 - Fraction(1, 2**90), 2, torch.float64)
ABOVE_HALF = mcf.tensor(Fraction(5, 2) + Fraction(1, 2**90), 2, torch.float64)


def test_python_integers_are_exact() -> None:
    assert (math.floor(BELOW_ONE), math.ceil(BELOW_ONE), math.trunc(BELOW_ONE)) == (0, 1, 0)
    assert (math.floor(-BELOW_ONE), math.trunc(-BELOW_ONE), int(-BELOW_ONE)) == (-1, 0, 0)
    # The nearest float is 5/2, a tie.
    assert (round(ABOVE_HALF), round(mcf.tensor(2.5)), round(mcf.tensor(3.5))) == (3, 2, 4)
    big = mcf.tensor(10**40 + 1, 4, torch.float64)
    assert (round(big), math.floor(big), int(big)) == (10**40 + 1,) * 3


def test_rounding_to_decimals_is_the_nearest_expansion_of_the_exact_decimal() -> None:
    x = mcf.tensor(["2.675", "-1.25", "1234.5", "-0.001"], 3, torch.float64)
    assert torch.equal(round(x, 2), mcf.tensor(["2.67", "-1.25", "1234.5", "0"], 3, torch.float64))
    assert torch.equal(x.round(decimals=1)[1:], mcf.tensor(["-1.2", "1234.5", "0"], 3, x.dtype))
    assert torch.equal(x.round(decimals=-2), mcf.tensor([0, 0, 1200, 0], 3, torch.float64))
    assert x.round(decimals=1)[3].signbit().item()
    special = mcf.tensor(["inf", "nan"]).round(decimals=2)
    assert special.to_fractions()[0] == math.inf
    assert special.isnan()[1]


def test_truth_ratio_and_membership_are_exact() -> None:
    # Rounded to a float it is 0.
    tiny = mcf.tensor("1e-44", 2, torch.float32) * 0 + mcf.tensor("1e-45")
    assert bool(tiny)
    assert not bool(tiny - tiny)
    assert torch.is_nonzero(tiny)
    # As for floats, also where a NaN follows a zero.
    for parts in ((math.nan, 0.0), (0.0, math.nan), (0.0, 0.0, math.nan)):
        assert bool(mcf.MCFTensor([torch.tensor(c) for c in parts]))
    assert Fraction(*DEEP.as_integer_ratio()) == DEEP.to_fractions()
    third = Fraction(1, 3)
    row = mcf.tensor([third, 2, "0.5"], 4, torch.float64)
    assert row[0].to_fractions() in row
    assert 0.5 in row
    assert Fraction(1, 3) not in row
    for nothing in (None, "0.5"):
        for x in (row, torch.ones(2)):
            with pytest.raises(RuntimeError, match="only supports Tensor or scalar"):
                nothing in x  # noqa: B015
    with pytest.raises(RuntimeError, match=r"bool.. needs a tensor of one element, got 3"):
        bool(row)


def test_float_and_item_round_to_nearest() -> None:
    # Above the tie by a component that a float of the leading ones would not see.
    value = Fraction(1) + Fraction(1, 2**53) + Fraction(1, 2**150)
    x = mcf.tensor(value, 3, torch.float64)
    wanted = float(value)
    assert wanted == 1 + 2.0**-52
    assert (float(x), x.item(), x.tolist(), complex(x)) == (wanted, wanted, wanted, complex(wanted))


def test_divmod_is_quotient_and_remainder() -> None:
    x = mcf.tensor(["0.1", "2.75", "-3.3"], 2)
    for pair, want in (
        (divmod(x, 2), (x // 2, x % 2)),
        (divmod(2, x), (2 // x, 2 % x)),
        (divmod(x, x.flip(0)), (x // x.flip(0), x % x.flip(0))),
    ):
        assert torch.equal(pair[0], want[0])
        assert torch.equal(pair[1], want[1])


def test_sizes_count_every_component() -> None:
    x = mcf.zeros(3, 5, terms=3, dtype=torch.bfloat16)
    assert (x.itemsize, x.element_size(), x.nbytes) == (6, 6, 90)
    assert x.nbytes == sum(c.nbytes for c in x.components)


REFUSED: dict[str, Callable[[], Any]] = {
    "full": lambda: torch.full((2,), TENTH),
    "scalar_tensor": lambda: torch.scalar_tensor(TENTH),
    "full_like of a plain tensor": lambda: torch.full_like(torch.ones(2), TENTH),
    "alpha of plain tensors": lambda: torch.add(torch.ones(2), torch.ones(2), alpha=TENTH),
    "arange": lambda: torch.arange(0, 1, TENTH),
    "a list": lambda: torch.tensor([TENTH, TENTH]),
    "beta": lambda: torch.addmm(DEEP[None, None], DEEP[None, None], DEEP[None, None], beta=DEEP),
    "slope": lambda: torch.nn.functional.leaky_relu(DEEP, DEEP),
    "new": lambda: TENTH.new(2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_would_be_rounded_is_refused(name: str) -> None:
    with pytest.raises(mcf.UnsupportedError, match=r"round|must equal a Python number|x.new_empty"):
        REFUSED[name]()


def test_a_number_that_python_holds_is_taken_exactly() -> None:
    x = mcf.tensor(["0.3", "7"], 2)
    assert torch.equal(torch.add(x, x, alpha=TENTH), x + x * TENTH)
    assert torch.equal(torch.sub(DEEP, x, alpha=DEEP), DEEP - x * DEEP)
    assert torch.equal(x.double().add_(x, alpha=DEEP), (x.double() + x * DEEP).to(terms=2))
    assert torch.equal(torch.addcdiv(x, x, x + 1, value=DEEP), x + x * DEEP / (x + 1))
    assert torch.equal(torch.full((2,), mcf.tensor(0.5)), torch.full((2,), 0.5))
    for made in (torch.full_like(DEEP, DEEP), DEEP.new_full((2,), DEEP)):
        assert made.to_fractions() in (DEEP.to_fractions(), [DEEP.to_fractions()] * 2)


HUGE = [
    decimal.Decimal("1e500"), decimal.Decimal("1e999999"), mpmath.mpf(10) ** 5000,
    np.longdouble("1e4000"), 10**5000, Fraction(10**5000, 3),
]  # fmt: skip
TINY = [
    decimal.Decimal("1e-2000"), decimal.Decimal("1e-99999"), mpmath.mpf(10) ** -5000,
    np.longdouble("1e-4000"), Fraction(1, 10**5000),
]  # fmt: skip


@pytest.mark.parametrize("k", range(len(HUGE)))
def test_numbers_beyond_every_format_are_below_infinity(k: int) -> None:
    value = HUGE[k]
    x = mcf.tensor(["inf", "1e38", "-inf"], 2)
    assert (x > value).tolist() == [True, False, False]
    assert (x < value).tolist() == [False, True, True]
    assert (x >= -value).tolist() == [True, True, False]
    assert not (x == value).any()
    assert (x != value).all()
    assert mcf.tensor(value, 2, torch.float64).isposinf()
    assert mcf.tensor(-value, 2, torch.float64).isneginf()


@pytest.mark.parametrize("k", range(len(TINY)))
def test_numbers_beneath_every_format_are_not_zero(k: int) -> None:
    value = TINY[k]
    x = mcf.tensor([0.0, -0.0, 5e-324], 2, torch.float64)
    assert (x < value).tolist() == [True, True, False]
    assert (x > -value).tolist() == [True, True, True]
    assert not (x == value).any()
    for sign in (1, -1):
        zero = mcf.tensor(sign * value, 2, torch.float64)
        assert zero.to_fractions() == 0
        assert bool(zero.signbit()) == (sign < 0)


@pytest.mark.parametrize("text", ["1e500", "1e99999999999999", "0x1p5000", "1" * 500])
def test_huge_strings_become_infinite_and_are_no_ends_of_a_range(text: str) -> None:
    assert mcf.tensor(text).isposinf()
    assert mcf.tensor(f"-{text}").isneginf()
    with pytest.raises(ValueError, match="end must be finite"):
        mcf.linspace(0, text, 3)


def test_an_expansion_is_no_index() -> None:
    with pytest.raises(TypeError, match="indices"):
        torch.arange(5)[mcf.tensor(1)]
    with pytest.raises(TypeError, match="indices"):
        TENTH[None][mcf.tensor(0)]

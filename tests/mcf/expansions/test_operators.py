"""Operators beside numbers and arrays that torch's own do not take."""

from __future__ import annotations

import operator
from decimal import Decimal
from fractions import Fraction
from typing import Any

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

"""Test `mcf.tensor` of every kind of number, round trips, and distributions: exact.

Caught mutants: strings read through Python's float; a zero that gives an infinity; parameters in
the wrong position; the leading component of a probability.
"""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import mcf
from mcf.convert.numbers import components_of
from mcf.kernels.formats import FORMATS, format_of
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.mcf.expansions.inputs import hard

# Values; the executors have the same bits by other tests.
pytestmark = pytest.mark.usefixtures("on_torch")

TENTH = Fraction(1, 10)


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("0.1", TENTH),
        (" -1_0.25e-1 ", Fraction(-41, 40)),
        ("1/3", Fraction(1, 3)),
        ("0x1.8p-3", Fraction(3, 16)),
        (Decimal("0.1"), TENTH),
        (Fraction(2, 7), Fraction(2, 7)),
        (10**30 + 1, Fraction(10**30 + 1)),
        (True, Fraction(1)),
        (0.1, Fraction(0.1)),
        (np.float32(0.1), Fraction(float(np.float32(0.1)))),
        (np.int64(2**62 + 1), Fraction(2**62 + 1)),
    ],
    ids=str,
)
def test_numbers_become_the_nearest_expansion(
    data: Any, value: Fraction, dtype: torch.dtype
) -> None:
    for terms in (1, 2, 4):
        x = mcf.tensor(data, terms=terms, dtype=dtype)
        assert x.shape == ()
        got = tuple(c.item() for c in x.components)
        assert got == components_of(value, format_of(dtype), terms)


def test_mpmath_numbers_are_taken_with_all_their_digits() -> None:
    with mpmath.workprec(300):
        root = mpmath.sqrt(2)
        x = mcf.tensor([root, mpmath.inf, -mpmath.inf, mpmath.nan], 4, torch.float64)
        # The nearest expansion: no component could be larger than half an ulp of the last.
        assert abs(x[0].to_mpmath() - root) < root * mpmath.mpf(2) ** -212
    assert x.tolist()[1:3] == [math.inf, -math.inf]
    assert math.isnan(x.tolist()[3])


@pytest.mark.parametrize(("dtype", "terms"), [(torch.float64, 4), (torch.float32, 2)])
def test_constants_have_all_the_digits_of_the_target(dtype: torch.dtype, terms: int) -> None:
    with mpmath.workprec(2000):
        known = {"pi": +mpmath.pi, "e": +mpmath.e, "catalan": +mpmath.catalan}
        wanted = {name: mcf.tensor(x, terms, dtype).to_fractions() for name, x in known.items()}
    for name, expected in wanted.items():
        # At the working precision of 53 bits.
        assert mcf.tensor(getattr(mpmath, name), terms, dtype).to_fractions() == expected
    assert mcf.tensor(mcf.pi, terms, dtype).to_fractions() == wanted["pi"]
    assert mcf.tensor(mcf.e, terms, dtype).to_fractions() == wanted["e"]
    one = mcf.tensor(1, terms, dtype)
    assert (one * mcf.pi).to_fractions() == wanted["pi"]
    assert mcf.tensor(mpmath.eps, terms, torch.float64).item() == 2.0**-52


def test_constants_are_numbers_of_python() -> None:
    assert (float(mcf.pi), float(mcf.e)) == (math.pi, math.e)
    assert (repr(mcf.pi), repr([mcf.e])) == ("mcf.pi", "[mcf.e]")
    assert pickle.loads(pickle.dumps(mcf.pi)) is mcf.pi
    assert copy.copy(mcf.e) is copy.deepcopy([mcf.e])[0] is mcf.e
    assert isinstance(2 * mcf.pi, Fraction)
    with mpmath.workprec(1200):
        for mine, theirs in ((mcf.pi, +mpmath.pi), (mcf.e, +mpmath.e)):
            off = mpmath.mpf(mine.numerator) / mine.denominator - theirs
            assert abs(off) < mpmath.mpf(2) ** -1023


def test_mpf_rounds_a_tensor_once_and_an_operand_stays_a_tensor() -> None:
    x = mcf.tensor("0.1", 4, torch.float64)
    assert mpmath.mpf(x) == +x.to_mpmath()
    with mpmath.workprec(300):
        assert mpmath.mpf(x.reshape(1)) == x.to_mpmath()
    for result in (mpmath.mpf(2) * x, x + mpmath.mpf(1), mpmath.mpf(1) - x, mpmath.mpf(1) / x):
        assert isinstance(result, mcf.MCFTensor)
        assert result.terms == 4
    with pytest.raises(TypeError, match=r"one element, got one of shape \[2\]"):
        mpmath.mpf(mcf.tensor([1, 2]))
    assert mpmath.mpf(x.clone().requires_grad_()) == +x.to_mpmath()


FLOATS = {
    torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, *FLOATS])
def test_data_keep_their_dtype_and_terms(dtype: torch.dtype) -> None:
    data: list[Any] = [torch.ones(2, dtype=dtype), [torch.ones(2, dtype=dtype), [1, 2]]]
    if dtype in FLOATS:
        data += [np.ones(2, FLOATS[dtype]), FLOATS[dtype](1), [FLOATS[dtype](1), 2]]
        data += [np.array([FLOATS[dtype](1)], dtype=object)]
    for given in data:
        x = mcf.tensor(given)
        assert (x.dtype, x.terms) == (dtype, 2), given
    for terms in (1, 2, 3, 4):
        x = mcf.tensor("0.1", terms, dtype)
        assert_same_components(mcf.tensor(x), x)
        assert_same_components(mcf.tensor([x, x])[1], x)
        # Each of the two arguments counts by itself.
        assert (mcf.tensor(x, terms=1).dtype, mcf.tensor(x, terms=1).terms) == (dtype, 1)
        assert mcf.tensor(x, dtype=torch.float64).terms == terms


def assert_same_components(x: Any, y: Any) -> None:
    assert x.terms == y.terms
    for a, b in zip(x.components, y.components, strict=True):
        assert_same_bits(a, b)


def test_data_without_a_float_dtype_take_the_default() -> None:
    data: list[Any] = [1, 0.5, "0.1", Fraction(1, 3), [1, "2"], torch.ones(2, dtype=torch.int64)]
    data += [np.ones(2, np.int32), True, [], mpmath.mpf(1), np.array(["0.1"])]
    for given in data:
        assert (mcf.tensor(given).dtype, mcf.tensor(given).terms) == (torch.float32, 2)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        found = [*map(mcf.tensor, data), mcf.zeros(2), mcf.arange(3), mcf.linspace(0, 1, 3)]
        found += [mcf.rand(2), mcf.randn(2), mcf.eye(2), mcf.full((1,), "0.1"), mcf.ones(1)]
        found += [mcf.complex_tensor("1+2j").real, mcf.nn.MCFLinear(2, 2).weight]
        assert {(x.dtype, x.terms) for x in found} == {(torch.float64, 2)}
    finally:
        torch.set_default_dtype(before)


def test_mixed_data_take_the_dtype_to_which_they_promote() -> None:
    wide, narrow = torch.ones(1, dtype=torch.float64), np.ones(1, np.float16)
    assert mcf.tensor([wide, narrow]).dtype == torch.float64
    assert mcf.tensor([narrow, torch.ones(1, dtype=torch.bfloat16)]).dtype == torch.float32
    x = mcf.tensor(["0.1"], 3, torch.float32)
    assert (mcf.tensor([x, wide]).dtype, mcf.tensor([x, wide]).terms) == (torch.float64, 3)
    assert mcf.complex_tensor(np.ones(2, np.complex128)).real.dtype == torch.float64
    assert mcf.complex_tensor(torch.ones(2, dtype=torch.complex64)).real.dtype == torch.float32
    z = mcf.complex_tensor("1+2j", 4, torch.float64)
    assert (mcf.complex_tensor(z).real.dtype, mcf.complex_tensor(z).real.terms) == (
        torch.float64,
        4,
    )


def test_nothing_of_float64_data_is_lost() -> None:
    data = np.array([1e300, 0.1, 5e-324])
    assert mcf.tensor(data).numpy().tolist() == mcf.tensor(torch.from_numpy(data)).tolist()
    assert mcf.tensor(data).tolist() == data.tolist()
    assert mcf.tensor(np.longdouble("1.1")).numpy(np.longdouble) == np.longdouble("1.1")


def test_longdouble_is_exact() -> None:
    a = np.array([1, 2, -7], dtype=np.longdouble) / 3
    x = mcf.tensor(a, dtype=torch.float64)
    assert (x.numpy(np.longdouble) == a).all()
    assert mcf.tensor(a[0], dtype=torch.float64).to_fractions() == x[0].to_fractions()


def test_integers_of_64_bits_are_exact() -> None:
    t = torch.tensor([2**63 - 1, -(2**63), 2**53 + 1, 0])
    assert [int(v) for v in mcf.tensor(t, terms=3).to_fractions()] == t.tolist()
    u = np.array([2**64 - 1, 2**63, 1], dtype=np.uint64)
    assert [int(v) for v in mcf.tensor(u, terms=3).to_fractions()] == u.tolist()


def test_nested_lists_of_everything() -> None:
    x = mcf.tensor([["0.1", 1], [Fraction(1, 2), Decimal(3)]])
    assert x.shape == (2, 2)
    y = mcf.tensor([torch.ones(2), np.zeros(2), mcf.tensor([1.0, 2.0])])
    assert y.tolist() == [[1, 1], [0, 0], [1, 2]]
    assert (
        mcf.tensor(np.array(["0.1", "2"])).to_fractions() == mcf.tensor(["0.1", 2]).to_fractions()
    )
    assert mcf.tensor([]).shape == (0,)
    assert mcf.tensor([[], []]).shape == (2, 0)


@pytest.mark.parametrize(
    "text", ["1e400", "1e999999999999999999999", "-1e-500", "inf", "-0", "nan"]
)
def test_strings_beyond_the_range(text: str) -> None:
    first, second = mcf.tensor(text, dtype=torch.float64).components
    assert_all_same_bits(
        (first, second),
        (
            torch.tensor(float(Decimal(text) if len(text) < 8 else "inf")).double(),
            torch.zeros((), dtype=torch.float64),
        ),
    )


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ("one", ValueError, "'one'"),
        ("1/0", ValueError, "'1/0'"),
        # Underscores as in Python's numbers.
        ("1__0", ValueError, "'1__0'"),
        ("_1", ValueError, "'_1'"),
        ("1_", ValueError, "'1_'"),
        ("1_.5", ValueError, "'1_.5'"),
        ("1_e5", ValueError, "'1_e5'"),
        ("in_f", ValueError, "'in_f'"),
        ("+-inf", ValueError, r"'\+-inf'"),
        ("0x1_p3", ValueError, "'0x1_p3'"),
        ([[1], [1, 2]], ValueError, "different shapes"),
        (1j, TypeError, "complex"),
        (np.array([1j]), TypeError, "complex"),
        (torch.tensor([1j]), TypeError, "complex"),
        pytest.param(object(), TypeError, "object", id="object"),
        (None, TypeError, "NoneType"),
    ],
    ids=str,
)
def test_what_is_no_real_number_is_refused(data: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        mcf.tensor(data)


def test_terms_and_dtype_are_checked() -> None:
    with pytest.raises(ValueError, match="terms must be an int from 1 to 4, got 5"):
        mcf.tensor(1.0, terms=5)
    with pytest.raises(ValueError, match=r"an int from 1 to 4, got 2\.0"):
        mcf.tensor(1.0, terms=2.0)  # type: ignore[arg-type]
    given: Any
    for given in (torch.int32, "float32"):
        with pytest.raises(TypeError, match=rf"dtype must be one of torch.bfloat16.*got {given!r}"):
            mcf.tensor(1.0, dtype=given)


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_every_round_trip_keeps_the_components(dtype: torch.dtype) -> None:
    for terms in (1, 2, 3, 4):
        x = mcf.tensor(mcf.MCFTensor(hard(dtype, terms, 40, seed=terms)), terms, dtype)
        for name, there in {
            "fractions": x.to_fractions(),
            "mpmath": x.to_mpmath(),
            "numpy": x.numpy(object),
            "components": [str(v) for v in x.to_fractions()],
        }.items():
            back = mcf.tensor(there, terms, dtype)
            assert_all_same_bits(back.components, x.components, f"{name} {terms}")
        again = mcf.from_components(x.components)
        assert_all_same_bits(again.components, x.components, f"from_components {terms}")


def test_numpy_refuses_to_round_unless_told() -> None:
    x = mcf.tensor(["0.1", "0.5"])
    assert x[1:].numpy().tolist() == [0.5]
    with pytest.raises(ValueError, match=r"dtype=numpy\.float64"):
        mcf.tensor(["0.1"], terms=3).numpy()
    assert mcf.tensor(["0.1"], terms=3).numpy(np.float64).tolist() == [0.1]
    assert np.asarray(x).dtype == np.float64
    with pytest.raises(RuntimeError, match="detach"):
        x.clone().requires_grad_().numpy()


def test_factories() -> None:
    assert mcf.arange(0, 1, "0.1").to_fractions() == [
        mcf.tensor(Fraction(k, 10)).to_fractions() for k in range(10)
    ]
    assert mcf.arange(5, 2, -1).tolist() == [5, 4, 3]
    assert mcf.linspace(0, 1, 4, terms=3).to_fractions() == [
        mcf.tensor(Fraction(k, 3), terms=3).to_fractions() for k in range(4)
    ]
    assert mcf.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert mcf.full((2,), "0.1", terms=3)[1].to_fractions() == mcf.tensor("0.1", 3).to_fractions()
    assert mcf.zeros(2, 3).shape == mcf.zeros((2, 3)).shape == (2, 3)
    like = mcf.ones_like(torch.zeros(3, dtype=torch.float64))
    assert (like.dtype, like.terms, like.tolist()) == (torch.float64, 2, [1, 1, 1])
    like = mcf.zeros_like(torch.zeros(3, device="meta"), terms=3, dtype=None)
    assert (like.dtype, like.terms, like.device.type) == (torch.float32, 3, "meta")
    drawn = mcf.rand_like(mcf.ones(2, terms=4, dtype=torch.float64), device=None, terms=None)
    assert (drawn.dtype, drawn.terms, drawn.shape) == (torch.float64, 4, (2,))
    assert mcf.ones(2, requires_grad=True).is_leaf


@pytest.mark.statistical
@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_random_numbers_fill_all_components_and_follow_the_seed(dtype: torch.dtype) -> None:
    for terms in (1, 2, 4):
        for make in (mcf.rand, mcf.randn):
            torch.manual_seed(1)
            x = make(500, terms=terms, dtype=dtype)
            torch.manual_seed(1)
            y = make(500, terms=terms, dtype=dtype, generator=None)
            assert_all_same_bits(x.components, y.components)
            g = torch.Generator().manual_seed(1)
            z = make(500, terms=terms, dtype=dtype, generator=g)
            assert_all_same_bits(x.components, z.components)
            # float16 ends at 2**-24: its third component is often 0.
            filled = 2 if dtype is torch.float16 else terms
            for c in x.components[:filled]:
                assert (c != 0).float().mean() > 0.6
            mean = sum(x.to_fractions()) / 500
            # Five standard deviations of the mean of 500.
            expected, width = (0.5, 0.29) if make is mcf.rand else (0.0, 1.0)
            assert abs(mean - expected) < 5 * width / 500**0.5
            if make is mcf.rand:
                assert all(0 <= v < 1 for v in x.to_fractions())


def test_tensors_stand_for_their_numbers() -> None:
    """Mutant: `int` of what has `__index__`, which of a tensor is its whole part."""
    half, third = torch.tensor(0.5), mcf.tensor("1/3")
    assert mcf.arange(half, 3).to_fractions() == [Fraction(k, 2) for k in (1, 3, 5)]
    assert mcf.linspace(0, third, 2)[1].to_fractions() == third.to_fractions()
    assert mcf.full((), half).item() == 0.5
    mixed = mcf.tensor(np.array([half, third, "0.25"], dtype=object))
    assert mixed.to_fractions() == [Fraction(1, 2), third.to_fractions(), Fraction(1, 4)]
    with pytest.raises(ValueError, match="end must be one number"):
        mcf.arange(0, torch.ones(2))


@pytest.mark.parametrize("kind", ["m8[ns]", "M8[D]", [("a", "f4")]])
def test_arrays_of_no_numbers_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="data must be numbers or strings"):
        mcf.tensor(np.zeros(2, dtype=kind))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_sum_of_components_whose_partial_sums_overflow(dtype: torch.dtype) -> None:
    top, tiny = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal * 2**-3
    for given in ([top, top, -top, tiny], [top, top, -top, -tiny], [-top, -top, top, top / 2]):
        x = mcf.from_components(torch.tensor([v], dtype=dtype) for v in given)
        assert x.to_fractions() == [sum(map(Fraction, given))], given
    x = mcf.from_components(torch.tensor([v], dtype=dtype) for v in (top, top, -top / 2))
    assert x.components[0].item() == math.inf


ENDS = [0.1, -0.0, 0.0, 1e300, -1e-310, math.inf, -math.inf, math.nan, 65519.99, 65520.0, 1e-8]


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_few_numbers_are_what_an_array_of_them_is(dtype: torch.dtype) -> None:
    """Mutant: lower components of what is no number of the format left out."""
    for terms in (1, 2, 4):
        rows = [ENDS[:8], [*ENDS[8:], 2.0**-149 * 1.5, 1 + 2.0**-30, 3, 2**53 - 1, -7.5]]
        for row in rows:
            for given in (row, [[row[0], row[1]], [row[2], row[3]]], row[:1]):
                few = mcf.tensor(given, terms, dtype)
                expected = mcf.tensor(np.array(given, dtype=np.float64), terms, dtype)
                assert few.shape == expected.shape
                assert_all_same_bits(few.components, expected.components, given)
    leaf = mcf.tensor(["0.1"], 2, dtype, requires_grad=True)
    assert leaf.requires_grad
    assert leaf.is_leaf


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_numbers_beside_a_tie_are_rounded_as_one_whatever_their_count(dtype: torch.dtype) -> None:
    """Just above 1 + u, whose first component is 1 + 2u; the tie itself has 1 for its first."""
    u = FORMATS[dtype].u
    # Far beyond a second component, and within a fourth one of no format.
    above = 1 + u + u**9
    for count in (1, 8, 9, 40):
        for given in ([above] * count, np.array([above] * count, dtype=object)):
            first, second = mcf.tensor(given, 2, dtype).components
            assert first.tolist() == [float(1 + 2 * u)] * count
            assert second.tolist() == [float(-u)] * count


@pytest.mark.parametrize("dtype", FORMATS, ids=lambda d: FORMATS[d].name)
def test_a_plain_tensor_is_copied_whatever_its_layout(dtype: torch.dtype) -> None:
    plain = torch.tensor([ENDS[:8], ENDS[3:]], dtype=torch.float64).to(dtype)
    wide = torch.stack([plain, plain], -1)[..., 0]
    for terms in (1, 3):
        one, other = mcf.tensor(plain, terms, dtype), mcf.tensor(wide, terms, dtype)
        assert_all_same_bits(one.components, other.components, "plain")
        assert one.components[0].data_ptr() != plain.data_ptr()
    assert mcf.tensor(plain, 2, dtype, requires_grad=True).requires_grad
    assert not mcf.tensor(plain.clone().requires_grad_(), 2, dtype).requires_grad


def test_tensor_of_a_mixed_list_has_the_dtype_that_torch_tensor_gives() -> None:
    half, narrow = torch.tensor(1.0, dtype=torch.float16), torch.tensor(1.0, dtype=torch.bfloat16)
    lists: list[list[Any]] = [
        [narrow, 0.1], [half, 2], [half, narrow], [np.float16(1), 0.1], [np.float16(1), 2],
        [torch.tensor(1.0), np.float64(1)], [narrow, torch.tensor(3)],
    ]  # fmt: skip
    for data in lists:
        assert mcf.tensor(data).dtype == torch.tensor(data).dtype, data
    # Text counts as a float: nearest pairs of float32, and not of bfloat16.
    x = mcf.tensor([narrow, "0.1"])
    assert x.to_fractions()[1] == mcf.tensor("0.1", 2, torch.float32).to_fractions()


def test_numbers_given_to_other_functions_keep_dtype_and_terms() -> None:
    third = mcf.tensor(Fraction(1, 3), 4, torch.float64)
    exact = third.to_fractions()
    assert mcf.full((2,), third).to_fractions() == [exact, exact]
    assert mcf.linspace(third, third, 2).to_fractions() == [exact, exact]
    assert mcf.arange(third, third + 1).to_fractions() == [exact]
    assert mcf.full((1,), np.float64(1e300)).to_fractions() == [Fraction(1e300)]
    assert mcf.full((2,), third, terms=1, dtype=torch.float32).dtype == torch.float32


def test_complex_numbers_keep_dtype_and_terms_of_their_parts() -> None:
    third = mcf.tensor(Fraction(1, 3), 4, torch.float64)
    z = mcf.complex_tensor([mcf.complex(third, third), 1j])
    assert z.real.to_fractions() == [third.to_fractions(), 0]
    for z in (mcf.complex(np.array([1e300]), 0), mcf.complex(np.float64(1e300), 0)):
        assert z.real.reshape(-1).to_fractions() == [Fraction(1e300)]
    # Numbers adapt to a tensor.
    assert mcf.complex(torch.ones(2), np.float64(0.1)).dtype == torch.float32


# One number in 65536 of 16 bits is zero, one in 256 of 8 bits.
COUNT, FORM = 2000, {"terms": 1, "dtype": torch.bfloat16}


def after(seed: int, draw: Callable[[], Any]) -> Any:
    torch.manual_seed(seed)
    return draw()


PI = mcf.tensor(
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899", **FORM
)
FORMULAS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "exponential": (lambda x: x.exponential_(2.0), lambda u: -u.log() / 2),
    "geometric": (
        lambda x: x.geometric_(0.25),
        lambda u: (u.log() / mcf.tensor(0.75, **FORM).log()).ceil(),
    ),
    "cauchy": (lambda x: x.cauchy_(1.0, 2.0), lambda u: ((u - 0.5) * PI).tan() * 2 + 1),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_of_uniform_numbers(name: str) -> None:
    draw, formula = FORMULAS[name]
    got = after(3, lambda: draw(mcf.zeros(COUNT, **FORM)))
    u = after(3, lambda: mcf.rand(COUNT, **FORM))
    assert (u == 0).any()
    # A zero is half of the next number.
    u = torch.where(u == 0, 2.0**-9, u)
    assert got.isfinite().all()
    assert got.to_fractions() == formula(u).to_fractions()
    again = mcf.zeros(COUNT, **FORM)
    generator = torch.Generator().manual_seed(3)
    if name == "exponential":
        again.exponential_(2.0, generator=generator)
        assert again.to_fractions() == got.to_fractions()


def test_formulas_of_normal_numbers() -> None:
    z = after(4, lambda: mcf.randn(50, terms=2, dtype=torch.float64))
    like = mcf.zeros(50, terms=2, dtype=torch.float64)
    got = after(4, lambda: like.clone().log_normal_(0.5, 2.0))
    assert got.to_fractions() == (z * 2 + 0.5).exp().to_fractions()
    mean, std = mcf.tensor("1/3", 2, torch.float64), torch.full((50,), 0.1, dtype=torch.float64)
    for given in ((mean.expand(50), 0.1), (mean.expand(50), std), (mean, std)):
        drawn = after(4, lambda given=given: torch.normal(*given))
        assert drawn.to_fractions() == (z * 0.1 + mean).to_fractions()


def test_probabilities_have_all_digits() -> None:
    u = after(5, lambda: mcf.rand(100, terms=2, dtype=torch.float64))
    above = u + 2.0**-106
    assert after(5, lambda: torch.bernoulli(above)).tolist() == [1.0] * 100
    drawn = after(5, lambda: torch.bernoulli(u))
    assert isinstance(drawn, mcf.MCFTensor)
    assert drawn.tolist() == [0.0] * 100


def test_wrong_parameters() -> None:
    x = mcf.zeros(3)
    for call in (
        lambda: x.exponential_(0),
        lambda: x.geometric_(1.0),
        lambda: x.cauchy_(0, -1),
        lambda: x.log_normal_(0, math.nan),
        lambda: torch.bernoulli(x + 2),
        lambda: torch.normal(x, x - 1),
    ):
        with pytest.raises(RuntimeError, match="expects"):
            call()
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("function", "terms"),
    [
        (mcf.zeros, 2), (mcf.ones, 2), (mcf.rand, 2), (mcf.randn, 2), (mcf.nn.MCFLinear, 2),
        (mcf.nn.MCFEmbedding, 2), (mcf.nn.MCFLayerNorm, 2), (mcf.arange, None),
        (mcf.linspace, None), (mcf.full_like, None), (mcf.zeros_like, None), (mcf.ones_like, None),
        (mcf.rand_like, None), (mcf.randn_like, None),
    ],
)  # fmt: skip
def test_signatures_name_each_option(function: Callable[..., Any], terms: int | None) -> None:
    shown = inspect.signature(function).parameters
    assert shown["terms"].default == terms
    assert {"dtype", "device"} < shown.keys()
    assert "options" not in shown
    assert ("requires_grad" in shown) is not inspect.isclass(function)
    with pytest.raises(TypeError, match=rf"{function.__name__}.*unexpected .* 'typ'"):
        function(2, 3, typ=torch.float32)

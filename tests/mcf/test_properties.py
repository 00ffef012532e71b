"""Laws of arithmetic that hold exactly, on numbers that hypothesis looks for."""

from __future__ import annotations

import math
from fractions import Fraction

import hypothesis.strategies as st
import torch
from hypothesis import assume, given
from torch import Tensor

import mcf
from mcf.kernels import FP32, FP64, Format
from mcf.kernels.exact import Number, rounding

Pair = tuple[Tensor, Tensor]
formats = st.sampled_from([FP32, FP64])


def floats(width: int, limit: float) -> st.SearchStrategy[float]:
    return st.floats(-limit, limit, width=width, allow_nan=False, allow_infinity=False)


def tensor(x: float, fmt: Format) -> Tensor:
    return torch.tensor(x, dtype=torch.float64).to(fmt.dtype)


def value(*components: Tensor) -> Fraction:
    return sum((Fraction(t.item()) for t in components), Fraction(0))


# Far enough from both ends that products of these and their errors are exact in float32.
LARGEST, SMALLEST, SMALLEST_LOW = 2.0**40, 2.0**-20, 2.0**-30


@st.composite
def numbers(draw: st.DrawFn, fmt: Format) -> Tensor:
    x = tensor(draw(floats(32 if fmt is FP32 else 64, LARGEST)), fmt)
    assume(x == 0 or abs(x.item()) >= SMALLEST)
    return x


@st.composite
def pairs(draw: st.DrawFn, fmt: Format) -> Pair:
    """A normalised pair; lo is 0 or not too far below hi."""
    hi = draw(numbers(fmt))
    share = draw(floats(32, 1.0))
    assume(share == 0 or abs(share) >= SMALLEST_LOW)
    return mcf.two_sum(hi, tensor(share * hi.item() * float(fmt.u), fmt))


arguments = formats.flatmap(
    lambda f: st.tuples(st.just(f), numbers(f), numbers(f), pairs(f), pairs(f))
)


def same(x: Pair, y: Pair) -> bool:
    """Equal components; the sign of a zero is not compared."""
    return all(torch.equal(a, b) for a, b in zip(x, y, strict=True))


@given(arguments)
def test_two_sum_is_the_sum(drawn) -> None:
    fmt, a, b, _, _ = drawn
    s, e = mcf.two_sum(a, b)
    assert value(s, e) == value(a) + value(b)
    rounded: Number = rounding(fmt)(value(a) + value(b))
    assert s.item() == float(rounded)
    assert same(mcf.two_sum(b, a), (s, e))
    assert same(mcf.renormalize((e, s)), (s, e))


@given(arguments)
def test_split_is_the_number(drawn) -> None:
    _, a, _, _, _ = drawn
    hi, lo = mcf.split(a)
    assert value(hi, lo) == value(a)
    # Half the bits: the square of each is exact.
    for half in (hi, lo):
        assert half == 0 or abs(half) < 1e-15 or value(half * half) == value(half) ** 2


@given(arguments)
def test_neutral_elements(drawn) -> None:
    fmt, _, _, x, _ = drawn
    one, zero = tensor(1.0, fmt), tensor(0.0, fmt)
    assert same(mcf.grow(x, zero), x)
    assert same(mcf.add(x, (zero, zero)), x)
    assert same(mcf.scale(x, one), x)
    assert same(mcf.mul(x, (one, zero)), x)
    assert same(mcf.renormalize(x), x)


@given(arguments)
def test_commutative(drawn) -> None:
    _, _, _, x, y = drawn
    assert same(mcf.add(x, y), mcf.add(y, x))
    assert same(mcf.mul(x, y), mcf.mul(y, x))


@given(arguments)
def test_odd_in_each_argument(drawn) -> None:
    _, a, _, x, y = drawn
    minus = tuple(-t for t in x)
    assert same(mcf.mul(minus, y), tuple(-t for t in mcf.mul(x, y)))
    assert same(mcf.scale(minus, a), tuple(-t for t in mcf.scale(x, a)))
    assert same(mcf.add(minus, tuple(-t for t in y)), tuple(-t for t in mcf.add(x, y)))
    assert same(mcf.grow(minus, -a), tuple(-t for t in mcf.grow(x, a)))


@given(arguments)
def test_what_cancels_is_zero(drawn) -> None:
    _, _, _, x, _ = drawn
    assert value(*mcf.add(x, tuple(-t for t in x))) == 0
    hi, lo = x
    assert value(*mcf.grow(x, -hi)) == value(lo)


@given(arguments, st.integers(-20, 20))
def test_powers_of_two_scale_exactly(drawn, k: int) -> None:
    fmt, a, _, x, y = drawn
    power = tensor(math.ldexp(1.0, k), fmt)
    scaled = tuple(t * power for t in x)
    assert same(mcf.scale(x, power), scaled)
    assert same(mcf.mul(scaled, y), tuple(t * power for t in mcf.mul(x, y)))
    assert same(mcf.grow(scaled, a * power), tuple(t * power for t in mcf.grow(x, a)))

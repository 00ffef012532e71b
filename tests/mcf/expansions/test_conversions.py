"""Test conversions, integers, decimals, quotients and `frexp` of any count: exact.

One number is converted by integers, some by a cached kernel or by a check that they stay, many by a
kernel, and any number by a program over tensors. All are compared with rationals: the components
are x0 = RN(v), x1 = RN(v - x0), ... of the exact value v.

Caught mutants: float64 rounded to 16-bit types through float32; components dropped instead of
breaking a tie; a sweep less in `_settle`; -0 below an exact sum; views read as dense memory; an
element that a kernel leaves out; a quotient rounded down instead of cut; `fmod` with the divisor's
sign; a fraction cut below a whole first component; a power of two with something negative below it
that keeps its exponent; subnormal numbers that are not lifted; the large factor first.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.convert import conversions, rounding
from mcf.convert.conversions import FEWEST
from mcf.convert.numbers import components_of, nearest
from mcf.expansions.ops.order.neighbours import largest
from mcf.kernels.formats import FORMATS, FP64, Format
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.draws import bell
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

F64, F32, BF16 = torch.float64, torch.float32, torch.bfloat16
DTYPES = tuple(FORMATS)
on_torch = pytest.mark.usefixtures("on_torch")
# Zeros, infinities, NaN, both sides of the largest numbers, and of the smallest.
ENDS = (
    0.0, -0.0, math.inf, -math.inf, math.nan, 65519.0, 65520.0, -(2.0**128 - 2.0**103), 2.0**128,
    1e300, 5e-324, -(2.0**-149), 2.0**-150, 3 * 2.0**-150, -(2.0**-25), 2.0**-24, 2.0**-1022,
    1.7976931348623157e308,
)  # fmt: skip


def _numbers(dtype: torch.dtype, terms: int, count: int = 120) -> tuple[Tensor, ...]:
    """Ties, gaps, the ends of ranges; of pairs also in the other order, and as they overlap."""
    first, *lower = hard(dtype, terms, count, seed=terms)
    ends = torch.tensor(ENDS, dtype=F64).to(dtype)
    parts = [[first, ends], *([c, torch.zeros_like(ends)] for c in lower)]
    if terms == 2:
        for a, b in ((lower[0], first), (first, first.flip(0)), (lower[0], lower[0])):
            keep = (a.double() + b.double() != 0) & (a != 0)
            parts[0].append(a[keep])
            parts[1].append(b[keep])
    if terms > 1:
        # A low component that is not finite is the value.
        parts[0].append(torch.tensor([0.0, 1.5, 1.5], dtype=dtype))
        for c in parts[1:-1]:
            c.append(torch.zeros(3, dtype=dtype))
        parts[-1].append(torch.tensor([math.nan, math.inf, -math.inf], dtype=dtype))
    return tuple(torch.cat(c) for c in parts)


def _values(parts: Sequence[Tensor]) -> list[Any]:
    """Return exact sums; a zero has the sign of its first component."""
    rows = zip(*(c.double().flatten().tolist() for c in parts), strict=True)
    return [
        (sum(map(Fraction, row)) or row[0] * 0.0) if all(map(math.isfinite, row)) else sum(row)
        for row in rows
    ]


def _nearest(values: Sequence[Any], dtype: torch.dtype, terms: int) -> list[Tensor]:
    rows = [components_of(v, FORMATS[dtype], terms) for v in values]
    columns = torch.tensor(rows, dtype=F64).reshape(-1, terms).unbind(1)
    return [c.to(dtype) for c in columns]


def _some(parts: tuple[Tensor, ...]) -> Iterator[tuple[slice, tuple[Tensor, ...]]]:
    """Yield some of the elements, of each way to convert them, and of several layouts."""
    size = len(parts[0])
    for k in range(0, size, 23):
        yield slice(k, k + 1), tuple(c[k : k + 1].clone() for c in parts)
        yield slice(k, k + 1), tuple(c[k] for c in parts)
    for some in (slice(0, 3), slice(4, 11), slice(60, 84), slice(0, 120, 2), slice(0, size)):
        yield some, tuple(c[some] for c in parts)
        yield some, tuple(c[some].clone() for c in parts)
    yield slice(2, 8), tuple(torch._neg_view(-c[2:8]) for c in parts)
    whole = tuple(c[2:8].reshape(3, 2).mT for c in parts)
    assert not whole[0].is_contiguous()
    yield slice(0, 0), tuple(c[:0] for c in parts)


TERMS = ((1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 2), (4, 3), (2, 4), (3, 3), (4, 4))
CASES = everyday(
    [("torch", s, t) for s in DTYPES for t in DTYPES],
    lambda executor, s, t: s is F64 or (s, t) in ((F32, F64), (BF16, BF16), (F32, BF16)),
)
CASES += everyday(
    [("numba", s, t) for s in DTYPES for t in DTYPES],
    lambda executor, s, t: (s, t) in ((F64, F32), (F32, F64)),
)
CASES += [pytest.param("triton", s, t, marks=pytest.mark.slow)
          for s, t in [(s, t) for s in DTYPES for t in DTYPES][::3]]  # fmt: skip


@pytest.mark.parametrize(("executor", "source", "target"), CASES, ids=str)
def test_conversion_of_any_count_is_the_nearest_expansion(
    executor: str, source: torch.dtype, target: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "triton":
        pytest.importorskip("triton", reason="triton has wheels for Linux only")
    daily = (2, 2), (3, 2), (2, 1)
    for terms, into in TERMS if executor == "torch" else daily:
        x = _numbers(source, terms)
        want = _nearest(_values(x), target, into)
        many = tuple(c.repeat(1 + conversions.FEWEST // len(c)) for c in x)
        with mcf.executor(executor):
            for prepared in (False, True)[: 1 + (executor == "numba")]:
                # By a kernel that is compiled as soon as it is asked for, where there is one.
                monkeypatch.setattr(conversions, "OFTEN", 1 if prepared else 1000)
                monkeypatch.setattr(conversions, "_prepared", {})
                for some, given in _some(x):
                    got = rounding.convert(given, target, into)
                    assert [c.shape for c in got] == [given[0].shape] * into
                    assert all(c.is_contiguous() for c in got)
                    assert not {c.data_ptr() for c in got if c.numel()} & {
                        c.data_ptr() for c in given
                    }
                    flat = [c.reshape(-1) for c in got]
                    assert_all_same_bits(flat, [c[some] for c in want], f"{terms} {into} {some}")
                assert bool(conversions._prepared) == prepared
            got = rounding.convert(many, target, into)
        repeated = [c.repeat(len(many[0]) // len(c)) for c in want]
        assert_all_same_bits(got, repeated, f"{terms} {into} many")


def test_conversion_kernel_runs_for_many_and_not_where_an_element_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = _numbers(F64, 2, conversions.FEWEST)
    assert conversions.run(rounding.nearest, x, F32, 2) is not None
    few = [c[:64].clone() for c in x]
    assert conversions.run(rounding.nearest, few, F32, 2) is None
    monkeypatch.setattr(conversions, "OFTEN", 1)
    monkeypatch.setattr(conversions, "_prepared", {})
    assert conversions.run_few(rounding.nearest, few, F32, 2) is not None

    class Left:
        """A launch that leaves an element out."""

        def row(self, scalars: Any) -> Any:
            return lambda addresses: [1.0]

    monkeypatch.setattr(conversions.registry, "prepare", lambda *_: Left())
    monkeypatch.setattr(conversions, "_prepared", {})
    assert conversions.run_few(rounding.nearest, few, F32, 2) is None


@on_torch
def test_conversion_kernel_is_prepared_when_asked_for_often_and_unseen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(conversions, "_launch", lambda *given: asked.append(given))
    monkeypatch.setattr(conversions, "_requests", Counter())
    monkeypatch.setattr(conversions, "_prepared", {})
    x = mcf.tensor(["0.1", "-3"], dtype=F64)
    for _ in range(conversions.OFTEN - 1):
        x.float()
    assert not asked
    x.float(), x.float(), x.to(F32)
    assert len(asked) == 1
    monkeypatch.setattr(conversions, "OFTEN", 0)
    with Seen():
        x.double(), x.half()
    assert x.to("meta").half().dtype is torch.float16
    assert len(asked) == 1
    assert torch.equal(torch.func.vmap(lambda t: t.half())(x), x.half())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: FORMATS[d].name)
def test_format_that_holds_the_value_gives_it_back(dtype: torch.dtype) -> None:
    wider = [d for d in DTYPES if torch.promote_types(d, dtype) is d]
    for terms, via in itertools.product((1, 2, 4), wider):
        c = rounding.convert(hard(dtype, terms, 64, seed=0), dtype, terms)
        back = mcf.MCFTensor(c).to(via, terms=4).to(dtype, terms=terms)
        assert_all_same_bits(back.components, c, f"{terms} terms through {via}")
    t = bell(1000)
    assert_same_bits(mcf.tensor(t, 3, F32).to_plain(F64), t)


@pytest.mark.parametrize("terms", [2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_conversion_next_to_the_largest_number_is_finite_or_infinite(
    dtype: torch.dtype, terms: int
) -> None:
    """A sum that the next steps round to infinity; mutant: a first component that is finite."""
    top = list(largest(FORMATS[dtype], terms))
    cells = [torch.tensor([v, -v], dtype=F64).to(dtype) for v in top]
    direction = torch.tensor([math.inf, -math.inf], dtype=dtype)
    above = [*cells[:-1], torch.nextafter(cells[-1], direction)]
    for parts, finite in ((cells, True), (above, False)):
        for count in (1, 2, 40):
            given = [c.repeat(count)[:count] for c in parts]
            for into in (2, terms):
                found = rounding.convert(given, dtype, into)
                if finite:
                    want = _nearest(_values(given), dtype, into)
                    assert bool(found[0].isfinite().all())
                else:
                    want = list(rounding.nearest(given, dtype, into))
                assert_all_same_bits(found, want, f"{count}")


def test_conversions_keep_derivatives() -> None:
    x: Any = mcf.tensor(["0.1", "0.2"], requires_grad=True)
    for y in (x.double(), x.float(), x.half(), x % 0.4, x.to(terms=3), x.to_plain(F64)):
        assert y.requires_grad
    x.to(F64, terms=3).to_plain(F32).backward(torch.tensor([0.5, 2.0]))
    assert (x.grad.terms, x.grad.dtype, x.grad.tolist()) == (2, F32, [0.5, 2.0])
    c = torch.tensor([1.0, 2.0], requires_grad=True)
    (mcf.from_components((c, c * 1e-9)) * mcf.tensor(["0.1"])).sum().backward()
    assert type(c.grad) is Tensor
    assert_same_bits(c.grad, torch.tensor([0.1, 0.1]))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_components_given_in_any_form_become_the_nearest_expansion(dtype: torch.dtype) -> None:
    for row in (
        [1.0, 2.0**-60], [1.0, 2.0**-20], [2.0**-60, 1.0], [-0.0, 0.0], [0.0, 2.0**-130],
        [math.inf, 0.0], [math.inf, 1.0], [math.nan, 0.0], [1.0, 2.0**-24, 2.0**-25],
    ):  # fmt: skip
        for count in (1, 40):
            given = [torch.tensor([v] * count, dtype=dtype) for v in row]
            found = mcf.from_components(given)
            value = row[0] if not math.isfinite(row[0]) else _values(given)[0]
            want = _nearest([value] * count, dtype, len(row))
            assert_all_same_bits(found.components, want, str(row))
            assert found.components[0].data_ptr() != given[0].data_ptr()


# Ties of pairs, both ways; halves, whole numbers, subnormal numbers, the largest, and zeros.
VALUES: list[Any] = [
    0.0, -0.0, 1, -2.5, Fraction(1, 3), Fraction(-22, 7), 7 * 2**20 + Fraction(1, 5),
    1 + Fraction(1, 2**24) + Fraction(1, 2**60), 1 + Fraction(1, 2**24) - Fraction(1, 2**60),
    -1 - Fraction(3, 2**9), Fraction(3, 2**1074), Fraction(-5, 2**1060), Fraction(7, 2**149),
    Fraction(2**53 - 1) * 2**971, 65519, Fraction(2**25 - 1) * 2**103, Fraction(1, 2), -3,
    Fraction(3, 2), Fraction(-1, 8), Fraction(5, 1000), 2**40 - Fraction(1, 2**30), 2**53,
    Fraction(-(2**50)) + Fraction(1, 2**40), 1 - Fraction(1, 2**60), Fraction(1, 2**60) - 4,
    Fraction(25, 1000) + Fraction(1, 8), 2**62 + 1, 3 - Fraction(1, 2**60),
]  # fmt: skip
# Next to decimals and on ties of eighths, with something far below them.
VALUES += [Fraction(7 * k, 1000) for k in range(-9, 9, 2)] + [Fraction(7 * k, 8) for k in range(8)]
VALUES += [Fraction(7 * k, 8) + sign * Fraction(1, 2**60) for k in (1, 3) for sign in (1, -1)]
VALUES += [0.005, -0.001, 1e300, 2.0**52 + 0.5, 2.0**70, 2.0**149]


def _decimal(v: Any, places: int) -> Any:
    scaled = Fraction(v) * Fraction(10) ** places
    return round(scaled) / Fraction(10) ** places or math.copysign(0.0, v)


def _modulo(a: Fraction, b: Fraction) -> Fraction:
    r = a % b
    return r - b if r and (a < 0) != (b < 0) else r


def _float(v: Any) -> float:
    try:
        return float(v)
    except OverflowError:
        return math.inf if v > 0 else -math.inf


# Functions of expansions, and of a number what they give: an integer, a float, or a rational
# of which the result is the nearest expansion.
OF_ONE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "long": (lambda x: x.long(), lambda v: math.trunc(v) if abs(v) < 2**63 else None),
    "int64": (lambda x: x.to(torch.int64), lambda v: math.trunc(v) if abs(v) < 2**63 else None),
    "tolist": (lambda x: torch.tensor(x.tolist(), dtype=F64), _float),
    **{
        f"{d} decimals": (
            lambda x, d=d: torch.round(x, decimals=d), lambda v, d=d: _decimal(v, d)
        )
        for d in (0, 1, 2, 9, 22, -1, 30)
    },
    "fmod": (lambda x: torch.fmod(x, 3), lambda v: _modulo(v, Fraction(3)) or v * 0.0),
    "fmod below": (
        lambda x: torch.fmod(x, -0.25),
        lambda v: _modulo(v, Fraction(-1, 4)) or v * 0.0,
    ),
    "remainder": (lambda x: torch.remainder(x, 3), lambda v: Fraction(v) % 3 or v * 0.0),
    "%": (lambda x: x % -0.25, lambda v: Fraction(v) % Fraction(-1, 4) or v * 0.0),
    "//": (lambda x: x // 3, lambda v: Fraction(v) // 3 or None),
    "floor": (lambda x: x.div(3, rounding_mode="floor"), lambda v: Fraction(v) // 3 or None),
    "trunc": (lambda x: torch.div(x, 3, rounding_mode="trunc"),
              lambda v: math.trunc(Fraction(v) / 3) or None),
}  # fmt: skip


@on_torch
@pytest.mark.parametrize("dtype", everyday(DTYPES, (F64, BF16)), ids=str)
@pytest.mark.parametrize("name", OF_ONE)
def test_function_of_any_count_is_the_exact_result_rounded(name: str, dtype: torch.dtype) -> None:
    """None stands for a number of which other tests have the result."""
    call, exact = OF_ONE[name]
    for terms in (1, 2, 3):
        columns = _nearest(VALUES, dtype, terms)
        keep = columns[0].isfinite()
        columns = [c[keep] for c in columns]
        values = _values(columns)
        values = [v if isinstance(v, Fraction) and v else math.copysign(0.0, v) for v in values]
        for count in (1, 5, len(values), 300):
            for start in range(0, len(values), count):
                given = [c[start : start + count] for c in columns]
                some = values[start : start + count]
                if count == 300:
                    given, some = [c.repeat(12) for c in columns], values * 12
                got = call(mcf.MCFTensor([c.clone() for c in given]))
                for k, v in enumerate(some):
                    want = exact(v)
                    if want is None:
                        continue
                    if not isinstance(got, mcf.MCFTensor):
                        assert got[k].item() == want, (v, count)
                        continue
                    parts = components_of(want, FORMATS[dtype], terms)
                    found = [c[k].item() for c in got.components]
                    assert [*map(float.hex, found)] == [*map(float.hex, parts)], (v, count)


@on_torch
def test_decimal_beside_a_tie_is_the_nearest_expansion_of_any_count() -> None:
    """A sum that is a tie of its first component may stand for a number that is none.

    1.99609 is below 2 - 2**-8, which two components of bfloat16 hold as 2 - 2**-8 or as
    (2 - 2**-7) + 2**-8: its nearest expansion is the latter, of few numbers and of many.
    """
    x = mcf.MCFTensor([torch.full((300,), v, dtype=torch.bfloat16) for v in (2.0, -(2.0**-8))])
    for some in (x, x[:1], -x):
        found = torch.round(some, decimals=5).components
        for c, v in zip(found, (2 - 2.0**-7, 2.0**-8), strict=True):
            assert torch.equal(c.double(), some.components[0].sign().double() * v)


# Whole quotients up to the largest that one component holds and beyond, and quotients whose
# rounding is another whole number.
WHOLE: list[tuple[Any, Any, torch.dtype, int]] = [
    (130, Fraction(227, 128), BF16, 1), (-130, Fraction(227, 128), BF16, 1),
    (2**24 - 1, 1, F32, 2), (-(2**24) - 1, 1, F32, 2), (2**53 + 1, 1, F64, 2),
    (3 * (2**53 + 1), -3, F64, 2), (Fraction(2**50 + 1, 2), 0.5, F64, 2), (2**105 + 1, 1, F64, 2),
    (3 * 2**104 - 1, 3, F64, 2), (-(7 * 2**102) - 1, Fraction(7, 4), F64, 2), (3**40, 3, F64, 2),
]  # fmt: skip


@on_torch
@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_whole_quotients_are_exact(mode: str) -> None:
    """Mutants: a limit of the integers' way beyond one component; a difference in one component."""
    for a, b, dtype, terms in WHOLE:
        for count in (1, 40):
            x, y = (mcf.tensor([v] * count, terms, dtype) for v in (a, b))
            exact = Fraction(a) / Fraction(b)
            expected = math.floor(exact) if mode == "floor" else math.trunc(exact)
            found = torch.div(x, y, rounding_mode=mode).to_fractions()
            assert found == [expected] * count, (a, b)


def test_quotient_of_integers_is_rounded_as_by_its_definition() -> None:
    for n in (1, -3, 2**53 + 1, 2**54 + 2, 3**40):
        for e in (0, 60, 1074, 1075, 1120):
            got, value = nearest(n, 2**e, FP64, 3), Fraction(n, 2**e)
            assert math.copysign(1.0, got[0]) == math.copysign(1.0, n)
            for x in got:
                assert x == float(value)
                value -= Fraction(x)
    assert nearest(2**1024 - 2**970, 1, FP64, 2) == (math.inf, 0.0)
    assert nearest(1 - 2**1024 + 2**970, 1, FP64, 2)[0] == -(2.0**1023) * (2 - 2.0**-52)


@on_torch
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_integers_of_numbers_between_whole_ones_are_cut(fmt: Format) -> None:
    """Mutants: the first component's integer alone; lower ones looked at where it has a part."""
    heads = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -3.0, 0.5, -0.75, float(2 ** (fmt.p - 1) - 1)]
    first = torch.tensor(heads, dtype=fmt.dtype).repeat_interleave(3)
    below = first.abs().double() * 2.0 ** (1 - 2 * fmt.p)
    lower = (below * torch.tensor([-1.0, 0.0, 1.0]).repeat(len(heads))).to(fmt.dtype)
    for components in ((first,), (first, lower), (first, lower, torch.zeros_like(first))):
        x = mcf.MCFTensor([c.clone() for c in components])
        assert x.long().tolist() == [math.trunc(v) for v in _values(components)]
        assert x.bool().tolist() == [v != 0 for v in _values(components)]
    least = [Fraction(-(2**63)) - Fraction(1, 3), 2**63 - Fraction(1, 3), -(2**63), 1 - 2**63]
    wide = mcf.tensor(least * 2, 3, F64)
    assert wide.long().tolist() == [*map(math.trunc, least)] * 2
    ends = mcf.tensor([1.5, math.nan, math.inf, -2.0], 2, F64)
    assert ends.long().tolist() == ends.to_plain().long().tolist()


@on_torch
def test_nan_to_num_of_finite_numbers_is_a_copy() -> None:
    x = mcf.tensor(["0.1", "-0.2"], 2, F64)
    y = x.nan_to_num(nan=3.0)
    assert torch.equal(y, x)
    assert not {c.data_ptr() for c in x.components} & {c.data_ptr() for c in y.components}
    mixed = mcf.tensor([1.0, math.nan, math.inf], 2, F64)
    assert mixed.nan_to_num(nan=3.0, posinf=4.0).tolist() == [1.0, 3.0, 4.0]


@on_torch
@pytest.mark.parametrize("dtype", [F64, F32, BF16], ids=str)
def test_number_of_python_is_the_sum_rounded_once(dtype: torch.dtype) -> None:
    """Mutants: components added one after the other; a zero's sign or an overflow lost."""
    for terms in (1, 2, 3, 4):
        parts = _numbers(dtype, terms, 24)
        x: Any = mcf.MCFTensor(parts)
        plain, values = x.to_plain(F64), _values(parts)
        for k, v in enumerate(values):
            one, want = x[k].clone(), _float(v)
            for got in (one.item(), float(one), plain[k].item(), one.tolist(), complex(one).real):
                assert repr(got) == repr(want)
            assert bool(one) is (want != 0) or math.isnan(want)
        with pytest.raises(RuntimeError, match="one element"):
            x.item()
    assert x[::2].to_plain().is_contiguous()


_MANY = FEWEST + 40
_EVERYDAY = [(torch.float64, 2), (torch.float32, 3), (torch.bfloat16, 2)]
_OTHERS = [
    (dtype, terms)
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    for terms in (1, 2, 3, 4)
    if (dtype, terms) not in _EVERYDAY
]


def _scaled_numbers(dtype: torch.dtype, terms: int) -> mcf.MCFTensor:
    """Exponents of the whole range, every third a power of two, zeros and what is not finite."""
    generator, fmt = torch.Generator().manual_seed(3), FORMATS[dtype]
    exponent = torch.randint(fmt.emin - fmt.p, fmt.emax, (_MANY,), generator=generator)
    whole = 1 << (fmt.p - 1)
    first = torch.randint(whole, 2 * whole, (_MANY,), generator=generator).double() / whole
    first[::3] = 1.0
    first *= torch.randint(0, 2, (_MANY,), generator=generator) * 2 - 1
    parts = [first]
    for k in range(1, terms):
        low = torch.randint(-whole, whole, (_MANY,), generator=generator).double() / whole
        parts.append(low * 2.0 ** (-(fmt.p + 1) * k))
    # In two steps: a power of two itself may be no number.
    half = exponent // 2
    one = torch.ones(_MANY, dtype=torch.float64)
    steps = torch.ldexp(one, half), torch.ldexp(one, exponent - half)
    given = [(c * steps[0] * steps[1]).to(dtype) for c in parts]
    for at, value in enumerate((0.0, -0.0, math.inf, -math.inf, math.nan)):
        given[0][at] = value
        for c in given[1:]:
            c[at] = 0.0
    return mcf.MCFTensor(given)


@pytest.mark.parametrize(
    ("dtype", "terms"),
    everyday([*_EVERYDAY, *_OTHERS], _EVERYDAY),
)
def test_frexp_of_many(dtype: torch.dtype, terms: int) -> None:
    x = _scaled_numbers(dtype, terms)
    mantissa, exponent = torch.frexp(x)
    assert exponent.dtype is torch.int32
    with mcf.executor("torch"):
        same, too = torch.frexp(x)
    assert torch.equal(exponent, too)
    for c, d in zip(mantissa.components, same.components, strict=True):
        assert_same_bits(c, d)
    rows = zip(*(c.tolist() for c in (*x.components, *mantissa.components)), strict=True)
    least = Fraction(2) ** FORMATS[dtype].emin
    for row, e in zip(rows, exponent.tolist(), strict=True):
        if not math.isfinite(row[0]) or row[0] == 0:
            assert e == 0
            continue
        value, found = (sum(map(Fraction, part)) for part in (row[:terms], row[terms:]))
        whole = value / Fraction(2) ** e
        assert Fraction(1, 2) <= abs(whole) < 1
        # Each component that is subnormal in the end is rounded once.
        assert found == whole or (e > 0 and abs(found - whole) <= 2 * least)


@pytest.mark.parametrize("e", [1010, 1024])
def test_what_lies_far_below_is_rounded_once(e: int) -> None:
    # 8191 1/2 units of the smallest number, and a little less: not a tie.
    low = (8191.5 - 2.0**-20) * 2.0 ** (e - 1074)
    first = torch.full((_MANY,), 1.5 * 2.0 ** (e - 1), dtype=torch.float64)
    mantissa, exponent = torch.frexp(mcf.MCFTensor([first, torch.full_like(first, low)]))
    assert set(exponent.tolist()) == {e}
    assert set(mantissa.components[1].tolist()) == {8191 * 2.0**-1074}


@pytest.mark.parametrize(("dtype", "terms"), [(torch.float64, 2), (torch.float32, 3)])
def test_few_that_are_asked_for_often(
    dtype: torch.dtype, terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba", reason="needs Numba")
    x = _scaled_numbers(dtype, terms)
    expected = torch.frexp(x)
    monkeypatch.setattr(conversions, "OFTEN", 0)
    monkeypatch.setattr(conversions, "_prepared", {})
    for some in (slice(0, 1), slice(0, 50), slice(3, None, 60)):
        mantissa, exponent = torch.frexp(x[some].clone())
        for k, (got, c) in enumerate(zip(mantissa.components, expected[0].components, strict=True)):
            assert_same_bits(got, c[some].contiguous(), f"component {k} of {some}")
        assert_same_bits(exponent, expected[1][some].contiguous(), f"{some}")
        # As it lies there, not one after the other.
        again = torch.frexp(x[some])
        assert_same_bits(again[1], exponent, f"{some}")
    assert len(conversions._prepared) >= 3
    assert None not in conversions._prepared.values()

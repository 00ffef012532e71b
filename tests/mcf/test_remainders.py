"""fmod and remainder of many numbers, against integers: bit for bit, every format and length.

Caught mutants: a quotient that is not corrected downwards, or upwards; a remainder that is not
moved to the sign of y, or is where it is zero; quotients as long as a float has bits; results of
more than four components taken for four.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
from mcf.convert.few import rows
from mcf.elementary import remainders
from mcf.elementary.fused import NO_SCALARS, step_kernel, stored
from mcf.elementary.remainders import modulo
from mcf.kernels import registry
from mcf.kernels.components import Components
from mcf.kernels.formats import FORMATS, FP64, Format
from tests.helpers.everyday import everyday
from tests.mcf.expansions.inputs import hard

ENDS = (0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 3.0, -2.5, 1e300, 2.0**-1000, 5e-324)
ENDS += (2.0**49, 2.0**52 + 1, 2.0**53, 2.0**60, -(2.0**22), 2.0**-149)
SHAPES = [(f, n) for f in FORMATS.values() for n in (1, 2, 3, 4)]
EVERYDAY = [("fp64", 2), ("fp64", 4), ("fp32", 2)]
cases = pytest.mark.parametrize(
    ("fmt", "terms"),
    everyday(SHAPES, lambda f, n: (f.name, n) in EVERYDAY),
    ids=lambda c: getattr(c, "name", str(c)),
)


def operands(fmt: Format, terms: int, count: int = 400) -> tuple[Components, Components]:
    """Of all sizes, multiples and their neighbours, with ties and gaps; special values in pairs."""
    assert fmt.dtype is not None
    x, y = (hard(fmt.dtype, terms, count, seed=s) for s in (7, 8))
    # Quotients as short and as long as are known from the leading components, and next to whole.
    whole = torch.arange(count, dtype=torch.float64) - count // 2
    whole[::3] *= 2.0**41
    with mcf.executor("torch"):
        many = mcf.MCFTensor([*y]).to(torch.float64, terms=4) * whole
        multiples = many.to(fmt.dtype, terms=terms).components
    ends = torch.tensor(ENDS, dtype=torch.float64).to(fmt.dtype)
    first, second = torch.cartesian_prod(ends, ends).unbind(1)
    alone = torch.zeros_like(first)
    turned = torch.arange(count - 1, -1, -1)

    def joined(k: int, parts: list[Tensor], end: Tensor) -> Tensor:
        return torch.cat([*parts, end if k == 0 else alone])

    return (
        tuple(joined(k, [x[k][turned], multiples[k], multiples[k]], first) for k in range(terms)),
        tuple(joined(k, [y[k], y[k], -y[k]], second) for k in range(terms)),
    )


def by_integers(x: Components, y: Components, towards_zero: bool, fmt: Format) -> list[Tensor]:
    found = [modulo(a, b, towards_zero, fmt, len(x)) for a, b in zip(rows(x), rows(y), strict=True)]
    return [*torch.tensor(found, dtype=torch.float64).unbind(1)]


def bits(x: Tensor) -> Tensor:
    return torch.where(x.isnan(), math.nan, x.double()).view(torch.int64)


def check(fmt: Format, terms: int) -> None:
    x, y = operands(fmt, terms)
    for function, towards_zero in ((mcf.elementary.fmod, True), (mcf.elementary.remainder, False)):
        wanted = by_integers(x, y, towards_zero, fmt)
        for a, b in zip(function(x, y), wanted, strict=True):
            assert torch.equal(bits(a), bits(b))


@cases
def test_remainders_are_those_of_integers(fmt: Format, terms: int, on_torch: None) -> None:
    check(fmt, terms)


@cases
def test_hardly_any_needs_integers(fmt: Format, terms: int, on_torch: None) -> None:
    """Of usual sizes and quotients; the formula has the bits of the program."""
    x, y = operands(fmt, terms)
    usual = (x[0].abs() < 2.0**40 * y[0].abs()) & (y[0] != 0) & y[0].isfinite()
    usual &= torch.stack([(c == 0) | (c.abs() > 2.0**-800) for c in y]).all(0)
    usual &= (x[0].abs() < 2.0**800) & (y[0].abs() < 2.0**800)
    for step in remainders._STEPS.values():
        found = remainders.fused.run_step(step, fmt, terms, (x, y))
        assert found[-1][usual].double().mean() > 0.95
        spec = step_kernel(step, fmt, terms, (terms, terms), FP64)
        given = [c.to(stored(fmt).dtype) for c in (*x, *y)]
        out = [torch.empty_like(c) for c in found]
        registry.run(spec, [[*out, *given]], NO_SCALARS)
        assert all(torch.equal(bits(a), bits(b)) for a, b in zip(found, out, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "terms"), SHAPES, ids=lambda c: getattr(c, "name", str(c)))
def test_numba_has_the_bits(fmt: Format, terms: int) -> None:
    check(fmt, terms)


@pytest.mark.slow
def test_triton_has_the_bits() -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    with mcf.executor("triton"):
        check(FP64, 2)


@pytest.mark.slow
@pytest.mark.parametrize("terms", [1, 2, 4])
def test_in_float32_registers(terms: int, on_torch: None) -> None:
    with mcf.registers("float32"):
        check(FORMATS[torch.float32], terms)


def test_a_tie_that_only_the_next_components_break(on_torch: None) -> None:
    """x - y is four components, half of the last place of the last, and something far below."""
    powers = [3.0, 2.0**-60, 2.0**-120, 2.0**-180]
    for terms in (3, 4):
        last = -powers[terms - 1] * 2.0**-53
        rows_of = powers[:terms], [2.0, last, last * 2.0**-200, 0.0][:terms]
        x, y = (tuple(torch.full((300,), v, dtype=torch.float64) for v in row) for row in rows_of)
        found = mcf.elementary.fmod(x, y)
        upwards = powers[terms - 1] * (1 + 2.0**-52)
        assert [c[0].item() for c in found] == [1.0, *powers[1 : terms - 1], upwards]
        wanted = by_integers(tuple(c[:1] for c in x), tuple(c[:1] for c in y), True, FP64)
        assert all(torch.equal(a[:1], b) for a, b in zip(found, wanted, strict=True))


def test_whole_quotients_of_many(on_torch: None) -> None:
    x = mcf.MCFTensor(
        [torch.arange(-150.0, 150.0).double(), torch.full((300,), 2.0**-60, dtype=torch.float64)]
    )
    want = [math.floor(v / 7) for v in x.to_fractions()]
    assert (x // 7).to_fractions() == want
    assert (x - x % 7).to_fractions() == [7 * k for k in want]


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize(
    ("dtype", "terms"),
    [(torch.float64, 2), (torch.bfloat16, 2), (torch.float32, 1), (torch.float64, 4)],
    ids=str,
)
def test_quotients_are_nearest_to_whole_ones(
    mode: str, dtype: torch.dtype, terms: int, on_torch: None
) -> None:
    """Neighbours of multiples, quotients of a few bits to hundreds; as many, as few, as integers.

    Mutants: the difference with the remainder, divided and rounded; a long one in one component.
    """
    fmt, whole = FORMATS[dtype], math.floor if mode == "floor" else math.trunc
    y = mcf.tensor([Fraction(5, 2) + Fraction(1, 2 ** (fmt.p + 1))] * 300, terms=terms, dtype=dtype)
    numbers = []
    for j in range(300):
        k = (j % 7 - 3) * (2 ** (j % 60) + 1)
        numbers.append(k * Fraction(5, 2) + Fraction(j % 3 - 1, 2 ** (fmt.p - 3)))
    x = mcf.tensor(numbers, terms=terms, dtype=dtype)
    y = torch.where(torch.arange(300) % 2 == 0, y, -y)
    found = torch.div(x, y, rounding_mode=mode)
    quotients = zip(x.to_fractions(), y.to_fractions(), strict=True)
    wanted = mcf.tensor([whole(Fraction(a) / b) for a, b in quotients], terms=terms, dtype=dtype)
    assert torch.equal(found, wanted)
    # Zeros have the sign of the quotient.
    zero = found == 0
    assert torch.equal(found.signbit()[zero], (x.signbit() ^ y.signbit())[zero])
    few = torch.cat(
        [torch.div(a, b, rounding_mode=mode) for a, b in zip(x.split(5), y.split(5), strict=True)]
    )
    for a, b in zip(found.components, few.components, strict=True):
        assert torch.equal(bits(a), bits(b))


@pytest.mark.sampled
@pytest.mark.parametrize("mode", ["floor", "trunc"])
@pytest.mark.parametrize("count", [1, 300])
def test_quotients_of_special_values_are_those_of_torch(
    mode: str, count: int, on_torch: None
) -> None:
    special = [0.0, -0.0, 1.0, -1.0, 7.5, -7.5, math.inf, -math.inf, math.nan, 5e-324, -1e308]
    a, b = (
        t.flatten() for t in torch.meshgrid(2 * [torch.tensor(special).double()], indexing="ij")
    )
    a, b = a.repeat(count), b.repeat(count)
    wanted = torch.div(a, b, rounding_mode=mode)
    # Of these torch's division rounds to a whole number itself.
    settled = wanted.isnan() | wanted.isinf() | (wanted.abs() < 2.0**53)
    settled &= ~(wanted.isinf() & (b != 0) & a.isfinite())
    x = mcf.tensor(a, dtype=torch.float64)
    found = torch.div(x, mcf.tensor(b, dtype=torch.float64), rounding_mode=mode)
    first, low = found.components
    assert torch.equal(
        bits(first[settled & ~wanted.isnan()]), bits(wanted[settled & ~wanted.isnan()])
    )
    assert torch.equal(first.isnan(), wanted.isnan())
    assert not low[settled].any()

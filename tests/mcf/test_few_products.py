"""x**k for whole numbers k up to 16 in magnitude and halves between, against exact fractions.

Caught mutants: a product too few; products of as many components as the result has; an exponent
that is not multiplied by k; the root of a mantissa whose exponent was odd; a root of one component
that was rounded from two.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.elementary import power
from mcf.elementary.error_steps import Steps
from mcf.kernels.formats import format_of

FORMATS = [(torch.float64, 1), (torch.float64, 2), (torch.float64, 3), (torch.float32, 3)]
FORMATS += [(torch.float32, 2), (torch.bfloat16, 2), (torch.float16, 1)]
NAMES = [f"{str(d)[6:]}-{n}" for d, n in FORMATS]


def _numbers(dtype: torch.dtype, terms: int, count: int) -> mcf.MCFTensor:
    """From -2 to 2, with random digits in all components."""
    bits, state = terms * format_of(dtype).p, 1
    found = []
    for _ in range(count):
        # Knuth's multiplier; the upper bits of a state are random.
        for _ in range(3):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**256
        found.append(Fraction((state >> 20) % 2 ** (bits + 2), 2**bits) - 2)
    return mcf.tensor(found, terms, dtype)


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "terms"), FORMATS, ids=NAMES)
def test_within_the_bound_of_pow(dtype: torch.dtype, terms: int, on_torch: None) -> None:
    x = _numbers(dtype, terms, 60)
    bound = mcf.bound("pow", terms, dtype)
    for k in (3, 7, 15, 16, -2, -5, -16):
        for got, value in zip((x**k).to_fractions(), x.to_fractions(), strict=True):
            want = Fraction(value) ** k
            if isinstance(got, float):  # infinite or -0
                size = Fraction(torch.finfo(dtype).max) if got in (torch.inf, -torch.inf) else 0
                assert abs(want) >= size if size else abs(want) <= bound.absolute
                continue
            room = Fraction(bound.relative) * abs(want) + Fraction(bound.absolute)
            assert abs(got - want) <= room


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "terms"), FORMATS, ids=NAMES)
def test_what_has_the_components_is_exact(dtype: torch.dtype, terms: int, on_torch: None) -> None:
    """Powers of short whole numbers and of bits apart that round trip through the format."""
    p = format_of(dtype).p
    bases = [Fraction(1) + Fraction(c, 2**d) for d in range(1, 64, 3) for c in (-1, 1, 3)]
    bases += [2 ** (p * terms // k) - j for k in (3, 4, 5, 7, 16) for j in (0, 1, 3)]
    bases += [3, -5, Fraction(-7, 2**9), 2**p - 1, 2 ** (p // 2) + 1]
    x = mcf.tensor(bases, terms, dtype)
    count = 0
    for k in (3, 4, 5, 7, 16):
        exact = [Fraction(v) ** k if not isinstance(v, float) else v for v in x.to_fractions()]
        held = mcf.tensor(exact, terms, dtype).to_fractions()
        for got, want, kept in zip((x**k).to_fractions(), exact, held, strict=True):
            if want == kept:
                assert got == want
                count += 1
    assert count >= 10


def test_the_ends(on_torch: None) -> None:
    x = mcf.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e200, -1e-200], 2, torch.float64)
    for k in (3, 4, -3, -4):
        want = torch.pow(x.to_plain(), k)
        got = (x**k).to_plain()
        same = (got == want) & (torch.signbit(got) == torch.signbit(want))
        assert (same | (got.isnan() & want.isnan())).all()


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "terms"), FORMATS, ids=NAMES)
def test_halves_within_the_bound(dtype: torch.dtype, terms: int, on_torch: None) -> None:
    """Of a power p with p^2 = x^(2 k): it is between (1 - r) and (1 + r) of what was found."""
    x = _numbers(dtype, terms, 60).abs()
    bound = mcf.bound("pow", terms, dtype)
    for k in (0.5, 1.5, 7.5, 15.5, -0.5, -2.5):
        for got, value in zip((x**k).to_fractions(), x.to_fractions(), strict=True):
            square = Fraction(value) ** int(2 * k)
            if isinstance(got, float):
                assert got == torch.inf
                assert square >= Fraction(torch.finfo(dtype).max) ** 2
                continue
            room = Fraction(bound.absolute) + got * Fraction(bound.relative) * Fraction(5, 4)
            assert max(got - room, 0) ** 2 <= square <= (got + room) ** 2


@pytest.mark.sampled
@pytest.mark.parametrize(("dtype", "terms"), FORMATS, ids=NAMES)
def test_halves_of_squares_are_exact(dtype: torch.dtype, terms: int, on_torch: None) -> None:
    p = format_of(dtype).p
    bases = [Fraction(1) + Fraction(c, 2**d) for d in range(1, 64, 3) for c in (-1, 1, 3)]
    bases += [2 ** (p * terms // k) - j for k in (1, 2, 3, 5, 8) for j in (0, 1, 3)]
    bases += [3, Fraction(7, 2**9), 2**p - 1, 2 ** (p // 2) + 1, Fraction(1, 2 ** (p - 2))]
    count = 0
    roots = mcf.tensor([abs(Fraction(b)) for b in bases], terms, dtype).to_fractions()
    roots = [r for r in roots if not isinstance(r, float) and r > 0]
    x = mcf.tensor([r * r for r in roots], terms, dtype)
    for k in (0.5, 1.5, 3.5):
        exact = [r ** int(2 * k) for r in roots]
        held = mcf.tensor(exact, terms, dtype).to_fractions()
        rows = zip((x**k).to_fractions(), exact, held, x.to_fractions(), roots, strict=True)
        for got, want, kept, base, root in rows:
            if want == kept and base == root * root:
                assert got == want
                count += 1
    assert count >= 20


def test_a_root_of_one_component_is_the_nearest(on_torch: None) -> None:
    """As `math.sqrt` rounds, near ties too."""
    odd = [2**53 - 1, 2**52 + 1, 6369051672525772, 5592117679628511]
    odd += [(2**52 + 7919 * k * k + 2 * k + 1) for k in range(400)]
    x = mcf.tensor(odd, 1, torch.float64)
    assert (x**0.5).to_plain().tolist() == [math.sqrt(v) for v in odd]


@pytest.mark.parametrize("terms", [1, 2])
def test_the_ends_of_halves(terms: int, on_torch: None) -> None:
    """Those of a tensor as exponent: C99's, in which (-inf)^(1/2) = inf and (-0)^(1/2) = 0."""
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, -1.5, -5e-324, 5e-324, 2.0**-1022, 1.0]
    x = mcf.tensor([*ends, 4.0, 2.0**1023, 2.0**-1074], terms, torch.float64)
    for k in (0.5, 1.5, -0.5, -1.5, 15.5, -15.5):
        same = torch.pow(x, torch.full(x.shape, k, dtype=torch.float64))
        for a, b in zip((x**k).components, same.components, strict=True):
            assert ((a == b) & (a.signbit() == b.signbit()) | (a.isnan() & b.isnan())).all(), k


def test_four_components_and_other_exponents_are_pow(on_torch: None) -> None:
    """Where products have no digits to spare; and where squaring is no gain."""
    x = mcf.tensor([3, 5], 4, torch.float64) / 7
    assert torch.equal(x**3, mcf.pow(x, mcf.tensor(3, 4, torch.float64)))
    assert not power.serves(4)
    y = mcf.tensor([3, 5], 2, torch.float64) / 7
    assert torch.equal(y**17, mcf.pow(y, mcf.tensor(17, 2, torch.float64)))
    steps = Steps(3)
    assert power.LARGEST * steps.mul() + steps.sqrt() + steps.div() < 2.0**-140


def test_same_bits_by_one_kernel() -> None:
    x = _numbers(torch.float64, 2, 33).abs()
    with mcf.executor("torch"):
        want = [x**k for k in (3, -1.5)]
    for k, expected in zip((3, -1.5), want, strict=True):
        assert torch.equal(x**k, expected)


def test_derivative(on_torch: None) -> None:
    x = mcf.tensor([2, -3], 2, torch.float64, requires_grad=True)
    (x**5).sum().backward()
    assert x.grad.to_fractions() == [80, 405]


def test_derivatives_of_halves(on_torch: None) -> None:
    """Twice, and the bits with a derivative are those without."""
    x = mcf.tensor([4, 9], 2, torch.float64, requires_grad=True)
    y = x**1.5
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.to_fractions() == [3, Fraction(9, 2)]
    assert second.to_fractions() == [Fraction(3, 8), Fraction(1, 4)]
    z = _numbers(torch.float64, 2, 9).abs()
    assert torch.equal(z.clone().requires_grad_() ** 1.5, z**1.5)

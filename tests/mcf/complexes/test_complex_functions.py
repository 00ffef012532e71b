"""Functions of complex expansions: Annex G of C99, exact values, one kernel each on all executors.

Errors within their bounds are in `test_complex_bounds.py`. Caught mutants: a word of the table of
Annex G; log1p as log(1 + z) and expm1 as exp(z) - 1 everywhere; exp2 and sinc in no more components
than z has. `torch.complex128` departs in one place of the table, the sign of the imaginary part of
acos(0 + 0i).
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch

import mcf
from mcf.complexes import arithmetic, complex_elementary
from mcf.elementary.operator import with_kernels
from mcf.kernels import registry
from mcf.kernels.algorithms import complex_numbers
from tests.helpers.complexes import agrees_with_torch, numbers, worst
from tests.helpers.everyday import everyday
from tests.mcf.complexes.annex_g import NAMES as OF_ANNEX_G
from tests.mcf.complexes.annex_g import departs, rows

on_torch = pytest.mark.usefixtures("on_torch")
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
VALUES = (0.0, -0.0, 1.0, -2.5, float("inf"), float("-inf"), float("nan"))
FORMATS = [(F64, 2), (F32, 3), (BF16, 2), (F16, 1), (F64, 4)]


def operands(dtype: torch.dtype, terms: int) -> tuple[Any, Any]:
    """Numbers of all components, and every pair of two special ones."""
    both = [complex(a, b) for a, b in itertools.product(VALUES, VALUES)]
    t = torch.tensor(both, dtype=torch.complex128)
    x, y = (
        torch.cat((numbers(dtype, terms, 20, seed=seed), mcf.complex_tensor(special, terms, dtype)))
        for seed, special in ((1, t.repeat_interleave(len(t))), (2, t.repeat(len(t))))
    )
    return x, y


def parts_agree(z: Any, parts: tuple[Any, Any]) -> None:
    """Bit for bit, but for which NaN it is."""
    for mine, theirs in zip((z.real, z.imag), parts, strict=True):
        for a, b in zip(mine.components, theirs.components, strict=True):
            assert bool(((a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()).all())


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (lambda x, y: x + y, complex_numbers.plus),
    "sub": (lambda x, y: x - y, complex_numbers.minus),
    "mul": (lambda x, y: x * y, complex_numbers.times),
}


@on_torch
@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_a_kernel_has_the_bits_of_the_operations_of_the_parts(
    dtype: torch.dtype, terms: int
) -> None:
    x, y = operands(dtype, terms)
    short, third = y.to(dtype, terms=1), 1 / 3 + 1j
    for operator, formula in OPERATIONS.values():
        parts_agree(operator(x, y), formula(x.real, x.imag, y.real, y.imag))
        # A single float has algorithms of its own.
        parts_agree(operator(x, short), formula(x.real, x.imag, short.real, short.imag))
        parts_agree(operator(x, third), formula(x.real, x.imag, third.real, third.imag))
    parts_agree(x * y.real, complex_numbers.times_real(x.real, x.imag, y.real))
    parts_agree(x / y.real, complex_numbers.over_real(x.real, x.imag, y.real))
    parts_agree(short * x, complex_numbers.times(x.real, x.imag, short.real, short.imag))


# The others' kernels are as long; each takes a second to compile.
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(
        [(n, *f) for n in ("mul", "div") for f in FORMATS], [("mul", F64, 2), ("div", BF16, 2)]
    ),
)
def test_executors_agree_on_arithmetic(name: str, dtype: torch.dtype, terms: int) -> None:
    x, y = operands(dtype, terms)
    found = []
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            found.append(x * y if name == "mul" else x / y)
    parts_agree(found[0], (found[1].real, found[1].imag))


def test_one_element_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan per kind of operands, numbers and views among them, and no operation of the parts."""
    x, y = numbers(F64, 2, 1), numbers(F64, 2, 1, seed=1)
    calls: list[str] = []
    run = arithmetic.planned

    def counted(operation: Any, *values: Any) -> Any:
        calls.append(operation.name)
        found = run(operation, *values)
        assert found is not None
        return found

    monkeypatch.setattr(arithmetic, "planned", counted)
    _ = x * y, x + y, x * 2.0
    assert calls == ["complex_mul", "complex_add", "complex_scale"]
    with torch.enable_grad():
        assert (x.requires_grad_() * y).requires_grad
    assert len(calls) == 3


# Formats share the program up to its last rounding.
ANNEX_FORMATS = [(F64, 2, 2.0**-50), (F64, 4, 2.0**-50), (F32, 1, 2.0**-22), (BF16, 2, 2.0**-15)]


@pytest.mark.sampled(every=3)
@on_torch
@pytest.mark.parametrize(
    ("dtype", "terms", "near"),
    everyday(ANNEX_FORMATS, ANNEX_FORMATS[:1]),
    ids=[f"{dtype}-{terms}".removeprefix("torch.") for dtype, terms, _ in ANNEX_FORMATS],
)
@pytest.mark.parametrize("name", OF_ANNEX_G)
def test_annex_g_row_by_row(name: str, dtype: torch.dtype, terms: int, near: float) -> None:
    table = rows(name)
    assert len(table) > 60
    z = mcf.complex_tensor(torch.tensor([r[0] for r in table]), terms, dtype)
    found = getattr(torch, name)(z)
    values = zip(table, found.real.tolist(), found.imag.tolist(), strict=True)
    wrong = [(row, x, y) for row, x, y in values if departs(complex(x, y), row[1], near)]
    assert not wrong
    for part in (found.real, found.imag):
        first, *rest = part.components
        # Components that follow a zero, an infinity or NaN are 0.
        plain = (first == 0) | ~first.isfinite()
        assert all(bool((c[plain] == 0).all()) for c in rest)


NAMES = "asin acos atan asinh acosh atanh sqrt".split()
PARTS = (0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 1e-160, 1e300, -1e300, 1.7e308, math.inf, -math.inf)


@pytest.mark.sampled(every=2)
@on_torch
@pytest.mark.parametrize("name", NAMES)
def test_cuts_zeros_and_infinities_are_those_of_c99(name: str) -> None:
    """Python's cmath has Annex G's; its values err by some units of float64, no sign does."""
    points = [*itertools.product(PARTS, PARTS)]
    z = mcf.complex(*(mcf.tensor([p[k] for p in points], 2, F64) for k in (0, 1)))
    result = getattr(torch, name)(z)
    for (x, y), *found in zip(points, result.real.tolist(), result.imag.tolist(), strict=True):
        pole = (name, abs(x), abs(y)) in (("atan", 0, 1), ("atanh", 1, 0))
        if pole:
            # An infinity, where cmath raises.
            assert sorted(map(abs, found)) == [0, math.inf]
            assert [math.copysign(1, v) for v in found] == [math.copysign(1, v) for v in (x, y)]
            continue
        want = getattr(cmath, name)(complex(x, y))
        for mine, theirs in zip(found, (want.real, want.imag), strict=True):
            assert math.copysign(1, mine) == math.copysign(1, theirs), (x, y, found, want)
            assert mine == theirs or math.isclose(mine, theirs, rel_tol=2.0**-45), (x, y, found)


@on_torch
def test_a_small_part_beside_a_large_one_is_kept() -> None:
    z = mcf.complex(mcf.tensor([1e300], 2, F64), mcf.tensor([1e-160], 2, F64))
    assert math.isclose(torch.sqrt(z).imag.item(), 5e-311, rel_tol=1e-12)


# What a kernel has of its own is its formula; the executors are the same for all.
USUAL = [("sqrt", F64, 2)]


@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(
        [
            (n, d, k)
            for n in (name.removeprefix("complex_") for name in with_kernels(2))
            for d, k in ((F64, 2), (F32, 2), (BF16, 2), (F64, 1))
        ],
        USUAL,
    ),
)
def test_executors_agree(name: str, dtype: torch.dtype, terms: int) -> None:
    special = [complex(*v) for v in itertools.product(VALUES, VALUES)]
    z = torch.cat(
        [numbers(dtype, terms, 30, seed=k, exponent=e) for k, e in enumerate((0, 4, -30))]
        + [mcf.complex_tensor(torch.tensor(special, dtype=torch.complex128), terms, dtype)]
    )
    found = []
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            found.append(getattr(torch, name)(z))
    parts_agree(found[0], (found[1].real, found[1].imag))


T = torch.tensor([[1 + 2j, 3.0], [0.5, 1j]], dtype=torch.complex128)
MIXED: dict[str, Callable[[Any], Any]] = {
    "mul": lambda x: torch.mul(x, 1j),
    "add": lambda x: torch.add(x, 2 + 1j),
    "sub": lambda x: torch.sub(T, x),
    "div": lambda x: torch.div(x, T),
    "alpha": lambda x: torch.add(x, T, alpha=2),
    "method": lambda x: x.mul(1j),
    "matmul": lambda x: torch.matmul(T, x),
    "where": lambda x: torch.where(T.real > 1, x, T),
    "cat": lambda x: torch.cat([x, T]),
    "dot": lambda x: torch.dot(x[0], T[1]),
    "pow": lambda x: torch.pow(x, 1j),
    "eq": lambda x: torch.eq(x, 1 + 0j),
    "solve": lambda x: torch.linalg.solve(x, T),
}


@pytest.mark.sampled(every=3)
@on_torch
@pytest.mark.parametrize("name", MIXED)
def test_functions_of_real_expansions_and_complex_numbers(name: str) -> None:
    x = mcf.tensor([[1, 2], [3, 4]], 2, F64)
    found, want = MIXED[name](x), MIXED[name](x.to_plain().to(T.dtype))
    if want.dtype is torch.bool:
        assert torch.equal(found, want)
    else:
        assert torch.allclose(found.to_plain(), want, rtol=2.0**-45)


@on_torch
def test_what_writes_to_a_real_expansion_refuses_complex_numbers() -> None:
    x = mcf.tensor([1.0, 2.0])
    for write in (lambda: x.mul_(1j), lambda: torch.mul(x, 1j, out=x)):
        with pytest.raises(TypeError, match="expansion tensors are real, got the complex number"):
            write()
    assert x.tolist() == [1, 2]
    y = x.clone().requires_grad_()
    (abs(torch.mul(y, 1j)) ** 2).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [2, 4]


U2 = 2.0**-106


def small() -> Any:
    return numbers(F64, 2, 6, seed=1, exponent=-40)


@on_torch
def test_beside_zero() -> None:
    """Within the bounds where e^z and 1 + z cancel, which other formulas exceed by 2^30."""
    z = small()
    for name, mutant in (
        ("expm1", lambda v: torch.exp(v) - 1),
        ("log1p", lambda v: torch.log(1 + v)),
    ):
        exact: Any = getattr(mpmath, name)
        bound = mcf.bound(f"complex_{name}", 2, F64)
        assert bound.proven
        assert 0 < worst(getattr(torch, name)(z), exact, z) <= bound.relative
        assert worst(mutant(z), exact, z) > 2.0**30 * bound.relative


MADE: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda z: mpmath.exp(z * mpmath.log(2)),
    "sinc": mpmath.sincpi,
}


@pytest.mark.sampled(every=2)
@on_torch
@pytest.mark.parametrize("name", MADE)
def test_made_of_others(name: str) -> None:
    """A component more than the result has leaves 2^53 for what a large argument loses."""
    z = torch.cat([small(), numbers(F64, 2, 6, seed=2, exponent=6)])
    z = torch.cat([z, numbers(F64, 2, 4, seed=3, exponent=-20) + 7])
    assert worst(getattr(torch, name)(z), MADE[name], z) <= 1.5 * U2
    # The undecorated function, of two components.
    direct = getattr(complex_elementary, name).__wrapped__
    assert worst(direct(z), MADE[name], z) > 3 * U2


@pytest.mark.slow
@on_torch
@pytest.mark.parametrize("name", ["exp2", "sinc"])
def test_of_four_components(name: str) -> None:
    z = numbers(F64, 4, 10, seed=2, exponent=2)
    assert worst(getattr(torch, name)(z), MADE[name], z) <= 64 * 2.0**-212


REALS = (0.0, -0.0, 1.0, -1.0, -2.0, math.inf, -math.inf, math.nan)


@pytest.mark.sampled(every=3)
@on_torch
@pytest.mark.parametrize("name", ["expm1", "log1p", "log2", "log10", "exp2", "sinc"])
def test_special_values(name: str) -> None:
    """As torch's, where it has numbers; real arguments have results with an imaginary zero."""
    points = torch.tensor([complex(*p) for p in itertools.product(REALS, REALS)])
    points = points.to(torch.complex128)
    z = mcf.complex_tensor(points, 2, F64)
    found, theirs = getattr(torch, name)(z), getattr(torch, name)(points)
    for ours, wanted in ((found.real, theirs.real), (found.imag, theirs.imag)):
        known = ~(theirs.real.isnan() | theirs.imag.isnan())
        near = (ours.to_plain() - wanted).abs() <= 1e-14 * wanted.abs() + 1e-16
        assert (near | (ours.to_plain() == wanted))[known].all()
    # log of what is below 0 is no real number.
    domain = {"log1p": -1.0, "log2": 0.0, "log10": 0.0}.get(name, -math.inf)
    real = (points.imag == 0) & points.real.isfinite() & (points.real > domain)
    imag = found.imag.to_plain()[real]
    assert (imag == 0).all()
    if name in ("expm1", "log1p"):
        assert torch.equal(imag.signbit(), points.imag[real].signbit())


@pytest.mark.slow
@on_torch
@pytest.mark.parametrize("name", ["expm1", "log1p", "log2", "log10", "exp2", "sinc", "tanhshrink"])
def test_derivatives(name: str) -> None:
    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    given = torch.tensor([0.25 + 0.5j, -0.375 + 1.25j, 2.0 - 1.0j], dtype=torch.complex128)
    agrees_with_torch(function, given, 1e-12)


@on_torch
def test_float_power() -> None:
    z = mcf.complex_tensor(torch.tensor([1 + 2j, 3.0 + 0j]), 2, torch.float32)
    found: Any = torch.float_power(z, 2)
    assert found.dtype is F64
    assert found.tolist() == [(1 + 2j) ** 2, 9]


ETA = 2.0**-1074

# Found by a search: quotients of subnormal numbers, or by squares next to a pole, had lost their
# last components, up to 1e38 bounds.
POINTS = (
    # Two components, of which the second is below the normal range.
    (
        (float.fromhex("0x1.0001ff7ffffffp-1013"), 196 * ETA),
        (float.fromhex("0x1.0001ff7ffffffp-1013"), -256 * ETA),
    ),
    ((2.0**-1016, -32 * ETA), (float.fromhex("0x0.06400685f5a8ep-1022"), 0.0)),
    ((402128767 * ETA, 0.0), (-402128768 * ETA, 0.0)),
)
POLE = (-float.fromhex("0x1.921fb54442d18p+0"), float.fromhex("0x1.000000100p-73"))
BESIDE = tuple(((size, 0.0), POLE) for size in (ETA, 2.0**-1000, 2.0**-401, 2.0**-399))

TERMS = pytest.mark.parametrize("terms", everyday([4, 2, 3], [4]))


def of_components(
    points: tuple[tuple[tuple[float, float], ...], ...], terms: int
) -> mcf.MCFComplexTensor:
    def part(k: int) -> mcf.MCFTensor:
        columns = zip(*([*p[k], *[0.0] * (terms - 2)] for p in points), strict=True)
        return mcf.MCFTensor([torch.tensor(c, dtype=F64) for c in columns])

    return mcf.complex(part(0), part(1))


@on_torch
@TERMS
def test_logarithms(terms: int) -> None:
    z = of_components(POINTS, terms)
    for name, base in (("log", mpmath.e), ("log10", 10)):
        limit = mcf.bound(f"complex_{name}", terms, F64)
        found = getattr(torch, name)(z)
        error = worst(found, lambda v, b=base: mpmath.log(v) / mpmath.log(b), z)
        assert error <= limit.relative, name


@on_torch
@TERMS
def test_each_part_of_a_tangent_beside_its_pole(terms: int) -> None:
    z = of_components(BESIDE, terms)
    limit = mcf.bound("complex_tanh", terms, F64)
    for found, turned in ((torch.tanh(z), 1), (torch.tan(z * 1j), 1j)):
        with mpmath.workprec(6000):
            for given, result in zip(z.to_mpmath(), found.to_mpmath(), strict=True):
                exact = mpmath.tanh(given) * turned
                for part in ("real", "imag"):
                    t = getattr(exact, part)
                    error = abs(getattr(result, part) - t)
                    assert error <= limit.relative * abs(t) + limit.absolute, part

"""Powers as pairs: against rationals, the same bits everywhere, and their machine code.

Contract: relative error below 10 (n + 60) u^2 (proven bound: 5 u^2 a product, doubled by
each of the squares); 0 below 2**-100; the host, torch, Numba, Triton's interpreter agree bit for
bit.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from fractions import Fraction

import pytest
import torch

import mcf
from mcf.kernels import host, registry
from mcf.kernels.algorithms import powers
from mcf.kernels.algorithms.primitives import ZERO, rn, where
from mcf.kernels.bind import Binder
from mcf.kernels.formats import FP64
from mcf.kernels.torch.registers import primitives
from mcf.optim.step.table import POWER
from tests.helpers import assert_same_bits

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="the GPU executor needs triton, which is for Linux only",
)
BASES = [0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1 - 1e-9, 1 - 2.0**-53, 1.0]
EXPONENTS = [*range(20), 254, 255, 256, 257, 1000, 4095, 4097, 10007]
TINY = Fraction(2) ** -100
U2 = Fraction(2) ** -106


def relative_error(found: Fraction, exact: Fraction) -> float:
    """|found - exact| / exact without common divisors, which take seconds of a million bits."""
    difference = found.numerator * exact.denominator - exact.numerator * found.denominator
    return abs(difference) / (exact.numerator * found.denominator)


@functools.cache
def cases() -> list[tuple[float, float, int, Fraction]]:
    """Bases in two components, exponents, and exact powers of at most 1: others are not defined."""
    found = [
        (base, low, n, (Fraction(base) + Fraction(low)) ** n)
        for base in BASES
        for low in (0.0, base * 2.0**-54)
        for n in EXPONENTS
    ]
    return [case for case in found if case[3] <= 1]


def excess(power: object) -> float:
    """The largest relative error in units of the bound."""
    worst = 0.0
    for base, low, n, exact in cases():
        high, rest = power(base, low, float(n))  # type: ignore[operator]
        allowed = 10 * (n + 60) * U2
        if exact < TINY * (1 - allowed):
            assert (high, rest) == (0.0, 0.0)
        elif exact > TINY * (1 + allowed):
            error = relative_error(Fraction(high) + Fraction(rest), exact)
            worst = max(worst, error / float(allowed))
    return worst


def test_error() -> None:
    assert excess(host.bind(powers.power)) < 1


def test_mutant() -> None:
    """Squares that lose their low component."""

    def times(x_hi: float, x_lo: float, y_hi: float, y_lo: float) -> tuple[float, float]:
        product = rn(x_hi * y_hi)
        return where(product < 2.0**-100, ZERO, product), ZERO

    assert excess(host.Host({"times": times}).bind(powers.power)) > 1e6


def test_the_host_writes_out_what_it_interprets() -> None:
    """The reference calls each primitive; what is written out has no call left in it."""

    def div(a: float, b: float) -> float:
        return host.quotient(a, b)

    def fms(a: float, b: float, c: float) -> float:
        return float(Fraction(a) * Fraction(b) - Fraction(c))

    given = {
        **dict.fromkeys(("rn", "rc", "rx"), lambda x: x),
        "fms": fms, "div": div, "sqrt": math.sqrt, "neg": lambda x: -x, "ZERO": 0.0, "ONE": 1.0,
        "where": lambda condition, a, b: a if condition else b,
    }  # fmt: skip
    reference = Binder(lambda f: f, given)
    for base in BASES:
        for n in (*EXPONENTS, 255, 256, 2**30 + 3):
            expected = reference(powers.power)(base, 0.0, float(n))
            assert host.bind(powers.power)(base, 0.0, float(n)) == expected, (base, n)
    names = host.bind(powers.raised).__wrapped__.__code__.co_names
    assert names == ()


def test_large_exponents() -> None:
    power = host.bind(powers.power)
    assert power(1.0, 0.0, float(2**53 - 1)) == (1.0, 0.0)
    assert power(0.999, 0.0, float(2**53 - 1)) == (0.0, 0.0)
    # (1 - 2^-53)^(2^52): exp(-1/2) up to 2^-54.
    high, _ = power(1 - 2.0**-53, 0.0, 2.0**52)
    assert abs(high - math.exp(-0.5)) < 2.0**-52


def test_division_by_a_power_of_two_is_exact() -> None:
    divided = Binder(lambda f: f, primitives(FP64, FP64, {}))(powers.divided)
    n = torch.tensor([*range(1000), 2**45 - 1, 2**45, 2**52 - 129, 2**53 - 1], dtype=torch.float64)
    q, r = divided(n, torch.tensor(256.0), torch.tensor(0.00390625))
    assert [(int(a), int(b)) for a, b in zip(q, r, strict=True)] == [divmod(int(x), 256) for x in n]
    assert [host.divided(x, 256.0, 1 / 256) for x in n.tolist()] == list(
        zip(q.tolist(), r.tolist(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["torch", "numba", pytest.param("triton", marks=needs_triton)])
def test_the_bits_of_the_host(executor: str) -> None:
    bases, exponents = zip(*((b, float(n)) for b in BASES for n in EXPONENTS), strict=True)
    expected = [host.bind(powers.power)(b, 0.0, n) for b, n in zip(bases, exponents, strict=True)]
    base = torch.tensor(bases, dtype=torch.float64)
    out = torch.empty(2, len(bases), dtype=torch.float64)
    row = [base, torch.zeros_like(base), torch.tensor(exponents, dtype=torch.float64), *out]
    with mcf.executor(executor):
        registry.run(POWER, [row], torch.zeros(1, 0, dtype=torch.float64))
    assert_same_bits(out.T, torch.tensor(expected, dtype=torch.float64), executor)


@pytest.mark.sampled(every=4)
@needs_triton
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_machine_code(target: str) -> None:
    """What `kernel_checks` asks for, but that compilers unroll loops as they like.

    A product of pairs holds 3 multiplications for each FMA, and loops' bounds more: where fewer are
    left, additions and multiplications were contracted.
    """
    from tests.kernels import kernel_checks, machine_code

    compiled = machine_code.compile_kernel(POWER, target)
    problems = kernel_checks.check_ttir(compiled.asm["ttir"], POWER)
    problems += kernel_checks.check_flags(compiled.asm["llir"])
    assert not problems
    if "ptx" in compiled.asm:
        names = [op for _, op in machine_code.ptx_instructions(compiled.asm["ptx"])]
        assert not [n for n in names if ".local" in n]
        arithmetic = [n for n in names if n.startswith(("add.", "sub.", "mul.", "fma."))]
        floats = [n for n in arithmetic if n.endswith("f64")]
        assert set(floats) <= {"add.rn.f64", "sub.rn.f64", "mul.rn.f64", "fma.rn.f64"}
        code = [op for op, _ in machine_code.sass_instructions(compiled.asm["cubin"])]
        assert machine_code.stack_bytes(compiled.asm["cubin"]) == 0
        fused, products = (sum(op.startswith(x) for op in code) for x in ("DFMA", "DMUL"))
    else:
        code = [op for op, _ in machine_code.amd_instructions(compiled.asm["amdgcn"])]
        fused, products = (sum(op.startswith(x) for op in code) for x in ("v_fma_f64", "v_mul_f64"))
    assert 0 < 3 * fused <= products


@pytest.mark.slow
@needs_triton
def test_machine_code_mutant() -> None:
    from tests.kernels import machine_code

    compiled = machine_code.compile_kernel(POWER, "sm_90", enable_fp_fusion=True)
    code = [op for op, _ in machine_code.sass_instructions(compiled.asm["cubin"])]
    fused, products = (sum(op.startswith(x) for op in code) for x in ("DFMA", "DMUL"))
    assert 3 * fused > products

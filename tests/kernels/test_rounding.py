"""Rounding to nearest even, on every executor: the same bits as torch's casts, for every input.

16-bit formats in float32 registers: what is left unrounded there does not change a result. The
mutants: truncation, and a Fast2Sum that leaves its subtraction unrounded.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import BF16, FP16, FP32, FP64, Format, toy
from mcf.kernels.algorithms import renormalize, two_sum
from mcf.kernels.algorithms.primitives import rc, rn, rx
from mcf.kernels.exact import is_finite, rounding
from mcf.kernels.torch.registers import primitives
from tests.helpers import assert_all_same_bits, assert_same_bits, count_different, numbers
from tests.helpers.executors import conversion, on_each_executor, run
from tests.helpers.toys import bound, finite

TO_16_BITS = [BF16, FP16]
narrow = pytest.mark.parametrize("fmt", TO_16_BITS, ids=lambda f: f.name)
SPECS = {(s, t): conversion(s, t) for s, t in ((FP32, BF16), (FP32, FP16), (FP64, FP32))}


def float32(bits: np.ndarray) -> Tensor:
    return torch.from_numpy(bits.astype(np.uint32).view(np.float32).copy())


def sample() -> Tensor:
    """Every exponent and sign with mantissas at ties and beside them; infinities and NaN too."""
    kept = np.array([0, 1, 2, 3, 0x3E, 0x3F, 0x40, 0x7E, 0x7F], dtype=np.uint32) << 16
    cut = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    fp16_cut = np.array([0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x3000], dtype=np.uint32)
    mantissa = np.concatenate(
        [np.add.outer(kept, cut).ravel(), np.add.outer(kept, fp16_cut).ravel()]
    )
    head = np.arange(512, dtype=np.uint32) << 23
    rng = np.random.default_rng(0)
    random = rng.integers(0, 1 << 32, 1 << 15, dtype=np.uint32)
    return float32(np.concatenate([np.bitwise_or.outer(head, mantissa).ravel(), random]))


def near_overflow(fmt: Format) -> Tensor:
    """The 2000 float32 numbers on both sides of the threshold, both signs."""
    threshold = float(fmt.max * (1 + fmt.u / (2 - 2 * fmt.u)))
    centre = np.float32(threshold).view(np.uint32)
    around = (np.arange(-1000, 1000) + np.int64(centre)).astype(np.uint32)
    return float32(np.concatenate([around, around | 0x80000000]))


@pytest.mark.sampled
@narrow
@on_each_executor
def test_bits_are_those_of_a_torch_cast(executor: str, fmt: Format) -> None:
    x = torch.cat([sample(), near_overflow(fmt)])
    y = torch.empty_like(x, dtype=fmt.dtype)
    run(executor, SPECS[FP32, fmt], x, y)
    assert_same_bits(y, x.to(fmt.dtype), executor)


@on_each_executor
def test_float64_to_float32(executor: str) -> None:
    single = sample()
    single = single[torch.isfinite(single)].double()
    tie = (single + torch.nextafter(single.float(), torch.full(single.shape, np.inf)).double()) / 2
    tie = tie[torch.isfinite(tie)]
    x = torch.cat([single, tie, torch.nextafter(tie, torch.zeros_like(tie)), tie * (1 + 2**-50)])
    x = torch.cat([x, torch.tensor([1e300, -1e300, np.inf, np.nan, 1e-50, -0.0]).double()])
    y = torch.empty_like(x, dtype=torch.float32)
    run(executor, SPECS[FP64, FP32], x, y)
    assert_same_bits(y, x.float(), executor)


@narrow
def test_torch_casts_round_correctly(fmt: Format) -> None:
    x = torch.cat([sample()[::7], near_overflow(fmt)])
    exact = rounding(fmt)
    for value, got in zip(numbers(x), numbers(x.to(fmt.dtype)), strict=True):
        wanted = exact(value)
        assert got == wanted or (not is_finite(wanted) and got != got and wanted != wanted)


@pytest.mark.slow
@narrow
def test_every_float32(fmt: Format) -> None:
    # 2**32 inputs; the CPU loop against the cast of torch. A minute or two on two busy cores.
    step = 1 << 24
    y = torch.empty(step, dtype=fmt.dtype)
    for start in range(-(1 << 31), 1 << 31, step):
        x = torch.arange(start, start + step, dtype=torch.int64).int().view(torch.float32)
        run("numba", SPECS[FP32, fmt], x, y)
        if not torch.equal(y.view(torch.int16), x.to(fmt.dtype).view(torch.int16)):
            assert count_different(y, x.to(fmt.dtype)) == 0


def round_in_place_of_nearest(x: Tensor) -> Tensor:
    """The mutant: truncation, which Triton's interpreter uses for bf16."""
    return (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def test_truncation_is_rejected() -> None:
    x = sample()
    assert count_different(round_in_place_of_nearest(x), x.bfloat16()) > len(x) // 10


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("fmt", "model"), [(BF16, toy(8, -126, 127)), (FP16, toy(11, -14, 15))], ids=["bf16", "fp16"]
)
@pytest.mark.parametrize("operation", ["mul", "div", "add"])
@pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_registers_round_correctly(fmt: Format, model: Format, operation: str, share: int) -> None:
    """An operation in float32 and then rounded to the format equals one rounding, everywhere.

    The toy format with the real one's parameters rounds the exact float64 result directly. All
    pairs of mantissas for bf16 and one in 49 for fp16 (of which a share runs by default), with
    exponents at both ends of the range, subnormals among the operands and among the results.
    """
    once = primitives(FP64, model, {})["rn"]
    m = torch.arange(1, 1 << fmt.p, 1 if fmt is BF16 else 7, dtype=torch.float64)
    a, b = (t.flatten()[::share] for t in torch.meshgrid(m[::share], m, indexing="ij"))
    bottom, top = fmt.emin - fmt.p + 1, fmt.emax - fmt.p + 1
    targets = [*range(bottom - fmt.p - 2, bottom + 3), *range(top - fmt.p - 2, top + 2)]
    tried = 0
    for anchor in (bottom, -fmt.p, top):
        for target in targets:
            # Exponents of the factors such that the result's is about `target`.
            other = {"mul": target - anchor, "div": anchor - target, "add": target}[operation]
            x, y = a * 2.0**anchor, b * 2.0**other
            inside = (once(x) == x) & (once(y) == y)
            x, y = x[inside], y[inside]
            u, v = x.float(), y.float()
            exact, single = {
                "mul": (x * y, u * v),
                "div": (x / y, u / v),
                "add": (x + y, u + v),
            }[operation]
            got = single.to(fmt.dtype).double()
            assert_same_bits(got, once(exact), f"2**{anchor}, 2**{other}")
            tried += len(x)
    assert tried > 10 * len(a)


# `rx` rounds inside two_sum in the theorem, and leaves a wider register alone in the executors.
# Both give the same numbers for all pairs of mantissas, exponent gaps and signs. They differ in
# overflow: rounded intermediates can overflow although the sum does not, wide ones cannot.


MODELS = {BF16: toy(8, -200, 200), FP16: toy(11, -200, 200)}


def different(algorithm, fmt: Format, model: Format, gap: int, step: int) -> int:
    """Results that differ between registers and the theorem's arithmetic, at one exponent gap."""
    one = 1 << (fmt.p - 1)
    m = torch.arange(one, 2 * one, step, dtype=torch.float64)
    m = torch.cat([m, torch.tensor([2.0 * one - 1], dtype=torch.float64)])
    a, b = (t.flatten() for t in torch.meshgrid(m, torch.cat([m, -m]), indexing="ij"))
    # Both in the middle of the range, so that neither end is near.
    a, b = a * 2.0 ** -(gap // 2), b * 2.0 ** (gap - gap // 2)
    scale = 2.0 ** -(fmt.p if fmt is FP16 else 0)
    a, b = a * scale, b * scale
    exact = bound(algorithm, model)(a, b)
    wide = bound(algorithm, fmt)(a.float(), b.float())
    return sum(int((w.to(fmt.dtype).double() != e).sum()) for w, e in zip(wide, exact, strict=True))


BF16_GAPS, FP16_GAPS = range(-40, 41), range(-12, 13)


@pytest.mark.sampled
@pytest.mark.parametrize("algorithm", [two_sum, renormalize], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("fmt", "gaps", "step"),
    [
        pytest.param(BF16, BF16_GAPS, 5, id="bf16"),
        pytest.param(FP16, FP16_GAPS, 31, id="fp16"),
        pytest.param(BF16, range(-130, 131), 1, id="all-bf16", marks=pytest.mark.slow),
        pytest.param(FP16, range(-14, 15), 1, id="all-fp16", marks=pytest.mark.slow),
    ],
)
def test_two_sum_is_the_same_in_wide_registers(algorithm, fmt, gaps: range, step: int) -> None:
    for gap in gaps:
        assert different(algorithm, fmt, MODELS[fmt], gap, step) == 0, f"gap {gap}"


def fast_two_sum_unrounded(a, b):
    """The mutant: Fast2Sum may not leave its subtraction unrounded; the other error differs."""
    s = rc(a + b)
    return s, rn(b - rx(s - a))


def test_the_check_sees_an_algorithm_that_differs() -> None:
    assert sum(different(fast_two_sum_unrounded, BF16, MODELS[BF16], g, 3) for g in range(0, 9))


@pytest.mark.parametrize("p", [3, 4, 5])
def test_toy_registers(p: int) -> None:
    # Over all pairs of a format with subnormals: float64 registers instead of rounding.
    fmt = toy(p, -4, 3)
    x = finite(fmt)
    a, b = (t.flatten() for t in torch.meshgrid(x, x, indexing="ij"))
    classical = bound(two_sum, fmt)(a, b)
    live = b.abs() < float(fmt.max)
    s = classical[0]
    t = s - a
    e = (a - (s - t)) + (b - t)
    live &= torch.isfinite(s)
    assert torch.equal(e[live], classical[1][live])


def at_the_largest(fmt: Format) -> tuple[Tensor, Tensor]:
    """b = max, a = -3/2 ulp(b), both signs: s = b - ulp, and s - a is half an ulp beyond max."""
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64)
    a, b = sign * float(-3 * fmt.u * Fraction(2) ** fmt.emax), sign * float(fmt.max)
    return a.to(fmt.dtype), b.to(fmt.dtype)


@pytest.mark.parametrize("fmt", [BF16, FP16, FP32, FP64], ids=lambda f: f.name)
def test_two_sum_beside_the_largest_number(fmt: Format) -> None:
    a, b = at_the_largest(fmt)
    s, e = torch.nextafter(b, torch.zeros_like(b)), a / 3
    # In this order every format is exact.
    assert_all_same_bits(mcf.two_sum(b, a), (s, e), fmt.name)
    if fmt.register == fmt:
        sum_, error = mcf.two_sum(a, b)
        assert torch.equal(sum_, s)
        assert not torch.isfinite(error).any()
    else:
        assert_all_same_bits(mcf.two_sum(a, b), (s, e), fmt.name)

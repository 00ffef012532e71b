"""Correctly rounded matrix products: each element is the nearest expansion, bit for bit.

*Exact*, against rational arithmetic and against exact dot products. Mutants: a modulus fewer than
the integers need, half the bound of what is cut off, a residue of 128 that is not -128.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels.formats import BF16, FORMATS, FP16, FP32, FP64, Format
from mcf.reductions import modular
from mcf.reductions.exact import exact_dots
from mcf.reductions.modular import moduli, multiply
from mcf.reductions.modular.moduli import Plan
from mcf.reductions.modular.residues import integers
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.adversarial import Draw
from tests.helpers.draws import power_of_two
from tests.helpers.everyday import everyday
from tests.helpers.expansions import draw, tensors
from tests.helpers.sums import Components, cancelling, nearest, values

F64 = torch.float64
formats = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
pytestmark = pytest.mark.usefixtures("on_torch")


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many elements of each tile were computed again."""
    counts: list[int] = []
    whole = multiply._again

    def counted(out: Any, x: Any, y: Any, where: Tensor, fmt: Format) -> None:
        counts.append(int(where.sum()))
        whole(out, x, y, where, fmt)

    monkeypatch.setattr(multiply, "_again", counted)
    return counts


def product(x: Components, y: Components, terms: int) -> Components:
    found = modular.exact_matrices([c[None] for c in x], [c[None] for c in y], terms)
    return tuple(c[0] for c in found)


def wrong(result: Components, x: Components, y: Components, fmt: Format) -> int:
    """How many elements are not the nearest expansions to the exact products."""
    (rows, inner), columns = x[0].shape, y[0].shape[1]
    a, b = values(x), values(y)
    count = 0
    for i, j in itertools.product(range(rows), range(columns)):
        terms = (a[i * inner + k] * b[k * columns + j] for k in range(inner))
        expected = nearest(sum(terms, Fraction(0)), fmt, len(result))
        count += [c[i, j].item() for c in result] != expected
    return count


def by_dots(x: Components, y: Components, terms: int) -> Components:
    """Each row and column by an exact dot product."""
    rows, columns = x[0].shape[0], y[0].shape[1]
    i, j = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    found = exact_dots([c[i] for c in x], [c.mT[j].contiguous() for c in y], terms)
    return tuple(c.view(rows, columns) for c in found)


def friendly(fmt: Format, terms: int, shape: tuple[int, int], seed: int) -> Components:
    """Expansions of any sign between 1/2 and 2."""
    parts = draw(fmt, terms, shape[0] * shape[1], seed, -1, 0)
    return tuple(t.view(shape) for t in tensors(fmt, parts))


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@formats
def test_friendly_products_are_the_nearest_and_certain(
    fmt: Format, terms: int, again: list[int]
) -> None:
    x, y = friendly(fmt, terms, (5, 24), terms), friendly(fmt, terms, (24, 7), terms + 10)
    for left, right in ((x, y), (x[:1], y), (x, y[:1])):
        assert wrong(product(left, right, terms), left, right, fmt) == 0
    # Low components of fp16 are subnormal: exact sums often end at ties of what is left.
    assert sum(again) == 0


@pytest.mark.sampled
@pytest.mark.parametrize("terms", [1, 3])
@formats
def test_the_whole_range_cancellation_and_ties(fmt: Format, terms: int, again: list[int]) -> None:
    source = Draw(fmt, terms)
    low, high = (-4, 4) if fmt == FP16 else (fmt.emin // 2, fmt.emax // 2)
    parts = [source.numbers(source.exponents(48, low, high)).reshape(8, 6) for _ in range(2)]
    a, b = parts[0], parts[1].T.copy()
    # Neighbours that cancel wholly, in part, or but for a tie.
    a[1::2, 1], b[1, :] = -a[1::2, 0], b[0, :]
    a[2::3, 3], b[3, :] = -a[2::3, 2], b[2, :]
    a[::4, 5] = source.ulp(a[::4, 4]) / 2
    b[5, ::2] = b[4, ::2]
    x, y = (source.tensor(source.rounded(t)) for t in (a, b))
    assert wrong(product((x,), (y,), terms), (x,), (y,), fmt) == 0
    # Whole numbers of fp16's units have few bits.
    assert (sum(again) > 0) == (fmt != FP16)
    pair = cancelling(fmt, 2, (4, 30), 1), cancelling(fmt, 2, (30, 5), 2)
    assert wrong(product(*pair, terms), *pair, fmt) == 0


@formats
def test_both_ends_of_the_range(fmt: Format) -> None:
    """Subnormal results, the smallest numbers, the largest, and beyond."""
    small, large = float(fmt.min_subnormal), float(fmt.max)
    one = [1.0, -1.0, 0.5, 1.5, 3.0]
    x = torch.tensor([[v * small, -small, 2 * small] for v in (1, 3, 5)] + [[large, 0, 1]] * 2,
                     dtype=F64).to(fmt.dtype)  # fmt: skip
    y = torch.tensor([one, one[::-1], [0.5, 0, 0.25, 0, 1]], dtype=F64).to(fmt.dtype)
    for terms in (1, 2):
        expected = by_dots((x,), (y,), terms)
        assert_all_same_bits(product((x,), (y,), terms), expected)
        assert expected[0].isinf().any()
        tiny = x[:3] * y.mT[0, 0]
        assert_all_same_bits(product((tiny,), (y,), terms), by_dots((tiny,), (y,), terms))


@pytest.mark.parametrize("fmt", [FP64, FP32, BF16], ids=lambda f: f.name)
def test_ties_of_whole_numbers_are_certain(fmt: Format, again: list[int]) -> None:
    """Exact integers: half-way cases go to even, and nothing is computed again."""
    half = 2.0 ** (fmt.p - 1)
    x = torch.tensor([[half, half, 1.0], [half, half, 3.0], [half, -half, 0.0]], dtype=F64)
    y = torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, 2.0], [1.0, -1.0, 2.0]], dtype=F64)
    x, y = x.to(fmt.dtype), y.to(fmt.dtype)
    for terms in (1, 2):
        result = product((x,), (y,), terms)
        assert wrong(result, (x,), (y,), fmt) == 0
        assert_same_bits(result[0][2], torch.zeros(3, dtype=fmt.dtype))
    assert sum(again) == 0
    # 2**p + 1 and 2**p + 3 are ties.
    assert result[0][:2, 0].tolist() == [2 * half, 2 * half + 4]


def test_signed_zeros_are_plus_zero() -> None:
    x = torch.tensor([[-0.0, 0.0], [1.0, -1.0]], dtype=F64)
    y = torch.tensor([[1.0, -0.0], [1.0, -0.0]], dtype=F64)
    assert_same_bits(product((x,), (y,), 1)[0], torch.zeros(2, 2, dtype=F64))


def test_infinities_and_nan() -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[inf, 1, 0], [1, 2, 3], [inf, -inf, 1], [nan, 0, 0], [0, -inf, 2]], dtype=F64)
    y = torch.tensor([[1.0, 0, -1, 3], [1, inf, 2, -2], [0, 1, -inf, 5]], dtype=F64)
    for terms in (1, 2):
        assert_all_same_bits(product((x,), (y,), terms), by_dots((x,), (y,), terms))


def test_residues_of_128_are_minus_128() -> None:
    # Every element is 128 units, whose residue modulo 256 is -128.
    plan = moduli.plan_for(FP64, 1, 40)
    x = torch.full((3, 40), 2.0, dtype=F64)
    unit = integers([x], 1, plan).unit[:, None]
    pair = x, 128 * power_of_two(unit.expand(3, 40))
    found = integers(list(pair), 1, plan)
    assert torch.equal(found.unit[:, None], unit)
    assert plan.plain[0] == 256
    assert found.planes[0].unique().tolist() == [-128]
    right = tuple(c.mT.contiguous() for c in pair)
    assert wrong(product(pair, right, 1), pair, right, FP64) == 0


@pytest.mark.parametrize("floats", [False, True])
def test_products_of_int8_are_exact(floats: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if floats:
        monkeypatch.setattr(multiply, "_units", lambda device: False)
    for inner in (1, 7, 1024, 1025, 5000):
        a = torch.full((5, inner), -128, dtype=torch.int8)
        b = torch.full((inner, 9), -128, dtype=torch.int8)
        b[:, 1::2] = 127
        expected = torch.tensor([[16384 * inner, -16256 * inner] * 5] * 5)[:, :9]
        out = torch.empty(5, 9, dtype=torch.int32)
        multiply.int8_product(a, b, out, 256)
        assert_same_bits(out, expected.int())
        assert_same_bits(multiply._padded(a, b), expected.int())
    # Longer than sums of 32 bits can be: what is left modulo the modulus.
    monkeypatch.setattr(multiply, "INTEGERS", 2000)
    multiply.int8_product(a, b, out, 251)
    assert torch.equal((out - expected) % 251, torch.zeros(5, 9).long())
    assert out.max() < 5 * 251


@pytest.mark.parametrize("inner", [0, 1, 2])
def test_few_products(inner: int) -> None:
    x, y = friendly(FP64, 2, (4, inner), 0), friendly(FP64, 2, (inner, 3), 1)
    result = product(x, y, 2)
    assert wrong(result, x, y, FP64) == 0
    assert result[0].shape == (4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2**16, 2**17 + 1])
def test_many_products(count: int) -> None:
    """More than the sums of int8 products hold; equal ones add up to the most there is."""
    x, y = torch.full((2, count), 1.0 + 2.0**-40, dtype=F64), friendly(FP64, 1, (count, 2), 1)[0]
    y[:, 0] = x[0]
    assert wrong(product((x,), (y,), 2), (x,), (y,), FP64) == 0


def test_order_tiles_threads_and_units_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = friendly(FP32, 2, (33, 50), 0), friendly(FP32, 2, (50, 21), 1)
    expected = product(x, y, 2)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    shuffled = [c[:, order].contiguous() for c in x], [c[order].contiguous() for c in y]
    assert_all_same_bits(product(*shuffled, 2), expected)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert_all_same_bits(product(x, y, 2), expected)
    torch.set_num_threads(threads)
    part = product(tuple(c[5:9].contiguous() for c in x), y, 2)
    assert_all_same_bits(part, tuple(c[5:9] for c in expected))
    monkeypatch.setattr(multiply, "WORKSPACE", 100_000)
    monkeypatch.setattr(multiply, "GATHERED", 1000)
    assert multiply._tiles(moduli.plan_for(FP32, 2, 50), 33, 50, 21) != (21, 33)
    assert_all_same_bits(product(x, y, 2), expected)
    monkeypatch.setattr(multiply, "_units", lambda device: False)
    assert_all_same_bits(product(x, y, 2), expected)


SLOW = [("numba", f, n) for f, n in ((FP16, 2), (FP32, 2), (FP64, 1), (FP64, 2), (FP64, 4))]
SLOW += [("triton", f, n) for f, n in ((BF16, 1), (FP32, 2), (FP64, 4))]


@pytest.mark.parametrize(
    ("executor", "fmt", "terms"),
    everyday([("numba", BF16, 1), *SLOW], [("numba", BF16, 1)]),
    ids=lambda v: getattr(v, "name", v),
)
def test_executors_have_the_same_bits(executor: str, fmt: Format, terms: int) -> None:
    if executor == "triton":
        pytest.importorskip("triton", reason="triton is not installed")
    x, y = friendly(fmt, terms, (9, 40), 0), friendly(fmt, terms, (40, 11), 1)
    x[0][0, 0], y[0][:, 1] = 0, -y[0][:, 0]
    expected = product(x, y, terms)
    with mcf.executor(executor):
        assert_all_same_bits(product(x, y, terms), expected)


def few_bits(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    plan = moduli.plan_of_bits(bits)
    monkeypatch.setattr(multiply, "plan_for", lambda fmt, terms, inner: plan)


def test_the_check_rejects_half_the_bound(
    monkeypatch: pytest.MonkeyPatch, again: list[int]
) -> None:
    # One product each, so that what is cut off comes near the bound, and few bits of it.
    x, y = friendly(FP64, 2, (20, 1), 0), friendly(FP64, 2, (1, 20), 1)
    few_bits(monkeypatch, 53)
    assert wrong(product(x, y, 1), x, y, FP64) == 0
    assert 50 < again[-1] < 300
    monkeypatch.setattr(multiply, "UP", 0.5)
    assert wrong(product(x, y, 1), x, y, FP64) > 4


def test_the_check_rejects_a_modulus_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = friendly(FP64, 1, (20, 20), 0), friendly(FP64, 1, (20, 20), 1)
    plan = moduli.plan_for(FP64, 1, 20)
    short = Plan((), plan.plain[:-1])
    short.__dict__["bits"] = plan.bits
    monkeypatch.setattr(multiply, "plan_for", lambda fmt, terms, inner: short)
    assert wrong(product(x, y, 1), x, y, FP64) > 100


def test_the_check_rejects_ties_away_from_even() -> None:
    x = torch.tensor([[2.0**52, 2.0**52, 1.0]], dtype=F64)
    y = torch.ones(3, 1, dtype=F64)
    assert wrong((torch.tensor([[2.0**53 + 2]], dtype=F64),), (x,), (y,), FP64) == 1


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    "shapes",
    [((5,), (5,)), ((5,), (5, 6)), ((4, 5), (5,)), ((3, 4, 5), (5, 2)), ((2, 1, 4, 5), (3, 5, 2)),
     ((5,), (3, 5, 2)), ((3, 4, 5), (5,))],
    ids=str,
)  # fmt: skip
def test_shapes_and_gradients(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Small integers: every product and sum is exact, in torch too."""
    x, y = (
        torch.from_numpy(np.random.default_rng(k).integers(-9, 10, s)).double().requires_grad_()
        for k, s in enumerate(shapes)
    )
    expected = torch.matmul(x, y)
    grad = torch.arange(expected.numel(), dtype=F64).view(expected.shape)
    gradients = torch.autograd.grad(expected, (x, y), grad)
    for reproducible in (False, True):
        result = mcf.matmul(x, y, reproducible=reproducible)
        assert torch.equal(result, expected)
        assert all(map(torch.equal, torch.autograd.grad(result, (x, y), grad), gradients))


def test_kinds_of_results_and_second_derivatives() -> None:
    x = mcf.tensor([[1.0, 2.0]], terms=3, dtype=F64).requires_grad_()
    y = torch.tensor([[3.0], [4.0]], dtype=F64).requires_grad_()
    z = mcf.matmul(x, y, reproducible=True)
    assert isinstance(z, mcf.MCFTensor)
    assert z.terms == 3
    assert type(mcf.matmul(y, y.mT, reproducible=True)) is Tensor
    assert mcf.matmul(y, y.mT, terms=2, reproducible=True).terms == 2
    gx, gy = torch.autograd.grad(z * z, (x, y))
    assert gx.terms == 3
    assert type(gy) is Tensor
    assert gy.flatten().tolist() == [22.0, 44.0]
    plain = torch.tensor([[1.0, 2.0]], dtype=F64).requires_grad_()
    z = mcf.matmul(plain, y, reproducible=True)
    (gy,) = torch.autograd.grad(z * z, y, create_graph=True)
    (second,) = torch.autograd.grad(gy.sum(), y)
    assert second.flatten().tolist() == [6.0, 12.0]


def test_what_is_refused() -> None:
    x, y, z = torch.ones(2, 3, dtype=F64), torch.ones(2, 1, 3), torch.ones(3, 3, 1)
    refused: tuple[tuple[type[Exception], str, Callable[[], object]], ...] = (
        (TypeError, "x must be a tensor", lambda: mcf.matmul([1.0], x)),
        (TypeError, "y has dtype torch.int64", lambda: mcf.matmul(x, x.mT.long())),
        (TypeError, "y has dtype torch.float32", lambda: mcf.matmul(x, x.mT.float())),
        (ValueError, "inner dimensions are 3 and 2", lambda: mcf.matmul(x, x)),
        (ValueError, "terms must be an int from 1 to 4", lambda: mcf.matmul(x, x.mT, terms=5)),
        (ValueError, "do not broadcast", lambda: mcf.matmul(y, z)),
    )  # fmt: skip
    for error, message, call in refused:
        with pytest.raises(error, match=message):
            call()

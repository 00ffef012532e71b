"""Matrix products of expansions: shapes as torch's, errors within the bound, bits of the parts.

*Proven bound* (`mcf.kernels.fold_bounds`), against rational arithmetic. The mutants of the
algorithms are in tests/kernels/test_fold.py; here a product of leading components is rejected.
Small products have the bits of large ones. Caught mutants: partial sums that settle in the result's
slots without their last; operands of a product exchanged; a power of two beyond the range as one
factor; results that leave the range taken as they are.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf.expansions.dispatch.torch_functions import forward
from mcf.kernels import operations
from mcf.kernels.fold_bounds import fold_bound
from mcf.kernels.formats import BF16, FORMATS, FP16, FP64, Format
from mcf.linalg import number_kinds
from mcf.reductions import products
from mcf.reductions.products import matmul, small_products
from tests.helpers import assert_all_same_bits, assert_same_bits
from tests.helpers.draws import power_of_two
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.helpers.sums import Components, cancelling, values
from tests.mcf.expansions.inputs import hard

F64 = torch.float64


def excess(c: Components, a: Components, b: Components, fmt: Format) -> Fraction:
    """The largest error of an element of c = a @ b over the bound."""
    rows, inner = a[0].shape
    columns = b[0].shape[1]
    x, y, z = values(a), values(b), values(c)
    bound = fold_bound(fmt, len(c), inner, lanes=1)
    # fp16 ends at 2**-24: what is below is lost with the rounding of the result.
    smallest = fmt.min_subnormal
    largest = Fraction(0)
    for i in range(rows):
        for j in range(columns):
            products = [x[i * inner + k] * y[k * columns + j] for k in range(inner)]
            exact, size = sum(products, Fraction(0)), sum(map(abs, products), Fraction(0))
            allowed = bound.error(exact, size) + smallest
            largest = max(largest, abs(z[i * columns + j] - exact) / allowed)
    return largest


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_bound(fmt: Format, terms: int) -> None:
    with mcf.executor("torch"):
        for inner in (1, 7, 40):
            a = cancelling(fmt, terms, (4, inner), inner)
            b = cancelling(fmt, terms, (inner, 5), inner + 1)
            assert excess(matmul(a, b), a, b, fmt) <= 1
            assert excess(matmul(a[:1], b), a[:1], b, fmt) <= 1
            assert excess(matmul(a, b[:1]), a, b[:1], fmt) <= 1


@pytest.mark.usefixtures("on_torch")
def test_the_bound_rejects_a_product_that_loses_a_component() -> None:
    a, b = (cancelling(FP64, 2, shape, 0) for shape in ((4, 40), (40, 5)))
    assert excess((*matmul(a[:1], b, terms=2),), a, b, FP64) > 2


def test_rows_and_columns_of_extreme_range() -> None:
    """The bound is relative to |A| |B| element by element, not to the largest of a row."""
    a = cancelling(FP64, 2, (4, 12), 0)
    b = cancelling(FP64, 2, (12, 4), 1)
    scale = torch.arange(-121, 122, 22)
    a = tuple(c * power_of_two(scale) for c in a)
    b = tuple(c * power_of_two(-3 * scale[:, None]) for c in b)
    assert excess(matmul(a, b), a, b, FP64) <= 1


SHAPES = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((2, 3), (6, 3, 4)), ((5, 2, 3), (3,)),
    ((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 4)), ((1, 1), (1, 1)),
    ((40, 3), (3, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_shapes(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    # Small integers: torch's own product is exact too.
    x, y = (torch.randint(-9, 9, s, generator=generator).double() for s in (left, right))
    hi, lo = matmul((x, torch.zeros_like(x)), (y, torch.zeros_like(y)))
    assert torch.equal(hi, torch.matmul(x, y))
    assert torch.equal(lo, torch.zeros_like(hi))


def test_an_element_does_not_depend_on_the_others() -> None:
    """Nor on the layout: one row, one column, one matrix of a batch, transposed memory."""
    a, b = cancelling(FP64, 2, (3, 20, 30), 0), cancelling(FP64, 2, (3, 30, 21), 1)
    whole = matmul(a, b)
    one = matmul(tuple(c[1, 4] for c in a), tuple(c[1, :, 7] for c in b))
    assert_all_same_bits(one, [c[1, 4, 7] for c in whole])
    column = matmul(tuple(c[1] for c in a), tuple(c[1, :, 7:8] for c in b))
    assert_all_same_bits(column, [c[1, :, 7:8] for c in whole])
    strided = matmul(tuple(c.mT.contiguous().mT for c in a), tuple(c.mT.contiguous().mT for c in b))
    assert_all_same_bits(strided, whole)


@pytest.mark.parametrize(
    ("executor", "terms"),
    [("numba", 2), ("torch", 4), pytest.param("numba", 4, marks=pytest.mark.slow)],
)
def test_transposing_gives_the_same_bits(executor: str, terms: int) -> None:
    a, b = cancelling(FP64, terms, (9, 30), 0), cancelling(FP64, terms, (30, 20), 1)
    with mcf.executor(executor):
        other = matmul(tuple(c.mT for c in b), tuple(c.mT for c in a))
        assert_all_same_bits([c.mT for c in other], matmul(a, b))


def test_infinities_and_nan() -> None:
    inf, nan = torch.inf, torch.nan
    x = torch.tensor([[inf, 1.0], [nan, 1.0], [1e200, 1e200], [-0.0, 0.0]], dtype=F64)
    y = torch.tensor([[1.0, 0.0, -1.0], [1.0, 1.0, -inf]], dtype=F64)
    expected = torch.tensor(
        [[inf, nan, -inf], [nan, nan, nan], [2e200, 1e200, -inf], [0.0, 0.0, nan]], dtype=F64
    )
    zero = torch.zeros_like
    hi, lo = matmul((x, zero(x)), (y, zero(y)))
    assert_same_bits(hi + 0.0, expected)
    assert_same_bits(lo[expected.isinf() | expected.isnan()], torch.zeros(8, dtype=F64))


@pytest.mark.usefixtures("on_torch")
def test_half_precision_products_below_its_range_are_not_lost() -> None:
    x = torch.full((1, 1024), 2.0**-13, dtype=FP16.dtype)
    hi, lo = matmul((x, torch.zeros_like(x)), (x.mT, torch.zeros_like(x.mT)))
    assert hi.item() == 2.0**-16
    assert lo.item() == 0


def test_refusals() -> None:
    x, y = torch.ones(2, 3, dtype=F64), torch.ones(2, 3, dtype=F64)
    with pytest.raises(ValueError, match=r"inner dimensions are 3 and 2"):
        matmul((x,), (y,))
    with pytest.raises(TypeError, match=r"y has dtype torch.bfloat16 and x has torch.float64"):
        matmul((x,), (y.mT.to(BF16.dtype),))
    with pytest.raises(ValueError, match="at least one dimension"):
        matmul((x,), (torch.tensor(1.0, dtype=F64),))
    with pytest.raises(ValueError, match=r"batches \[2\] and \[3\] do not broadcast"):
        matmul((torch.ones(2, 1, 1),), (torch.ones(3, 1, 1),))


def as_tensors(terms: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [
        mcf.from_components(cancelling(FP64, terms, shape, seed))
        for seed, shape in enumerate(shapes)
    ]


@pytest.mark.usefixtures("on_torch")
def test_torch_functions_give_the_same_bits() -> None:
    x, y, v, z = as_tensors(2, (6, 4), (4, 5), (4,), (6, 5))
    product = matmul(x.components, y.components)
    for same in (
        x @ y,
        torch.mm(x, y),
        torch.bmm(x[None], y[None])[0],
        torch.einsum("ij,jk->ik", x, y),
        torch.nn.functional.linear(x, y.mT),
        torch.addmm(torch.zeros(5, dtype=F64), x, y),
        torch.tensordot(x, y, 1),
    ):
        assert_all_same_bits(same.components, product)
    assert_all_same_bits((x @ v).components, matmul(x.components, v.components))
    mixed = x @ y.components[0]
    assert_all_same_bits(mixed.components, matmul(x.components, y.components[:1]))
    added = torch.addmm(z, x, y, beta=2, alpha=3)
    assert_all_same_bits(added.components, (mcf.from_components(product) * 3 + z * 2).components)
    outer = torch.outer(v, v)
    assert_all_same_bits(outer.components, (v[:, None] * v[None, :]).components)


def test_torch_refuses_what_does_not_match() -> None:
    x, y = as_tensors(2, (6, 4), (6, 4))
    for call in (torch.mm, torch.matmul):
        with pytest.raises(RuntimeError):
            call(x, y)


def test_gradient() -> None:
    x, y = as_tensors(2, (6, 4), (4, 5))
    x.requires_grad_()
    y.requires_grad_()
    (g,) = as_tensors(2, (6, 5))
    (x @ y).backward(g)
    with torch.no_grad():
        assert_all_same_bits(x.grad.components, (g @ y.mT).components)
        assert_all_same_bits(y.grad.components, (x.mT @ g).components)


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik", "ji,jk->ik", "ij,kj->ik", "ji,kj->ik", "ij,jk->ki", "ij,jk", "ij,ij->ij",
        "ii,ij->ij", "ij,kl->ik", " i j , j k -> i k",
    ],
)  # fmt: skip
def test_einsum_of_two_matrices_has_the_bits_and_layout_of_torchs_steps(equation: str) -> None:
    generator = torch.Generator().manual_seed(1)
    first = [torch.rand(3, 3, generator=generator).double() for _ in range(4)]
    a, b = (mcf.MCFTensor([first[k], first[k + 1] * 2.0**-60]) for k in (0, 2))
    for x, y in ((a, b), (a.mT, b), (a, b.mT), (a[:1], b)):
        found: list[Any] = []
        for function in (torch.einsum, lambda *given: forward(torch.einsum, given, {})):
            try:
                found.append(function(equation, x, y))
            except RuntimeError as error:
                found.append(str(error))
        if isinstance(found[1], str):
            assert found[0] == found[1]
        else:
            assert found[0].stride() == found[1].stride()
            assert all(map(torch.equal, found[0].components, found[1].components))


def _parts(terms: int, shape: tuple[int, ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    whole = [torch.randint(-(2**52), 2**52, shape, generator=generator) for _ in range(terms)]
    return [c.to(F64) * 2.0 ** (-53 * k) for k, c in enumerate(whole)]


@pytest.mark.parametrize(
    ("left", "right", "terms"),
    everyday(itertools.product((1, 2, 3, 4), repeat=3), [(2, 2, 2)]),
)
def test_products_are_those_of_the_operator(left: int, right: int, terms: int) -> None:
    for batch, rows, inner, columns in ((1, 3, 3, 3), (2, 1, 5, 1), (3, 4, 2, 20)):
        x, y = products.paired(
            tuple(_parts(left, (batch, rows, inner), 1)),
            tuple(_parts(right, (batch, inner, columns), 2)),
            terms,
        )
        # Twice: the second time by what has been prepared.
        for _ in range(2):
            found = small_products(x, y, terms)
            assert found is not None
            expected = products._matrix_products([*x], [*y], terms)
            assert_all_same_bits(tuple(found), tuple(expected), f"{batch} {rows} {columns}")


@pytest.mark.usefixtures("on_torch")
def test_what_is_not_few_or_seen_goes_the_longer_way() -> None:
    x = _parts(2, (1, 3, 3), 1)
    # An executor without loops.
    assert small_products(x, x, 2) is None
    for others in ([c.float() for c in x], [c[:, :0] for c in x], [c[:0] for c in x]):
        assert small_products(others, [c[: len(others[0])] for c in x], 2) is None
    recorded = [c.clone().requires_grad_() for c in x]
    assert small_products(recorded, x, 2) is None
    with Seen():
        assert small_products(x, x, 2) is None


def test_powers_of_two_are_those_of_ldexp() -> None:
    x = tuple(c.reshape(2, 3, 4) for c in hard(F64, 2, 24, 3))
    middle = tuple(c * 2.0**-30 for c in _parts(2, (2, 3, 4), 5))
    pairs = [(0, 0), (3, -5), (-1022, 1023), (-1030, 2), (1100, 0), (-2000, 2000), (900, 900)]
    for part, exponents in itertools.product((x, middle), pairs):
        k = torch.tensor(exponents)[:, None, None]
        expected = operations.ldexp(part, k)
        assert_all_same_bits(number_kinds._scaled(part, k), expected, str(exponents))
    assert number_kinds._scaled(middle, 0) is middle

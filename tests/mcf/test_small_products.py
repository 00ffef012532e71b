"""Exact: what few numbers take a shorter way for has the bits of the longer one.

Caught mutants: partial sums that settle in the result's place without their last; the operands of a
product exchanged; a power of two beyond the range as one factor; what leaves the range taken as it
is.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from mcf.kernels import operations
from mcf.linalg import number_kinds
from mcf.reductions import products
from mcf.reductions.products import small_products
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.modes import Seen
from tests.mcf.expansions.inputs import hard

F64 = torch.float64


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

"""Exact: exponentials of small matrices have the bits of the operator for large ones.

Caught mutants: a norm without its room for rounding; matrices of a batch squared as often as the
largest of them, or left in the order of their norms; a transposed matrix read in memory order.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import mcf
from mcf.expansions.launch import calls
from mcf.expansions.launch import matrices as matrix_calls
from mcf.expansions.tensor import wrap
from mcf.linalg import opaque_decompositions
from tests.helpers import assert_alike

matrix_exp: Any = torch.linalg.matrix_exp
F64 = torch.float64
SLOW = pytest.mark.slow


def whole(*shape: int) -> torch.Tensor:
    k = torch.arange(math.prod(shape), dtype=F64).reshape(shape)
    return (k * k * 7 + 3 * k) % 23 - 11


def matrices(dtype: torch.dtype, terms: int, *shape: int) -> list[Any]:
    """Small and large ones, others in each batch, that are not normalised, that are not finite."""
    bits = 53 if dtype is F64 else 24
    parts = [whole(*shape) * 2.0 ** (-(bits + 1) * k - 4) for k in range(terms)]
    step = torch.arange(math.prod(shape[:-2]), dtype=F64).reshape(*shape[:-2], 1, 1) * 5 % 7
    odd = whole(*shape) / 8
    for k, v in enumerate((math.nan, math.inf, -0.0, 2.0**-1074, 2.0**-140)[: odd.numel()]):
        odd.view(-1)[-1 - k] = v
    zero = [torch.zeros_like(odd)] * (terms - 1)
    found = [
        parts,
        [p.mT * 2.0**4 for p in parts],
        [p * 2.0**-40 for p in parts],
        [p * 2.0 ** (2 - step) for p in parts],
        [p * 2.0 ** (step - 2) for p in parts],
        # Sums of columns that are a power of two less than what a sum is rounded by.
        [torch.ones_like(odd).tril().mT * (1 - 2.0**-22) / shape[-1], *zero],
        [parts[0], *(p + 2.0**-6 * whole(*shape).mT for p in parts[1:])],
        [parts[0] * (2.0**1010 if dtype is F64 else 2.0**120), *zero],
        [odd, *zero],
    ]
    return [wrap(tuple(p.to(dtype) for p in x)) for x in found]


@pytest.mark.parametrize(
    ("dtype", "terms", "shape"),
    [
        (F64, 2, (3, 3)),
        (F64, 2, (2, 3, 2, 2)),
        (F64, 3, (1, 1)),
        *[
            pytest.param(d, t, s, marks=SLOW)
            for d in (F64, torch.float32)
            for t in (1, 2, 3, 4)
            for s in ((1, 1), (4, 4), (7, 5, 5), (2, 3, 3, 3), (32, 32))
        ],
    ],
)
def test_bits_of_the_operator(dtype: torch.dtype, terms: int, shape: tuple[int, ...]) -> None:
    for k, a in enumerate(matrices(dtype, terms, *shape)):
        got = [matrix_exp(a), torch.matrix_exp(a), a.matrix_exp()]
        want = wrap(opaque_decompositions.matrix_exp(a.components)[0])
        with mcf.executor("torch"):
            got.append(matrix_exp(a))
        for found in got:
            assert (type(found), found.dtype, found.shape) == (type(a), dtype, a.shape)
            assert_alike(found, want, f"{dtype} {terms} {shape} {k}")


def test_as_many_squarings_as_each_matrix_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    square = matrix_calls._square
    monkeypatch.setattr(calls, "_calls", {})
    monkeypatch.setattr(
        matrix_calls,
        "_square",
        lambda terms, count, n: (made.append(count), square(terms, count, n))[1],
    )
    size = 2.0 ** torch.tensor([-3.0, 5.0, 1.0, 2.0, -1.0], dtype=F64)[:, None, None]
    # The norm is .625 of a size.
    first = torch.tensor([[0.25, 0.125], [0.0, 0.5]], dtype=F64) * size
    a = mcf.from_components([first, first * 2.0**-55])
    got = [matrix_exp(a), matrix_exp(a)]
    # Of all, and of the powers of two that hold three, two and one.
    assert made == [5, 4, 2, 1]
    for k in range(5):
        for found in got:
            assert_alike(found[k], matrix_exp(a[k]), str(k))


def test_matrices_without_elements_and_that_are_not_square() -> None:
    a = mcf.from_components([whole(3, 3) / 16, whole(3, 3) * 2.0**-60])
    with pytest.raises(RuntimeError, match="square"):
        matrix_exp(a[:2])
    assert matrix_exp(a[:0, :0]).shape == (0, 0)


def test_derivatives_are_exponentials_of_blocks() -> None:
    a = mcf.from_components([whole(3, 3) / 16, whole(3, 3) * 2.0**-60])
    x = a.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(matrix_exp(x).sum(), x)
    one = torch.ones_like(a)
    block = torch.cat((torch.cat((a.mT, one), 1), torch.cat((0 * a, a.mT), 1)))
    want = wrap(opaque_decompositions.matrix_exp(block.components)[0])[:3, 3:]
    assert_alike(gradient.contiguous(), want.contiguous(), "derivative")

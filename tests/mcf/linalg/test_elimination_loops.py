"""The loops of eliminations have the bits of one launch for each step, on every format."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg import cholesky_factor, lu_factors, parts, triangular
from tests.helpers.everyday import everyday

F64 = torch.float64
FORMATS = everyday(
    itertools.product((F64, torch.float32, torch.bfloat16), (1, 2, 3, 4)), [(F64, 2)]
)


def components(dtype: torch.dtype, terms: int, *shape: int) -> parts.Components:
    """Numbers in (-1, 1) with all components in use."""
    g = torch.Generator().manual_seed(sum(shape))
    fmt = format_of(dtype)
    unit = 2 ** (fmt.p - 1)
    found = []
    for k in range(terms):
        numbers = torch.randint(-unit, unit + 1, shape, generator=g)
        found.append((numbers.double() / unit * float(fmt.u) ** k).to(dtype))
    return operations.renormalize(tuple(found)) if terms > 1 else tuple(found)


def flattened(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [c for part in x for c in flattened(part)]


def assert_same_bits(call: Callable[[], Any]) -> None:
    with mcf.executor("torch"):
        wanted = flattened(call())
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            found = flattened(call())
        finally:
            torch.set_num_threads(before)
        for x, y in zip(found, wanted, strict=True):
            # Zeros of either sign and NaN differ by their bits alone; a NaN has any payload.
            assert x.shape == y.shape
            assert torch.equal(x, y) or bool(((x == y) | ((x != x) & (y != y))).all())
            assert torch.equal(torch.signbit(x) & (x == x), torch.signbit(y) & (y == y))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_lu(dtype: torch.dtype, terms: int) -> None:
    """Panels of fewer and of more rows than columns, a batch, a step without exchanges."""
    for shape in ((5, 5), (34, 40), (2, 40, 34)):
        a = components(dtype, terms, *shape)
        assert_same_bits(lambda a=a: lu_factors.factor(a))
        assert_same_bits(lambda a=a: lu_factors.factor(a, pivot=False))


@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_cholesky(dtype: torch.dtype, terms: int) -> None:
    for shape in ((5, 5), (2, 67, 67)):
        a = components(dtype, terms, *shape)
        a = operations.add(a, torch.eye(shape[-1], dtype=dtype) * 2 * shape[-1])
        assert_same_bits(lambda a=a: cholesky_factor.factor(a))


@pytest.mark.parametrize(("dtype", "terms"), FORMATS)
def test_substitution(dtype: torch.dtype, terms: int) -> None:
    """Both sides and triangles, more columns than an item has, one matrix for all of a batch."""
    a = operations.add(components(dtype, terms, 34, 34), torch.eye(34, dtype=dtype) * 32)
    for flags in range(8):
        upper, left, unit = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        b = components(dtype, terms, *((2, 34, 130) if left else (2, 3, 34)))
        assert_same_bits(
            lambda b=b, upper=upper, left=left, unit=unit: triangular.solve(
                a, b, upper=upper, left=left, unitriangular=unit
            )
        )


SPECIAL: dict[str, Sequence[Sequence[float]]] = {
    "zeros": [[0.0, 0.0], [0.0, -0.0]],
    "singular": [[1.0, 1.0], [1.0, 1.0]],
    "not a number": [[1.0, torch.nan, 2.0], [3.0, 4.0, 5.0], [-3.0, 1.0, torch.inf]],
    "infinite": [[1.0, torch.inf], [-torch.inf, 2.0]],
    "negative": [[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, -1.0]],
    "tied": [[1.0, 2.0, 3.0], [-1.0, 5.0, 1.0], [1.0, -2.0, 4.0]],
}


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str) -> None:
    """Zero pivots, ties between pivots, NaN among them, and their `info`."""
    leading = torch.tensor(SPECIAL[name], dtype=F64)
    a = (leading, torch.zeros_like(leading))
    assert_same_bits(lambda: lu_factors.factor(a))
    assert_same_bits(lambda: cholesky_factor.factor(a))
    assert_same_bits(lambda: triangular.solve(a, a, upper=False))


def test_a_view_of_other_strides_for_each_component_is_taken_as_it_is() -> None:
    hi, lo = operations.add(components(F64, 2, 9, 9), torch.eye(9, dtype=F64) * 8)
    a = (hi, lo.mT.contiguous().mT)
    assert_same_bits(lambda: triangular.solve(a, a, upper=True))
    assert_same_bits(lambda: lu_factors.factor(a))


def test_the_comparison_rejects_another_order() -> None:
    """The mutant: the same product taken off in one sum, not step by step."""
    a = operations.add(components(F64, 2, 9, 9), torch.eye(9, dtype=F64) * 8)
    calls = iter([triangular.BLOCK, 2, 2])

    def call() -> Any:
        # Blocks of another length add the same terms in another order.
        before, triangular.BLOCK = triangular.BLOCK, next(calls)
        try:
            return triangular.solve(a, a, upper=False)
        finally:
            triangular.BLOCK = before

    with pytest.raises(AssertionError):
        assert_same_bits(call)

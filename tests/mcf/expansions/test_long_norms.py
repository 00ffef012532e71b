"""Norms of long rows: the loop that adds squares looks at the numbers too, block by block."""

from __future__ import annotations

import itertools

import pytest
import torch

import mcf
from mcf.kernels import registry
from mcf.kernels.fold import BLOCK, product_fold
from mcf.kernels.formats import FP64
from mcf.reductions.folds import LARGEST, LEAST
from tests.helpers.everyday import everyday

pytest.importorskip("numba")


def expansion(shape: tuple[int, ...]) -> mcf.MCFTensor:
    g = torch.Generator().manual_seed(3)
    parts = [torch.randint(1, 1 << 20, shape, generator=g).double() * s for s in (1, 2.0**-60)]
    return mcf.MCFTensor(parts)


ROW, ROWS = (2 * BLOCK + 5,), (3, BLOCK + 9)
OUTLIERS = (None, 0.0, 2.0**61, 2.0**-130, float("inf"), float("nan"))
EVERYDAY = (ROW, None), (ROWS, 2.0**61)
# At every change numbers that need no scale, and a row that does beside others.
CASES = everyday(itertools.product((ROW, ROWS), OUTLIERS), EVERYDAY)


@pytest.mark.parametrize(("shape", "outlier"), CASES)
def test_bits_of_the_reference(shape: tuple[int, ...], outlier: float | None) -> None:
    """In the last block of the last row too, where only that row's may be scaled."""
    x = expansion(shape)
    if outlier is not None:
        x.components[0].view(-1)[-1] = outlier
        x.components[1].view(-1)[-1] = 0.0
    found = torch.linalg.vector_norm(x, dim=-1)
    with mcf.executor("torch"):
        wanted = torch.linalg.vector_norm(x, dim=-1)
    for a, b in zip(found.components, wanted.components, strict=True):
        assert torch.equal(a.view(torch.int64), b.view(torch.int64))


@pytest.mark.parametrize("component", [0, 1])
def test_what_the_loop_says(component: int) -> None:
    """Zeros are in every range, its ends are in it, and one number outside is enough."""
    x = [c.view(1, -1) for c in expansion((2 * BLOCK + 5,)).components]
    spec = product_fold(FP64, 2, 2, 2)
    for number, inside in ((0.0, True), (-LARGEST, True), (LEAST, True), (LEAST / 2, False),
                           (-2 * LARGEST, False), (float("nan"), False)):  # fmt: skip
        x[component][0, -1] = number
        found = registry.fold_within(spec, [x, x], LEAST, LARGEST)
        assert found is not None
        assert found[1] is inside
        if inside:
            assert torch.equal(found[0], registry.fold(spec, [x, x]))

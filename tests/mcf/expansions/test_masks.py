"""Elements that a mask picks or replaces: of many, one loop in place of torch's search for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mcf
from mcf.kernels.numba.loops import picking

pytest.importorskip("numba")

# A block and two elements, so that a word of eight is cut; the least number that has a loop.
LONG, SHORT = picking.BLOCK + 2, picking.MANY


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def expansion(count: int, dtype: torch.dtype, seed: int) -> mcf.MCFTensor:
    """Whole numbers of a few bits, and below them fractions: any two elements differ in both."""
    g = torch.Generator().manual_seed(seed)
    parts = [torch.randint(-100, 100, (count,), generator=g).to(dtype) * s for s in (1, 2.0**-20)]
    return mcf.MCFTensor(parts)


def mask_of(count: int, share: int) -> torch.Tensor:
    """So many of a hundred, without a pattern, the first and the last among them."""
    mask = torch.randint(0, 100, (count,), generator=torch.Generator().manual_seed(7)) < share
    mask[0] = mask[-1] = share > 0
    return mask


def same(x: mcf.MCFTensor, parts: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, x.components, parts))


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("share", [0, 3, 30, 70, 100])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_picked_and_replaced(dtype: torch.dtype, share: int, threads: int) -> None:
    x, mask = expansion(LONG, dtype, 0), mask_of(LONG, share)
    assert same(x[mask], [c[mask] for c in x.components])
    assert same(x.masked_select(mask), [c[mask] for c in x.components])
    source = expansion(int(mask.sum()) + 1, dtype, 1)
    wanted = [
        c.masked_scatter(mask, s) for c, s in zip(x.components, source.components, strict=True)
    ]
    assert same(x.masked_scatter(mask, source), wanted)
    filled = x.clone()
    filled[mask] = 2.5
    zero = torch.zeros((), dtype=dtype)
    values = zip((2.5, 0), x.components, strict=True)
    assert same(filled, [torch.where(mask, zero + v, c) for v, c in values])


def test_layouts_of_masks() -> None:
    """Not contiguous, of two dimensions, at an odd address, and of rows alone."""
    x = expansion(SHORT, torch.float64, 0).reshape(64, -1)
    wide = mask_of(2 * SHORT, 50)
    for mask in (wide[::2].view(64, -1), wide[3 : SHORT + 3].view(64, -1), wide[:64]):
        assert same(x[mask], [c[mask] for c in x.components])
    turned = x.mT
    mask = mask_of(SHORT, 50).view(-1, 64)
    assert same(turned[mask], [c[mask] for c in turned.components])


def test_bytes_that_are_no_truths() -> None:
    """A mask that views other bytes than 0 and 1 picks within its vectors."""
    numbers = torch.arange(SHORT) % 7 - 3
    mask, x = numbers.to(torch.int8).view(torch.bool), expansion(SHORT, torch.float64, 0)
    where = numbers != 0
    assert same(x[mask], [c[where] for c in x.components])
    wanted = [c.masked_scatter(where, c) for c in x.components]
    assert same(x.masked_scatter(mask, x), wanted)


def test_too_few_are_refused() -> None:
    x, mask = expansion(SHORT, torch.float64, 0), mask_of(SHORT, 50)
    with pytest.raises(RuntimeError, match="elements of source < number of ones in mask"):
        x.masked_scatter(mask, x[:5])


def test_a_loop_was_used() -> None:
    """The tests above would pass without one."""
    x = expansion(SHORT, torch.float64, 0).components
    assert picking.picked(x, mask_of(SHORT, 50)) is not None
    assert picking.picked(x, mask_of(SHORT, 0)) is None
    assert picking.replaced(x, mask_of(SHORT, 50), x) is not None
    assert picking.replaced(x, mask_of(SHORT, 50), [c[:1] for c in x]) is None

"""Comparison of tensors by bits: -0 differs from +0, and a NaN equals any NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The one NaN that stands for all, as bits.
_NAN = {
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7F,
    torch.bfloat16: 0x7FC0,
    torch.float16: 0x7E00,
    torch.float32: 0x7FC00000,
    torch.float64: 0x7FF8000000000000,
}


def bits(t: Tensor) -> Tensor:
    """The bits of each element as an integer, one and the same for every NaN."""
    if not t.is_floating_point():
        return t
    plain = t.detach().contiguous().view(_INTEGERS[t.element_size()])
    return torch.where(t.isnan(), torch.full_like(plain, _NAN[t.dtype]), plain)


def count_different(a: Tensor, b: Tensor) -> int:
    """How many elements differ in any bit."""
    return int((bits(a) != bits(b)).sum())


def assert_same_bits(actual: Tensor, expected: Tensor, what: str = "") -> None:
    """Fail where dtype, shape or the bits of an element differ; the message shows the first."""
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype} is not {expected.dtype}"
    assert actual.shape == expected.shape, (
        f"{what}: {list(actual.shape)} is not {list(expected.shape)}"
    )
    a, e = bits(actual).cpu(), bits(expected).cpu()
    wrong = (a != e).flatten().nonzero().flatten()
    if len(wrong) == 0:
        return
    k = int(wrong[0])
    mask = (1 << 8 * actual.element_size()) - 1
    got, want = int(a.flatten()[k]) & mask, int(e.flatten()[k]) & mask
    raise AssertionError(
        f"{what}: {len(wrong)} of {a.numel()} elements differ; element {k} is "
        f"{actual.flatten()[k].item()!r} ({got:#x}), expected "
        f"{expected.flatten()[k].item()!r} ({want:#x})"
    )


def assert_all_same_bits(
    actual: Sequence[Tensor], expected: Sequence[Tensor], what: str = ""
) -> None:
    """`assert_same_bits` for each of several tensors, a count of them included."""
    assert len(actual) == len(expected), f"{what}: {len(actual)} tensors, not {len(expected)}"
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(a, e, f"{what} [{k}]")


def assert_alike(got: Any, expected: Any, what: str) -> None:
    """Two results of one type with the same dtype, shape, strides and bits; or the same bool."""
    assert type(got) is type(expected), what
    if isinstance(got, bool):
        assert got is expected, what
        return
    assert (got.dtype, got.shape, got.stride()) == (
        expected.dtype, expected.shape, expected.stride(),
    ), what  # fmt: skip
    parts = [getattr(x, "components", (x,)) for x in (got, expected)]
    if got.is_floating_point():
        assert_all_same_bits(*parts, what)
    else:
        assert torch.equal(got, expected), what

"""Exact: softmax and its like are the same bits on every executor, in any piece and layout.

Caught mutants: an odd last element left in the middle; sums without the zero in the largest
number's place; a largest number that is infinite or NaN taken for a usual one.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

import mcf
from mcf import elementary
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP32, FP64, Format
from mcf.kernels.row_tasks import RowTask
from tests.helpers import assert_all_same_bits
from tests.helpers.elementary import Inputs
from tests.helpers.executors import on_each_executor

softmax = importlib.import_module("mcf.elementary.softmax")
rows = importlib.import_module("mcf.elementary.softmax")

NAMES = ("softmax", "log_softmax", "logsumexp")
INF, NAN = torch.inf, torch.nan
# Rows of numbers that are none, or whose largest number stands more than once.
SPECIAL = [[-INF, -INF], [INF, 0.0], [INF, -INF], [NAN, 0.0], [NAN, INF], [2.0, 2.0], [0.0, -0.0]]
SHAPES = (((2, 5, 3), 1), ((5, 7), 1), ((3, 37), 1), ((1,), 0))


def numbers(fmt: Format, terms: int, count: int, seed: int = 1) -> tuple[Tensor, ...]:
    """Numbers of which some are far below the others, two are largest, and some -inf."""
    x = Inputs(fmt, terms, seed).between(-5, 5, count)
    x[0][::7] *= 32
    for c in x:
        if count > 20:
            c[count // 2] = c[count // 3] = c[int(x[0].argmax())]
    for c in x[1:]:
        c[::7] *= 32
        c[::11] = 0
    x[0][::11] = -INF
    return x


def special(fmt: Format, terms: int, length: int) -> tuple[Tensor, ...]:
    """Rows of special values, with usual ones among them."""
    first = torch.zeros(len(SPECIAL), length, dtype=fmt.dtype)
    for k, pair in enumerate(SPECIAL):
        first[k, 1::3], first[k, 2::3] = pair
        first[k, ::3] = -INF if INF not in pair and NAN not in pair else 1.0
    return first, *(torch.zeros_like(first) for _ in range(terms - 1))


def check(fmt: Format, terms: int, executor: str, shapes: Any = SHAPES) -> None:
    """All three functions have the bits of the torch executor."""
    given = [(special(fmt, terms, n), 1) for n in (6, 40)]
    for shape, dim in shapes:
        x = numbers(fmt, terms, torch.Size(shape).numel())
        given.append((tuple(c.reshape(shape) for c in x), dim))
    for x, dim in given:
        for name in NAMES:
            with mcf.executor("torch"):
                expected = getattr(elementary, name)(x, dim)
            with mcf.executor(executor):
                found = getattr(elementary, name)(x, dim)
            assert_all_same_bits(found, expected, f"{name} of {list(x[0].shape)} along {dim}")
            assert all(c.is_contiguous() for c in found)


@pytest.mark.slow
def test_loops_have_the_bits_of_launches() -> None:
    check(FP64, 2, "numba")


@pytest.mark.slow
@pytest.mark.parametrize("registers", ["float64", "float32"])
@pytest.mark.parametrize("terms", [1, 2, 3, 4])
@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)
def test_every_format(fmt: Format, terms: int, registers: str) -> None:
    with mcf.registers(registers):
        check(fmt, terms, "numba")


@pytest.mark.slow
@on_each_executor
@pytest.mark.parametrize("fmt", [FP64, FP32], ids=lambda f: f.name)
def test_executors_agree(executor: str, fmt: Format) -> None:
    check(fmt, 2, executor, SHAPES[:3])


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("shape", "dim"), [((3, 40), 1), ((3, 6), 0)])
def test_pieces_change_nothing(
    shape: tuple[int, int], dim: int, monkeypatch: pytest.MonkeyPatch, on_torch: None
) -> None:
    x = tuple(c.reshape(shape) for c in numbers(FP64, 2, shape[0] * shape[1]))
    for name in NAMES:
        together = getattr(elementary, name)(x, dim)
        with monkeypatch.context() as patch:
            patch.setattr(softmax, "_CHUNK", 1)
            assert_all_same_bits(getattr(elementary, name)(x, dim), together, name)


def test_layouts_change_nothing(on_torch: None) -> None:
    """Rows side by side and one after the other, and operands of any strides."""
    x = numbers(FP64, 3, 240)
    plain = tuple(c.reshape(6, 40) for c in x)
    turned = tuple(c.t().contiguous() for c in plain)
    sliced = tuple(torch.stack([c, c], -1)[..., 0] for c in plain)
    for name in NAMES[:2]:
        found = getattr(elementary, name)(plain, 1)
        assert_all_same_bits(getattr(elementary, name)(sliced, -1), found, name)
        other = tuple(c.t() for c in getattr(elementary, name)(turned, 0))
        assert_all_same_bits(other, found, name)
    assert_all_same_bits(elementary.logsumexp(turned, 0), elementary.logsumexp(plain, 1))


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11, 32])
def test_sums_of_the_rest(count: int) -> None:
    """Of both ways, the tree that `mcf.kernels.row_tasks` describes."""
    x = tuple(c.reshape(3, count) for c in Inputs(FP64, 2, 4).between(-3, 3, 3 * count))
    index = torch.tensor([0, count - 1, count // 2])
    parts = [tuple(c[k].clone() for c in x) for k in range(3)]
    for part, place in zip(parts, index.tolist(), strict=True):
        for c in part:
            c[place] = 0
    sums = [rows._total(part) for part in parts]
    expected = tuple(torch.stack(c) for c in zip(*sums, strict=True))
    out = tuple(torch.empty(3, dtype=torch.float64) for _ in x)
    given = [c.clone() for c in x]
    assert registry.rows(RowTask("rest", 2), (3, count), [*out, index, *given])
    assert_all_same_bits(out, expected)
    side = tuple(c.t().contiguous() for c in x)
    assert_all_same_bits(rows.Rows(0).rest(side, index), expected)


@pytest.mark.parametrize("terms", [2, 5])
def test_numbers_of_rows_at_their_elements(terms: int) -> None:
    """Five are what four components of a logarithm and its exponent take."""
    x = [
        torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64) * 2.0 ** (-60 * k) for k in range(terms)
    ]
    out = [torch.empty(3, 5, dtype=torch.float64) for _ in x]
    assert registry.rows(RowTask("spread", terms), (3, 5), [*out, *x])
    assert_all_same_bits(out, [c[:, None].expand(3, 5) for c in x])


@pytest.mark.sampled
@pytest.mark.parametrize("length", [6, 40])
@pytest.mark.parametrize("dim", [0, 1])
def test_special_values_are_torch_s(length: int, dim: int, on_torch: None) -> None:
    x = special(FP64, 2, length)
    x = x if dim else tuple(c.t().contiguous() for c in x)
    for name in NAMES:
        first, rest = getattr(elementary, name)(x, dim)
        expected = getattr(torch, name)(x[0], dim)
        usual = expected.isfinite()
        assert torch.equal(first[~usual].nan_to_num(9, 8, 7), expected[~usual].nan_to_num(9, 8, 7))
        # A few roundings of numbers up to 4 in float64.
        assert bool((first - expected)[usual].abs().le(2.0**-48).all())
        assert not rest[~usual].any()

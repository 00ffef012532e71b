"""Multiply matrices of components under the shape rules of `torch.matmul`.

Products of small float64 matrices are prepared once per signature: the fold and the finalization of
`mcf.reductions.folds` in one native call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert.few import visible
from mcf.kernels import registry
from mcf.kernels.components import Components as Components
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.program import Program
from mcf.reductions import modular
from mcf.reductions.folds import finish, matrix_products, paired
from mcf.reductions.native_steps import CPU, Steps, UnpreparedError
from mcf.reductions.rows import check_same, operator

# For larger matrices the overhead that this saves is smaller than the loop itself.
_FEW = 4096


def small_products(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> list[Tensor] | None:
    """Return products of contiguous [B, M, K] and [B, K, N] as `terms` components, or None."""
    first, second = x[0], y[0]
    if first.dtype is not torch.float64 or not visible(first):
        return None
    batch, rows, inner = first.shape
    size = (batch, rows, second.shape[-1])
    count = batch * rows * size[2]
    if not 0 < max(first.numel(), second.numel(), count) <= _FEW or not count * inner:
        return None
    if torch.is_grad_enabled() and any(c.requires_grad for c in (*x, *y)):
        return None
    shape = (batch, rows, inner, size[2])
    program = _program(registry.get_executor(), len(x), len(y), terms, shape)
    if program is None:
        return None
    out = [torch.empty(size, dtype=torch.float64, device="cpu") for _ in range(terms)]
    program([c.data_ptr() for c in (*x, *y, *out)])
    return out


@functools.lru_cache(256)
def _program(
    executor: str, left: int, right: int, terms: int, shape: tuple[int, int, int, int]
) -> Program | None:
    """Return a program on the addresses of both operands and the result; None if unsupported."""
    spec, read = product_fold(FP64, left, right, terms), left + right
    steps, out = Steps(read + terms), [*range(read, read + terms)]
    batch, rows, _, columns = shape
    try:
        call = registry.on(CPU).prepare_product(spec, shape, CPU)
        steps.fold(call, [*range(read)], spec.state, batch * rows * columns, out)
        return steps.program()
    except UnpreparedError:
        return None


# Products with fewer columns are computed transposed if they have more rows: loops run over
# columns.
NARROW = 16


def matmul(
    x: Components, y: Components, terms: int | None = None, *, reproducible: bool = False
) -> Components:
    """Return x @ y for expansions; shapes and broadcasting are those of `torch.matmul`.

    Each result is a fold over the inner dimension in a fixed order (`mcf.kernels.fold`). So an
    element has the same bits on every executor, whatever the other rows, columns and batches are.

    Args:
        x: components [..., m, k] or [k], 1 to 4 of one dtype.
        y: components [..., k, n] or [k], of the same dtype; if both have more than one component
            and
            the counts differ, the shorter is padded with zeros.
        terms: components of the result; None for the most that an argument has.
        reproducible: round the exact products once (`mcf.reductions.modular`).

    Returns:
        Components of the same dtype. With T = |x| |y| (the product of absolute values) the error
        is at most u**terms |x y| + c T; `mcf.kernels.fold_bounds.fold_bound` has c. The nearest
        expansions with `reproducible`.

    Raises:
        TypeError: for mixed dtypes or devices.
        ValueError: for shapes that do not match.
    """
    check_same("matmul", x=x[0], y=y[0])
    format_of(x[0].dtype, "matmul: x")
    shape_x, shape_y = x[0].shape, y[0].shape
    if not shape_x or not shape_y:
        raise ValueError("matmul: both arguments need at least one dimension")
    if len(shape_x) == 1:
        x = tuple(c[None, :] for c in x)
    if len(shape_y) == 1:
        y = tuple(c[:, None] for c in y)
    if x[0].shape[-1] != y[0].shape[-2]:
        raise ValueError(
            f"matmul: shapes {list(shape_x)} and {list(shape_y)} do not match: the inner "
            f"dimensions are {x[0].shape[-1]} and {y[0].shape[-2]}"
        )
    count = max(len(x), len(y)) if terms is None else terms
    result = _products(x, y, count, reproducible)
    if len(shape_x) == 1:
        result = tuple(c[..., 0, :] for c in result)
    if len(shape_y) == 1:
        result = tuple(c[..., 0] for c in result)
    return result


@operator(
    "matrix_products(Tensor[] x, Tensor[] y, int terms)",
    lambda x, y, terms: [x[0].new_empty((*x[0].shape[:-1], y[0].shape[-1])) for _ in range(terms)],
)
def _matrix_products(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    found = finish(matrix_products(x, y, terms), format_of(x[0].dtype), terms)
    return [c.contiguous() for c in found]


def _products(x: Components, y: Components, terms: int, reproducible: bool) -> Components:
    """Return the products [..., m, n], or the nearest expansions to them."""
    if not reproducible:
        x, y = paired(x, y, terms)
        rows, columns = x[0].shape[-2], y[0].shape[-1]
        if columns < NARROW and rows > columns:
            # Products of two components commute bit for bit, so transposing is safe.
            flipped = tuple(c.mT for c in y), tuple(c.mT for c in x)
            return tuple(c.mT.contiguous() for c in _products(*flipped, terms, False))
    if y[0].dim() == 2 and x[0].dim() > 2:
        # One right matrix for all batches: compute one tall product.
        tall = tuple(c.reshape(-1, c.shape[-1]) for c in x)
        return _unfold(_products(tall, y, terms, reproducible), x[0].shape[:-1])
    batch = _batch(x, y)
    a, b = _flat(x, batch), _flat(y, batch)
    if reproducible:
        return _unfold(modular.exact_matrices(a, b, terms), batch)
    return _unfold(small_products(a, b, terms) or _matrix_products(a, b, terms), batch)


def _batch(x: Components, y: Components) -> tuple[int, ...]:
    """Return the batch dimensions of the result."""
    batch = x[0].shape[:-2]
    if batch == y[0].shape[:-2]:
        return batch
    try:
        return torch.broadcast_shapes(batch, y[0].shape[:-2])  # type: ignore[no-untyped-call, no-any-return]
    except RuntimeError:
        raise ValueError(
            f"matmul: batches {list(batch)} and {list(y[0].shape[:-2])} do not broadcast"
        ) from None


def _unfold(x: Sequence[Tensor], shape: tuple[int, ...]) -> Components:
    """Reshape the first dimension to several, or none."""
    return tuple(c.reshape(*shape, *c.shape[1:]) for c in x)


def _flat(x: Components, batch: tuple[int, ...]) -> list[Tensor]:
    """Return components as contiguous [batch, rows, columns]."""
    size = math.prod(batch)
    if x[0].shape[:-2] == batch and all(c.is_contiguous() for c in x):
        return [c.view(size, *c.shape[-2:]) for c in x]
    return [c.expand(*batch, *c.shape[-2:]).reshape(size, *c.shape[-2:]).contiguous() for c in x]

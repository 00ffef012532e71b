"""Products over dimensions and running sums and products, as trees."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mcf.convert.conversions import formula
from mcf.convert.rounding import nearest
from mcf.kernels import operations, registry
from mcf.kernels.formats import FP64, Format, format_of
from mcf.kernels.row_tasks import Narrow, RowTask, along
from mcf.reductions.folds import finish, register_of, state_of, widened
from mcf.reductions.rows import Components, Dim, Rows, as_rows, one_for_each_row, operator

Binary = Callable[[Components, Components], Components]


def _wide(x: Sequence[Tensor]) -> Components:
    """Convert expansions to registers; exact unless they span more bits than registers hold."""
    if x[0].dtype is register_of(x[0]).dtype:
        return tuple(x) if len(x) > 1 else (x[0], torch.zeros_like(x[0]))
    return widened(x, state_of(x[0], len(x)))


# For smaller inputs converting first is as fast as compiling a loop per format.
_MANY = 1 << 15


@functools.cache
def _kept(fmt: Format, count: int, terms: int) -> Narrow:
    """Return how a loop converts components to `terms` float64 components, and back."""
    enter = formula(nearest, fmt, count, FP64, terms).function
    return Narrow(fmt, count, enter, formula(nearest, FP64, terms, fmt, count).function)


def _narrow(x: Sequence[Tensor]) -> Narrow | None:
    """Return the conversions of components narrower than float64 registers; None if unsupported.

    Conversions of more than a pair have no formula that fits a loop.
    """
    fmt = format_of(x[0].dtype)
    if fmt == FP64 or register_of(x[0]) != FP64 or len(x) > 2 or x[0].numel() < _MANY:
        return None
    return _kept(fmt, len(x), state_of(x[0], len(x)))


def prod(x: Components, dim: Dim = None, keepdim: bool = False) -> Components:
    """Return the product over dimensions, pairwise: element j by element j + ceil(c / 2).

    With the error bound b of a multiplication the relative error is at most (1 + b)**(count - 1) -
    1, without overflow and underflow in between. Narrow components are multiplied in the format of
    the registers (`mcf.set_registers`).
    """
    format_of(x[0].dtype, "prod: x")
    rows = Rows.of(x[0].shape, dim)
    if rows.length == 0:
        one = torch.ones(rows.result_shape(keepdim), dtype=x[0].dtype, device=x[0].device)
        return one, *(torch.zeros_like(one) for _ in x[1:])
    given, inner = rows.arranged(x)
    return rows.shaped(_prods(given, rows.length, inner), keepdim)


def _by_loop(x: list[Tensor], count: int, inner: int) -> list[Tensor] | None:
    """Return the products by an executor's loop over rows; None if it has none."""
    rows, narrow = x[0].numel() // count, _narrow(x)
    if not rows:
        return None
    for conversion in (narrow, None) if narrow is not None else (None,):
        given = _wide(x) if conversion is None else tuple(x)
        if conversion is None and given[0].dtype is not torch.float64:
            break
        state = len(given) if conversion is None else state_of(x[0], len(x))
        out = [x[0].new_empty(rows, dtype=torch.float64) for _ in range(state)]
        task = RowTask("prod", state, inner=inner, narrow=conversion)
        if registry.rows(task, (rows, count), [*out, *(c.contiguous() for c in given)]):
            return [c.clone() for c in finish(tuple(out), format_of(x[0].dtype), len(x))]
    return None


@operator("prods(Tensor[] x, SymInt count, SymInt inner)", one_for_each_row)
def _prods(x: list[Tensor], count: int, inner: int) -> list[Tensor]:
    """Return products along the middle of contiguous [M / inner, count, inner]."""
    found = _by_loop(x, count, inner)
    if found is None and inner > 1:
        x = as_rows(x, count, inner)
        found = _by_loop(x, count, 1)
    if found is not None:
        return found
    wide = _wide(x)
    given = tuple(c.mT.contiguous() for c in wide)
    while count > 1:
        half = (count + 1) // 2
        low = tuple(c[: count - half] for c in given)
        both = operations.mul(low, tuple(c[half:count] for c in given))
        given = tuple(
            torch.cat([b, c[count - half : half]]) for b, c in zip(both, given, strict=True)
        )
        count = half
    # For rows of one element the result is the argument, so it must be copied.
    first = finish(tuple(c[0] for c in given), format_of(x[0].dtype), len(x))
    return [c.clone() for c in first]


def cumsum(x: Components, dim: int) -> Components:
    """Return running sums along a dimension, as a tree of depth at most 2 log2(count).

    The error is at most 2 log2(count) b times the running sum of absolute values, with the error
    bound b of an addition. Narrow components are added in the format of the registers.
    """
    return _running("cumsum", x, dim)


def cumprod(x: Components, dim: int) -> Components:
    """Return running products along a dimension, as a tree.

    With the error bound b of a multiplication the relative error of the k-th is at most (1 + b)**(k
    - 1) - 1, without overflow and underflow in between. Narrow components are multiplied in the
    format of the registers.
    """
    return _running("cumprod", x, dim)


_FUNCTIONS: dict[str, Binary] = {"cumsum": operations.add, "cumprod": operations.mul}


def _running(name: str, x: Components, dim: int) -> Components:
    format_of(x[0].dtype, f"{name}: x")
    Rows.of(x[0].shape, dim)
    if x[0].dim() == 0 or x[0].numel() == 0:
        return tuple(c.clone() for c in x)
    return tuple(_scans(list(x), name, dim))


@operator(
    "running(Tensor[] x, str name, int dim)",
    lambda x, *_: [torch.empty_like(c, memory_format=torch.contiguous_format) for c in x],
)
def _scans(x: list[Tensor], name: str, dim: int) -> list[Tensor]:
    narrow = _narrow(x)
    swept = None if narrow is None else _swept(name, tuple(x), dim, narrow)
    if swept is not None:
        return list(swept)
    wide = _wide(x)
    found = _swept(name, wide, dim)
    if found is None:
        running = _scan(_FUNCTIONS[name], tuple(c.movedim(dim, 0).contiguous() for c in wide))
        found = tuple(c.movedim(0, dim) for c in running)
    results = [c.contiguous() for c in finish(found, format_of(x[0].dtype), len(x))]
    # For rows of one element the result is the argument, so it must be copied.
    return [r.clone() if r is c else r for r, c in zip(results, x, strict=True)]


# Short rows of small tensors are combined side by side, element by element.
_SHORT, _FEW = 32, 4096


def _swept(name: str, x: Components, dim: int, narrow: Narrow | None = None) -> Components | None:
    """Compute running sums or products by the executor's loop over rows; None if it has none.

    The components are float64, or narrower ones, which the loop converts.
    """
    if narrow is None and x[0].dtype is not torch.float64:
        return None
    count, inner = along(x[0].shape, dim)
    rows = x[0].numel() // count
    if rows > 1 and count < _SHORT and rows * count < _FEW:
        return None
    given = [c.contiguous() for c in x]
    out = [torch.empty_like(c) for c in given]
    terms = len(x) if narrow is None else state_of(x[0], len(x))
    task = RowTask(name, terms, inner=inner, narrow=narrow)
    if registry.rows(task, (rows, count), [*out, *given]):
        return tuple(out)
    if inner == 1 or narrow is not None:
        return None
    turned = _swept(name, tuple(c.movedim(dim, -1) for c in given), -1)
    return None if turned is None else tuple(c.movedim(-1, dim) for c in turned)


def _scan(function: Binary, x: Components) -> Components:
    """Scan along the first dimension: combine pairs, scan these, then fill in the odd elements.

    `function` combines two expansions: it adds or multiplies them.
    """
    count = x[0].shape[0]
    if count == 1:
        return x
    pairs = count // 2
    sums = function(tuple(c[0 : 2 * pairs : 2] for c in x), tuple(c[1 : 2 * pairs : 2] for c in x))
    running = _scan(function, sums)
    out = tuple(torch.empty_like(c) for c in x)
    for o, r, c in zip(out, running, x, strict=True):
        o[1 : 2 * pairs : 2] = r
        o[0] = c[0]
    if count > 2:
        before = tuple(r[: (count - 1) // 2] for r in running)
        between = function(before, tuple(c[2::2] for c in x))
        for o, b in zip(out, between, strict=True):
            o[2::2] = b
    return out

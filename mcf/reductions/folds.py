"""Fold components in the chosen registers, and finalize the partial sums."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert.conversions import formula
from mcf.convert.rounding import convert, nearest
from mcf.kernels import operations, registry
from mcf.kernels.components import Components as Components
from mcf.kernels.components import padded
from mcf.kernels.fold import (
    Fold,
    deviation_fold,
    narrow_deviation_fold,
    product_fold,
    state_for,
    sum_fold,
)
from mcf.kernels.formats import FORMATS, FP64, Format, format_of, power_of_two
from mcf.kernels.operators import settle_kernel
from mcf.kernels.program import Program, Within
from mcf.kernels.register_choice import registers_for
from mcf.reductions.rows import as_rows, operator


def register_of(x: Tensor) -> Format:
    """Return the format of the registers in which a tensor's components are added up."""
    return registers_for(format_of(x.dtype), x.device)


def state_of(x: Tensor, terms: int) -> int:
    """Return the number of registers of a partial sum of such components."""
    return state_for(format_of(x.dtype), terms, register_of(x))


def widened(x: Sequence[Tensor], state: int) -> Components:
    """Convert components to registers, exactly unless narrow components have gaps between them."""
    dtype = register_of(x[0]).dtype
    assert dtype is not None
    return tuple(x) if x[0].dtype is dtype else convert(x, dtype, state)


def _registers(spec: Fold, like: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the partial sums of empty rows: zeros."""
    return torch.zeros(list(shape), dtype=spec.register.dtype, device=like.device)


def _product_spec(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> Fold:
    return product_fold(format_of(x[0].dtype), len(x), len(y), terms, register_of(x[0]))


def row_sums(x: Sequence[Tensor], terms: int) -> Components:
    """Return the sums of the rows of contiguous [M, K] components, expansions [M] in registers."""
    spec = sum_fold(format_of(x[0].dtype), len(x), terms, register_of(x[0]))
    if x[0].numel() == 0:
        return settle(_registers(spec, x[0], (spec.state, len(x[0]))))
    return settle(registry.fold(spec, [list(x)]))


def column_sums(x: Sequence[Tensor], count: int, inner: int, terms: int) -> Components:
    """Return sums along the middle of contiguous [M / inner, count, inner], in registers."""
    spec = sum_fold(format_of(x[0].dtype), len(x), terms, register_of(x[0]))
    found = registry.on(x[0].device).fold_columns(spec, list(x), count, inner)
    if found is not None:
        return settle(found)
    return row_sums(as_rows(x, count, inner), terms)


def row_products(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> Components:
    """Return dot products of the rows of contiguous [M, K], expansions [M] in registers."""
    spec = _product_spec(x, y, terms)
    if x[0].numel() == 0:
        return settle(_registers(spec, x[0], (spec.state, len(x[0]))))
    return settle(registry.fold(spec, [list(x), list(y)]))


def row_squares(x: Sequence[Tensor], terms: int) -> tuple[Components, bool] | None:
    """Return sums of squares of rows, and whether they need no scaling, in one pass over memory.

    See `unscaled`. Return None if no executor has a loop that tests and adds.
    """
    if x[0].dtype is not torch.float64 or not x[0].numel():
        return None
    factors = paired(tuple(x), tuple(x), terms)
    spec = _product_spec(*factors, terms)
    found = registry.on(factors[0][0].device).fold_within(
        spec, [list(f) for f in factors], LEAST, LARGEST
    )
    return None if found is None else (settle(found[0]), found[1])


def column_squares(x: Components, count: int, inner: int, terms: int) -> Components | None:
    """Return sums of squares along the middle of contiguous [M / inner, count, inner].

    Return None if no executor has a loop for it.
    """
    found = registry.on(x[0].device).fold_columns(
        _product_spec(x, x, terms), [*x, *x], count, inner
    )
    return None if found is None else settle(found)


def deviations_of(x: Sequence[Tensor]) -> Fold | None:
    """Return the fold of squared differences between components and one number per row.

    Return None if their registers are float32, or for more than a pair of narrow components, whose
    conversion has no formula that fits a fold.
    """
    fmt = format_of(x[0].dtype)
    if fmt == FP64:
        return deviation_fold(len(x)) if len(x) > 1 else None
    if register_of(x[0]) != FP64 or len(x) > 2:
        return None
    state = state_of(x[0], len(x))
    enter = formula(nearest, fmt, len(x), FP64, state).function
    return narrow_deviation_fold(fmt, len(x), state, enter)


def row_deviations(
    x: Sequence[Tensor], centre: Components, count: int, inner: int
) -> Components | None:
    """Return sums of squared differences between the elements of rows and one number per row.

    Args:
        x: contiguous components [M / inner, count, inner], rows along the middle.
        centre: components [M] in registers, as many as a partial sum has.
        count: elements of a row.
        inner: the distance between elements of a row.

    Returns:
        Expansions [M] in registers; None if no executor has a loop for it, which avoids a tensor of
        the differences.
    """
    spec = deviations_of(x)
    if spec is None or not x[0].numel():
        return None
    numbers = [c.contiguous() for c in centre]
    found = registry.on(x[0].device).fold_deviations(spec, list(x), numbers, count, inner)
    return None if found is None else settle(found)


def matrix_products(x: list[Tensor], y: list[Tensor], terms: int) -> Components:
    """Return products of contiguous [B, M, K] and [B, K, N], expansions [B, M, N] in registers."""
    spec = _product_spec(x, y, terms)
    if x[0].numel() == 0 or y[0].numel() == 0:
        shape = (spec.state, *x[0].shape[:-1], y[0].shape[-1])
        return settle(_registers(spec, x[0], shape))
    return settle(registry.product(spec, x, y))


@operator("row_exponents(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[0], dtype=torch.int64))
def row_exponents(x: Tensor) -> Tensor:
    """Return exponents k with each row's maximum in [1/2, 1) 2**k; 0 for zeros, 1 for infinity.

    It is an operator, because Inductor's C++ cannot widen the exponents of `frexp`.
    """
    largest = torch.maximum(x.amax(1), -x.amin(1))
    _, exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))
    return exponent.long()


def scaled_rows(x: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Scale rows by powers of two to maxima in [1/2, 1); also return the negated exponents."""
    exponent = row_exponents(x[0])
    return list(operations.ldexp(tuple(x), -exponent[:, None])), exponent


def brought_down(x: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Scale rows as `scaled_rows` does; on a CPU by one product each if the range allows it."""
    exponent, register = row_exponents(x[0]), FORMATS[x[0].dtype].register
    if x[0].device.type == "cpu":
        # One factor suffices, and no element is infinite.
        usual = (exponent > register.emin) & (exponent < -register.emin)
        usual &= x[0].amax(1).isfinite() & x[0].amin(1).isfinite()
        if bool(usual.all()):
            factor = power_of_two(-exponent, register)[:, None].to(x[0].dtype)
            return [c * factor for c in x], exponent
    return scaled_rows(x)


# Magnitudes between these are not scaled: no product of two of them, of their differences or of
# their scaled values underflows, so scaling would not change a bit.
LEAST, LARGEST = 2.0**-120, 2.0**60


@functools.lru_cache(64)
def _look(terms: int, count: int) -> Program | None:
    """Return the program that tests whether components at given addresses need no scaling."""
    return Program.of([Within(range(terms), count, LEAST, LARGEST)], terms)


def unscaled(x: Sequence[Tensor]) -> bool:
    """Return whether contiguous float64 components are known to need no scaling."""
    like = x[0]
    if like.device.type != "cpu" or like.dtype is not torch.float64 or not like.numel():
        return False
    if registry.executor_for(like.device) != "numba":
        return False
    look = _look(len(x), like.numel())
    return look is not None and bool(look([c.data_ptr() for c in x]))


def settle(state: Tensor) -> Components:
    """Finalize partial sums [state, ...] as normalised expansions of as many components.

    The caller is an opaque operator.
    """
    spec = settle_kernel(len(state), register=FORMATS[state.dtype])
    given = [c.contiguous() for c in state]
    out = [*map(torch.empty_like, given)]
    registry.run(spec, [[*out, *given]], _NO_SCALARS)
    return tuple(out)


_NO_SCALARS = torch.ones(1, 0, dtype=torch.float64, device="cpu")


def finish(x: Components, fmt: Format, terms: int) -> Components:
    """Round expansions in registers to a format and a number of components."""
    assert fmt.dtype is not None
    if x[0].dtype is fmt.dtype and len(x) >= terms:
        return x[:terms]
    return convert(x, fmt.dtype, terms)


def pad(x: Components, terms: int) -> Components:
    """Pad x with zero components to `terms`; a plain tensor stays one component."""
    if len(x) == 1:
        return x
    return padded(x, terms)


def paired(x: Components, y: Components, terms: int) -> tuple[Components, Components]:
    """Pad both to equal numbers of components, unless one is plain, as the fold terms require."""
    count = max(len(x), len(y), terms)
    return pad(x, count), pad(y, count)

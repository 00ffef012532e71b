"""Folds as opaque operators on components, and what becomes of their partial sums."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import operations, registry
from mcf.kernels.components import Components as Components
from mcf.kernels.components import padded
from mcf.kernels.fold import Fold, product_fold, sum_fold
from mcf.kernels.formats import Format, format_of

_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]


def _sum_spec(x: Sequence[Tensor], terms: int) -> Fold:
    return sum_fold(format_of(x[0].dtype), len(x), terms)


def _product_spec(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> Fold:
    return product_fold(format_of(x[0].dtype), len(x), len(y), terms)


def _registers(like: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(list(shape), dtype=torch.float64, device=like.device)


def _fold_sum(x: list[Tensor], terms: int) -> Tensor:
    spec = _sum_spec(x, terms)
    if x[0].numel() == 0:
        return _registers(x[0], (spec.state, len(x[0]))).zero_()
    return registry.fold(spec, [x])


def _fold_product(x: list[Tensor], y: list[Tensor], terms: int) -> Tensor:
    spec = _product_spec(x, y, terms)
    if x[0].numel() == 0:
        return _registers(x[0], (spec.state, len(x[0]))).zero_()
    return registry.fold(spec, [x, y])


def _fold_matrices(x: list[Tensor], y: list[Tensor], terms: int) -> Tensor:
    spec = _product_spec(x, y, terms)
    if x[0].numel() == 0 or y[0].numel() == 0:
        shape = (spec.state, *x[0].shape[:-1], y[0].shape[-1])
        return _registers(x[0], shape).zero_()
    return registry.product(spec, x, y)


def _fake_sum(x: list[Tensor], terms: int) -> Tensor:
    return _registers(x[0], (_sum_spec(x, terms).state, x[0].shape[0]))


def _fake_product(x: list[Tensor], y: list[Tensor], terms: int) -> Tensor:
    return _registers(x[0], (_product_spec(x, y, terms).state, x[0].shape[0]))


def _fake_matrices(x: list[Tensor], y: list[Tensor], terms: int) -> Tensor:
    state = _product_spec(x, y, terms).state
    return _registers(x[0], (state, *x[0].shape[:-1], y[0].shape[-1]))


for _name, _arguments, _run, _fake in (
    ("fold_sum", "Tensor[] x, int terms", _fold_sum, _fake_sum),
    ("fold_product", "Tensor[] x, Tensor[] y, int terms", _fold_product, _fake_product),
    ("fold_matrices", "Tensor[] x, Tensor[] y, int terms", _fold_matrices, _fake_matrices),
):
    _library.define(f"{_name}({_arguments}) -> Tensor")  # type: ignore[no-untyped-call]
    _library.impl(_name, _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"mcf::{_name}", _fake, lib=_library)


def _row_exponents(x: Tensor) -> Tensor:
    largest = x.abs().amax(1)
    _, exponent = torch.frexp(torch.where(largest.isfinite(), largest, 1.0))
    return exponent.long()


_library.define("row_exponents(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("row_exponents", _row_exponents, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake(
    "mcf::row_exponents", lambda x: x.new_empty(x.shape[0], dtype=torch.int64), lib=_library
)


def row_exponents(x: Tensor) -> Tensor:
    """k with the largest of a row in [1/2, 1) 2**k, int64; 0 for rows of zeros, 1 with an infinity.

    An operator, because Inductor's C++ cannot widen the exponents of `frexp`.
    """
    result: Tensor = torch.ops.mcf.row_exponents(x)
    return result


def scaled_rows(x: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Rows times a power of two that brings the largest to [1/2, 1), and its negative exponent."""
    exponent = row_exponents(x[0])
    return list(operations.ldexp(tuple(x), -exponent[:, None])), exponent


def settle(state: Tensor) -> Components:
    """Partial sums [state, ...] as normalised float64 expansions of as many components."""
    return tuple(torch.ops.mcf.expansion_settle(list(state)))


def finish(x: Components, fmt: Format, terms: int) -> Components:
    """Float64 expansions as the nearest ones of a format and a number of components."""
    assert fmt.dtype is not None
    if fmt.dtype is torch.float64 and len(x) >= terms:
        return x[:terms]
    return convert(x, fmt.dtype, terms)


def pad(x: Components, terms: int) -> Components:
    """x with as many zero components added; a plain tensor stays one."""
    if len(x) == 1:
        return x
    return padded(x, terms)


def paired(x: Components, y: Components, terms: int) -> tuple[Components, Components]:
    """Both with as many components, or one of them with one: what there are terms for."""
    count = max(len(x), len(y), terms)
    return pad(x, count), pad(y, count)


def row_sums(x: Sequence[Tensor], terms: int) -> Components:
    """Sums of the rows of contiguous [M, K] components, float64 expansions [M]."""
    return settle(torch.ops.mcf.fold_sum(list(x), terms))


def row_products(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> Components:
    """Dot products of the rows of contiguous [M, K] components, float64 expansions [M]."""
    return settle(torch.ops.mcf.fold_product(list(x), list(y), terms))

"""The operators of a graph that can be recorded, and how.

PyTorch moves elements. An operation on expansions is its kernel's algorithm on each element. Sums
are the terms and steps of their folds, in the order that `mcf.kernels.fold` declares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mcf.elementary import fused
from mcf.fusion.fold_statements import divided, matrices, rows
from mcf.fusion.fused_program import Program, TooLongError
from mcf.fusion.stand_ins import Numbers, spread
from mcf.kernels.algorithms import truths
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP64
from mcf.kernels.operators import (
    COMPARISONS,
    OPERATIONS,
    TRANSFORMS,
    WHERE,
    Operation,
    kernel,
    renormalize_kernel,
)

aten = torch.ops.aten

MOVEMENTS = {
    aten.alias.default, aten.cat.default, aten.clone.default, aten.copy.default,
    aten.detach.default, aten.select_scatter.default, aten.slice_scatter.default,
    aten.diagonal.default, aten.expand.default, aten.flip.default, aten.permute.default,
    aten.repeat.default, aten.roll.default, aten.select.int, aten.slice.Tensor,
    aten.split.Tensor, aten.split_with_sizes.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.stack.default, aten.t.default, aten.transpose.int, aten.unbind.int,
    aten.unsqueeze.default, aten._unsafe_view.default, aten.view.default,
}  # fmt: skip
# Movements that fill with zeros.
FILLED = {
    aten.select_backward.default, aten.slice_backward.default, aten.diagonal_backward.default,
    aten.tril.default, aten.triu.default,
}  # fmt: skip
CONSTANTS = {
    aten.eye.default, aten.eye.m, aten.full.default, aten.full_like.default,
    aten.new_full.default, aten.new_ones.default, aten.new_zeros.default,
    aten.ones.default, aten.ones_like.default, aten.scalar_tensor.default, aten.zeros.default,
    aten.zeros_like.default,
}  # fmt: skip

Handler = Callable[..., Any]
HANDLERS: dict[Any, Handler] = {}


def _operation(o: Operation) -> Handler:
    def record(program: Program, *groups: Any) -> list[Numbers]:
        lists = [g if isinstance(g, list | tuple) else [g] for g in groups]
        counts = () if o.components is not None else map(len, lists)
        spec = kernel(o, program.format, *counts)
        return program.kernel_on(spec, [x for g in lists for x in g])

    return record


for _o in (*OPERATIONS, *COMPARISONS, *TRANSFORMS):
    HANDLERS[getattr(torch.ops.mcf, _o.operator).default] = _operation(_o)


def _renormalized(program: Program, x: list[Numbers], terms: int) -> list[Numbers]:
    return program.kernel_on(renormalize_kernel(program.format, len(x), terms), x)


HANDLERS[torch.ops.mcf.expansion_renormalize.default] = _renormalized


def _registers(algorithm: Algorithm) -> Handler:
    def record(program: Program, *given: Numbers) -> Numbers:
        def apply(codes: Sequence[int]) -> tuple[int, ...]:
            return program.statement(algorithm, codes, 1)

        [found] = program.each(apply, spread(given))
        return found

    return record


def _where(program: Program, c: Numbers, x: Numbers, y: Numbers) -> Numbers:
    [found] = program.kernel_on(kernel(WHERE, program.format, 1, 1, 1), spread((c, x, y)))
    return found


# Functions of single registers; booleans are the numbers 1 and 0.
HANDLERS |= {
    aten.neg.default: _registers(truths.negated),
    aten.isnan.default: _registers(truths.undefined),
    aten.signbit.default: _registers(truths.negative),
    aten.bitwise_not.default: _registers(truths.false),
    aten.logical_not.default: _registers(truths.false),
    aten.bitwise_and.Tensor: _registers(truths.both),
    aten.bitwise_or.Tensor: _registers(truths.one_of),
    aten.where.self: _where,
}


def _elementary(
    program: Program, name: str, components: list[Numbers], terms: list[int]
) -> list[Numbers]:
    if not fused.is_known(name):
        raise TooLongError(f"{name} has no formula")
    return program.kernel_on(fused.kernel(name, FP64, *terms), components)


def _row_sums(program: Program, x: list[Numbers], terms: int) -> list[Numbers]:
    return rows(program, [x], terms)[:terms]


def _row_products(
    program: Program, x: list[Numbers], y: list[Numbers], terms: int
) -> list[Numbers]:
    return rows(program, [x, y], terms)[:terms]


def _row_means(program: Program, x: list[Numbers], reproducible: bool) -> list[Numbers]:
    return divided(program, rows(program, [x], len(x)), x[0].shape[1])[: len(x)]


def _matrix_products(
    program: Program, x: list[Numbers], y: list[Numbers], terms: int
) -> list[Numbers]:
    return matrices(program, x, y, terms)[:terms]


# Operators that compute in registers of another format unless the format is float64.
FLOAT64: dict[Any, Handler] = {
    torch.ops.mcf.elementary.default: _elementary,
    torch.ops.mcf.row_sums.default: _row_sums,
    torch.ops.mcf.row_products.default: _row_products,
    torch.ops.mcf.row_means.default: _row_means,
    torch.ops.mcf.matrix_products.default: _matrix_products,
}

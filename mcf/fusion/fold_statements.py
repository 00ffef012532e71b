"""Emit folds as statements: the terms and steps of `mcf.kernels.fold`, in its order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mcf.fusion.fused_program import Program, TooLongError
from mcf.fusion.stand_ins import Numbers
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import GROUP, LANES, Fold, product_fold, sum_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import DIV, kernel, settle_kernel

State = list[Numbers]


def _column(x: Sequence[Numbers], k: int) -> list[Numbers]:
    return [Numbers(c.codes[..., k], c.lanes[..., k]) for c in x]


def _merged(program: Program, function: Algorithm, a: State, b: State) -> State:
    """Combine two partial sums of a fold."""
    count = len(a)

    def apply(codes: Sequence[int]) -> tuple[int, ...]:
        return program.statement(function, [tuple(codes[:count]), tuple(codes[count:])], count)

    return program.each(apply, [*a, *b])


def _term(program: Program, fold: Fold, operands: Sequence[Sequence[Numbers]]) -> State:
    """Return the terms of some elements."""
    counts = [len(x) for x in operands]

    def apply(codes: Sequence[int]) -> tuple[int, ...]:
        rest = iter(codes)
        groups = [tuple(next(rest) for _ in range(n)) for n in counts]
        return program.statement(fold.term, groups, fold.state)

    return program.each(apply, [c for x in operands for c in x])


def rows(program: Program, operands: Sequence[Sequence[Numbers]], terms: int) -> State:
    """Return sums of rows, or of products of two rows, as expansions [M] in registers."""
    length = operands[0][0].shape[1]
    if not 0 < length <= LANES:
        raise TooLongError(f"rows of {length} numbers")
    counts = [len(x) for x in operands]
    declared = sum_fold if len(counts) == 1 else product_fold
    fold = declared(FP64, *counts, terms)
    lanes = [_term(program, fold, [_column(x, k) for x in operands]) for k in range(length)]
    while len(lanes) > 1:
        half = (len(lanes) + 1) // 2
        for k in range(len(lanes) - half):
            lanes[k] = _merged(program, fold.combine, lanes[k], lanes[k + half])
        del lanes[half:]
    return settled(program, lanes[0])


def matrices(program: Program, x: list[Numbers], y: list[Numbers], terms: int) -> State:
    """Return products of [B, M, K] and [B, K, N] as expansions [B, M, N] in registers."""
    inner = x[0].shape[2]
    if inner == 0:
        raise TooLongError("matrices without an inner dimension")
    fold = product_fold(FP64, len(x), len(y), terms)
    shape = (x[0].shape[0], x[0].shape[1], y[0].shape[2])

    def term(k: int) -> State:
        left = [Numbers(*(t[..., k : k + 1].expand(shape) for t in c)) for c in x]
        right = [Numbers(*(t[:, k : k + 1].expand(shape) for t in c)) for c in y]
        return _term(program, fold, [left, right])

    total: State | None = None
    k = 0
    while k < inner:
        width = GROUP if k + GROUP <= inner else 1
        group = [term(k + j) for j in range(width)]
        while len(group) > 1:
            pairs = zip(group[::2], group[1::2], strict=True)
            group = [_merged(program, fold.merge, a, b) for a, b in pairs]
        total = group[0] if total is None else _merged(program, fold.combine, total, group[0])
        k += width
    assert total is not None
    return settled(program, total)


def settled(program: Program, state: State) -> State:
    """Finalize partial sums as normalised expansions."""
    return program.kernel_on(settle_kernel(len(state)), state)


def divided(program: Program, x: State, number: int) -> State:
    """Return expansions over a number."""
    value = torch.full(x[0].shape, float(number), dtype=torch.float64, device="cpu")
    count = program.constants(value)
    return program.kernel_on(kernel(DIV, FP64, len(x), 1), [*x, count])

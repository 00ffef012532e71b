"""The operators of a graph that can be recorded, and how.

PyTorch moves elements. An operation on expansions is its kernel's algorithm on each element. Sums
are the terms and steps of their folds, in the order that `mcf.kernels.fold` declares.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from mcf.elementary import fused
from mcf.fusion.program import Program, TooLongError
from mcf.kernels.algorithms import truths
from mcf.kernels.bind import Algorithm
from mcf.kernels.fold import GROUP, LANES, product_fold, sum_fold
from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.operators import (
    COMPARISONS,
    DIV,
    OPERATIONS,
    TRANSFORMS,
    WHERE,
    Operation,
    kernel,
    renormalize_kernel,
    settle_kernel,
)

aten = torch.ops.aten

# Movements of elements; some fill in zeros.
MOVEMENTS = {
    aten.alias.default, aten.cat.default, aten.clone.default, aten.copy.default,
    aten.detach.default, aten.select_scatter.default, aten.slice_scatter.default,
    aten.diagonal.default, aten.expand.default, aten.flip.default, aten.permute.default,
    aten.repeat.default, aten.roll.default, aten.select.int, aten.slice.Tensor,
    aten.split.Tensor, aten.split_with_sizes.default, aten.squeeze.default, aten.squeeze.dim,
    aten.squeeze.dims, aten.stack.default, aten.t.default, aten.transpose.int, aten.unbind.int,
    aten.unsqueeze.default, aten._unsafe_view.default, aten.view.default,
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
State = list[Tensor]


def _operation(o: Operation) -> Handler:
    def record(program: Program, *groups: Any) -> State:
        lists = [g if isinstance(g, list | tuple) else [g] for g in groups]
        counts = () if o.components is not None else map(len, lists)
        spec = kernel(o, program.format, *counts)
        return program.kernel_on(spec, [x for g in lists for x in g])

    return record


def _renormalized(program: Program, x: State, terms: int) -> State:
    return program.kernel_on(renormalize_kernel(program.format, len(x), terms), x)


def _registers(algorithm: Algorithm) -> Handler:
    def record(program: Program, *given: Tensor) -> Tensor:
        spread = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
        [found] = program.each(lambda codes: program.call(algorithm, codes, 1), spread)
        return found

    return record


def _where(program: Program, *given: Tensor) -> Tensor:
    spread = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    [found] = program.kernel_on(kernel(WHERE, program.format, 1, 1, 1), spread)
    return found


HANDLERS: dict[Any, Handler] = {
    **{
        getattr(torch.ops.mcf, o.operator).default: _operation(o)
        for o in (*OPERATIONS, *COMPARISONS, *TRANSFORMS)
    },
    torch.ops.mcf.expansion_renormalize.default: _renormalized,
    # Functions of single registers; booleans are the numbers 1 and 0.
    aten.neg.default: _registers(truths.negated),
    aten.isnan.default: _registers(truths.undefined),
    aten.signbit.default: _registers(truths.negative),
    aten.bitwise_not.default: _registers(truths.false),
    aten.logical_not.default: _registers(truths.false),
    aten.bitwise_and.Tensor: _registers(truths.both),
    aten.bitwise_or.Tensor: _registers(truths.one_of),
    aten.where.self: _where,
}


def _elementary(program: Program, name: str, components: State, terms: list[int]) -> State:
    if not fused.is_known(name):
        raise TooLongError(f"{name} has no formula")
    return program.kernel_on(fused.kernel(name, FP64, *terms), components)


def _rows(program: Program, operands: Sequence[State], terms: int) -> State:
    """Record sums of rows, or of products of two rows, as expansions [M] in registers."""
    length = operands[0][0].shape[1]
    if not 0 < length <= LANES:
        raise TooLongError(f"rows of {length} numbers")
    counts = [len(x) for x in operands]
    declared = sum_fold if len(counts) == 1 else product_fold
    fold = declared(FP64, *counts, terms)
    columns = ([[c[:, k] for c in x] for x in operands] for k in range(length))
    lanes = [program.grouped(fold.term, column, fold.state) for column in columns]
    while len(lanes) > 1:
        half = (len(lanes) + 1) // 2
        for k in range(len(lanes) - half):
            both = lanes[k], lanes[k + half]
            lanes[k] = program.grouped(fold.combine, both, fold.state)
        del lanes[half:]
    return _settled(program, lanes[0])


def _settled(program: Program, state: State) -> State:
    """Record the normalisation of partial sums to expansions."""
    return program.kernel_on(settle_kernel(len(state)), state)


def _row_means(program: Program, x: State, reproducible: bool) -> State:
    total = _rows(program, [x], len(x))
    length = torch.full(total[0].shape, float(x[0].shape[1]), dtype=torch.float64, device="cpu")
    spec = kernel(DIV, FP64, len(total), 1)
    return program.kernel_on(spec, [*total, program.constants(length)])[: len(x)]


def _matrix_products(program: Program, x: State, y: State, terms: int) -> State:
    """Record products of [B, M, K] and [B, K, N]."""
    inner = x[0].shape[2]
    if inner == 0:
        raise TooLongError("matrices without an inner dimension")
    fold = product_fold(FP64, len(x), len(y), terms)
    shape = (x[0].shape[0], x[0].shape[1], y[0].shape[2])

    def term(k: int) -> State:
        left = [c[..., k : k + 1].expand(shape) for c in x]
        right = [c[:, k : k + 1].expand(shape) for c in y]
        return program.grouped(fold.term, [left, right], fold.state)

    total: State = []
    k = 0
    while k < inner:
        width = GROUP if k + GROUP <= inner else 1
        group = [term(k + j) for j in range(width)]
        while len(group) > 1:
            pairs = zip(group[::2], group[1::2], strict=True)
            group = [program.grouped(fold.merge, pair, fold.state) for pair in pairs]
        total = program.grouped(fold.combine, [total, *group], fold.state) if total else group[0]
        k += width
    return _settled(program, total)[:terms]


# Operators that compute in registers of another format unless the format is float64.
FLOAT64: dict[Any, Handler] = {
    torch.ops.mcf.elementary.default: _elementary,
    torch.ops.mcf.row_sums.default: lambda program, x, n: _rows(program, [x], n)[:n],
    torch.ops.mcf.row_products.default: lambda program, x, y, n: _rows(program, [x, y], n)[:n],
    torch.ops.mcf.row_means.default: _row_means,
    torch.ops.mcf.matrix_products.default: _matrix_products,
}


def recordable(node: Node, fmt: Format) -> bool:
    """Return whether a node of a graph can be recorded, if all its inputs can."""
    # LLVM vectorises loops of 16-bit numbers, which takes minutes for long ones.
    if node.op != "call_function" or fmt not in (FP32, FP64):
        return False
    target: Any = node.target
    if target is operator.getitem:
        source: Any = node.args[0]
        return recordable(source, fmt)
    values = node.meta.get("val")
    results = values if isinstance(values, list | tuple) else [values]
    tensors = [*results, *(n.meta.get("val") for n in node.all_input_nodes)]
    flat = [t for x in tensors for t in (x if isinstance(x, list | tuple) else [x])]
    for t in flat:
        if isinstance(t, Tensor) and t.dtype not in (fmt.dtype, torch.bool):
            return False
        if not isinstance(t, Tensor | torch.SymInt | int):
            return False
    if target in FLOAT64:
        # A reproducible sum is another algorithm.
        return fmt is FP64 and True not in [a for a in node.args if isinstance(a, bool)]
    if target in CONSTANTS:
        return not node.all_input_nodes or "like" in str(target) or "new" in str(target)
    return target in HANDLERS or target in MOVEMENTS


def computes(node: Node) -> bool:
    """Return whether a node is arithmetic."""
    return node.target in HANDLERS or node.target in FLOAT64


def recorded(program: Program, node: Node, args: Any, kwargs: Any) -> Any:
    """Record a node for some operands and return its result."""
    target: Any = node.target
    if target is operator.getitem:
        return args[0][args[1]]
    if target in CONSTANTS:
        cpu, dtype = torch.device("cpu"), program.format.dtype
        like = [
            torch.empty(a.shape, dtype=dtype, device=cpu) if isinstance(a, Tensor) else a
            for a in args
        ]
        return program.constants(target(*like, **{**kwargs, "device": cpu}))
    if target in MOVEMENTS:
        return target(*args, **kwargs)
    return (HANDLERS.get(target) or FLOAT64[target])(program, *args)

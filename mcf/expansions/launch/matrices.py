"""Compute products and exponentials of small matrices on the CPU in few native calls.

A product is a fold and the finalization of its partial sums (`mcf.reductions.products`): an element
has the same bits in products of any shape. An exponential has the steps of
`mcf.linalg.matrix_exponential`: one call for the sums of columns, one for the polynomial, one for
each squaring, whose number depends on the matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mcf.convert import conversions
from mcf.convert.rounding import convert, nearest
from mcf.expansions.launch.calls import SMALL, Call, cached, in_float64, new_like, parts_of
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FORMATS, FP64
from mcf.kernels.operators import ABS, FMA, MUL, Operation, kernel
from mcf.kernels.program import Program
from mcf.linalg.matrix_exponential import ABOVE, coefficient, degree, polynomial
from mcf.linalg.triangular import BLOCK
from mcf.reductions.native_steps import CPU, Slots, Steps

_empty_like, _address = torch.empty_like, torch.Tensor.data_ptr
_FLOAT64 = torch.float64
# Largest number of elements of a component of an exponential: above it operators cost little more.
_MOST = 4096
# Largest number of elements of a component whose workspace is cached between calls.
_FEW = 1024


def multiplied(x: Any, y: Any) -> MCFTensor | None:
    """Return x @ y of matrices, vectors and batches of matrices; None where no call supports it."""
    groups = parts_of(x, y)
    if groups is None or groups[0][0].dtype not in (_FLOAT64, torch.float32):
        return None
    for k, (first, *_) in enumerate(groups):
        if first.numel() > SMALL and not first.is_contiguous():
            groups[k] = tuple([c.contiguous() for c in groups[k]])
    call = cached(_product, groups)
    return None if call is None else call(groups)


def _product(groups: Sequence[Components]) -> Call | None:
    """Return the call of a product, or None if only the operators support it."""
    (a, b), terms = (g[0] for g in groups), len(groups[0])
    if not all(in_float64(c) and c.numel() for c in (a, b)):
        return None
    found = _sizes(a.shape, b.shape)
    if found is None or a.dtype is not b.dtype or len(groups[1]) != terms:
        return None
    size, shape = found
    fmt, count = FORMATS[a.dtype], size.numel()
    spec = product_fold(fmt, terms, terms, terms)
    steps = Steps(3 * terms)
    x, y, out = ([*range(k * terms, (k + 1) * terms)] for k in range(3))
    x, y = (steps.gathered(p, c, range(c.ndim)) for p, c in ((x, a), (y, b)))
    call = registry.on(CPU).prepare_product(spec, shape, CPU)
    wide = fmt is FP64
    whole = steps.fold(call, x + y, spec.state, count, out if wide else None)
    if not wide:
        steps.rounded(whole, out, fmt, count)
    return Call(steps.program(), size, *[a.dtype] * terms)


def _sizes(a: torch.Size, b: torch.Size) -> tuple[torch.Size, tuple[int, int, int, int]] | None:
    """Return the result's size and (batch, rows, inner, columns); None for unsupported shapes."""
    dims = len(a), len(b)
    if a[-1:] != b[max(len(b) - 2, 0) :][:1]:
        return None
    batch = 1
    if dims == (2, 2):
        size = [a[0], b[1]]
    elif dims == (2, 1):
        size = [a[0]]
    elif dims == (1, 2):
        size = [b[1]]
    elif dims[0] > 2 and dims[1] in (1, 2):
        # A vector or a matrix is shared by all rows of a batch.
        size = [*a[:-1], *b[1:]]
    elif dims == (3, 3) and a[0] == b[0]:
        size, batch = [a[0], a[1], b[2]], a[0]
    else:
        return None
    rows = 1 if len(a) == 1 else a.numel() // (batch * a[-1])
    return torch.Size(size), (batch, rows, a[-1], b[-1] if len(b) > 1 else 1)


class _Matrices:
    """Steps on matrices [count, n, n] of float64 expansions; a matrix is a list of slots."""

    def __init__(self, terms: int, count: int, n: int, given: int) -> None:
        self.terms, self.shape, self.elements = terms, (count, n, n), count * n * n
        self.steps = Steps(given)

    def new(self) -> Slots:
        """Return the slots of a new matrix."""
        return self.steps.workspace(self.terms, self.elements)

    def convert(self, x: Slots, out: Slots) -> None:
        """Add a rounding to the nearest expansion of the same number of components."""
        spec = conversions.kernel(nearest, FP64, self.terms, FP64, self.terms)
        self.steps.kernel(spec, self.elements, out + x)

    def combined(self, operation: Operation, j: int, others: list[Slots], out: Slots) -> None:
        """Add an operation on 1 / j! and matrices."""
        spec = kernel(operation, FP64, *[self.terms] * (1 + len(others)), uniform=frozenset({"x"}))
        number = [p for value in coefficient(j, self.terms) for p in self.steps.number(value)]
        self.steps.kernel(spec, self.elements, [*out, *number, *(p for x in others for p in x)])

    def product(self, x: Slots, y: Slots, out: Slots, rows: int | None = None) -> None:
        """Add a matrix product, as `mcf.reductions.products` computes it."""
        count, n, _ = self.shape
        rows = n if rows is None else rows
        spec = product_fold(FP64, *[len(x)] * 3)
        call = registry.on(CPU).prepare_product(spec, (count, rows, n, n), CPU)
        self.steps.fold(call, x + y, spec.state, count * rows * n, out)


def _opened(terms: int, a: torch.Tensor) -> Program:
    """Return the program that normalises A to [count, n, n] and sums the columns of |A|."""
    count, n = math.prod(a.shape[:-2]), a.shape[-1]
    made = _Matrices(terms, count, n, 2 * terms + 1)
    out = [*range(terms, 2 * terms)]
    made.convert(made.steps.gathered([*range(terms)], a, range(a.ndim)), out)
    [size] = made.steps.workspace(1, made.elements)
    made.steps.kernel(kernel(ABS, FP64, 1), made.elements, [size, out[0]])
    ones = made.steps.constants(torch.ones(count, n, dtype=_FLOAT64, device="cpu"))
    made.product(ones, [size], [2 * terms], rows=1)
    return made.steps.program()


def _taylor(terms: int, count: int, n: int) -> Program:
    """Return the program that writes the Taylor polynomial of A to a result."""
    made = _Matrices(terms, count, n, 2 * terms)
    x, out = [*range(terms)], [*range(terms, 2 * terms)]
    eye = torch.eye(n, dtype=_FLOAT64, device="cpu").expand(count, n, n).contiguous()
    one = made.steps.constants(eye, *[torch.zeros_like(eye)] * (terms - 1))
    # Sums alternate between two workspaces.
    turns = [made.new(), made.new()]

    def product(x: Slots, y: Slots) -> Slots:
        found = turns[x is turns[0]] if x in turns else made.new()
        made.product(x, y, found)
        return found

    def scaled(j: int, x: Slots) -> Slots:
        made.combined(MUL, j, [x], turns[0])
        return turns[0]

    def added(j: int, x: Slots, total: Slots) -> Slots:
        found = turns[total is turns[0]]
        made.combined(FMA, j, [x, total], found)
        return found

    total = polynomial(degree(terms), one, x, product, scaled, added)
    made.steps.move(total, out, made.elements)
    return made.steps.program()


def _square(terms: int, count: int, n: int) -> Program:
    """Return the program that writes A A to a result."""
    made, x = _Matrices(terms, count, n, 2 * terms), [*range(terms)]
    made.product(x, x, [*range(terms, 2 * terms)])
    return made.steps.program()


def _closed(terms: int, count: int, n: int) -> Program:
    """Return the program that writes A in normalised components to a result."""
    made = _Matrices(terms, count, n, 2 * terms)
    made.convert([*range(terms)], [*range(terms, 2 * terms)])
    return made.steps.program()


class _Workspace(NamedTuple):
    """Matrices [2, terms, count, n, n], sums of columns [count, n], and their addresses."""

    matrices: Any
    sums: Any
    at: Slots
    others: Slots
    sums_at: int


# Computes the result from the components of a matrix; returns None where it cannot.
Run = Callable[[Components], MCFTensor | None]


def exponential(a: MCFTensor) -> MCFTensor | None:
    """Return e^A of small square matrices on a CPU, or None for others."""
    groups = parts_of(a)
    run: Run | None = None if groups is None else cached(_exponential, groups)
    return None if run is None or groups is None else run(groups[0])


def _exponential(groups: Sequence[Components]) -> Run | None:
    """Return the function of the components of a signature, or None where there is none."""
    a, terms = groups[0][0], len(groups[0])
    if a.ndim < 2 or a.device != CPU or a.shape[-1] != a.shape[-2] or a.shape[-1] > BLOCK:
        return None
    if not 0 < a.numel() <= _MOST or not in_float64(a):
        return None
    if a.dtype is not _FLOAT64 or terms == 1:
        return _through_float64(terms, a)
    count, n, size = math.prod(a.shape[:-2]), a.shape[-1], a.shape
    kept = a.numel() <= _FEW
    opened, taylor = _opened(terms, a), _taylor(terms, count, n)
    closed, squares = _closed(terms, count, n), {count: _square(terms, count, n)}
    model = new_like(size, _FLOAT64, CPU)
    free: list[_Workspace] = []

    def made() -> _Workspace:
        matrices, sums = np.empty((2, terms, count, n, n)), np.empty((count, n))
        at, others = ([c.ctypes.data for c in x] for x in matrices)
        return _Workspace(matrices, sums, at, others, sums.ctypes.data)

    def run(parts: Components) -> MCFTensor | None:
        # Concurrent calls must not share a workspace.
        try:
            workspace = free.pop()
        except IndexError:
            workspace = made()
        out = [_empty_like(model) for _ in parts]
        done = opened([*map(_address, parts), *workspace.at, workspace.sums_at])
        done = done and closed([*_powered(workspace), *map(_address, out)])
        if kept:
            free.append(workspace)
        return fresh(out, size, _FLOAT64, CPU) if done else None

    def _powered(workspace: _Workspace) -> Slots:
        """Compute e^A and return its addresses."""
        exponents = [*map(_exponent, workspace.sums.max(1).tolist())]
        most, order = max(exponents), None
        x, y = workspace.matrices
        if most:
            if min(exponents) != most:
                # Matrices with more squarings come first.
                order = sorted(range(count), key=exponents.__getitem__, reverse=True)
                exponents = [exponents[k] for k in order]
                x[:] = x[:, order]
            x *= np.array([2.0**-k for k in exponents])[:, None, None]
        at, others = workspace.others, workspace.at
        taylor([*others, *at])
        x, y = y, x
        for step in range(most):
            some = sum(k > step for k in exponents)
            if some == count:
                squares[count]([*at, *others])
                at, others, x, y = others, at, y, x
                continue
            # Rounding up to powers of two limits the number of programs; extra squares are unused.
            number = min(1 << (some - 1).bit_length(), count)
            if number not in squares:
                squares[number] = _square(terms, number, n)
            squares[number]([*at, *others])
            x[:, :some] = y[:, :some]
        if order is not None:
            y[:, order] = x
            return others
        return at

    return run


def _through_float64(terms: int, a: torch.Tensor) -> Run | None:
    """Return the function that computes float32 matrices in two float64 components, or None.

    The result is rounded once.
    """
    run = _exponential([(torch.empty(a.shape, dtype=_FLOAT64, device="cpu"),) * 2])
    if run is None:
        return None
    dtype, size = a.dtype, a.shape

    def through(parts: Components) -> MCFTensor | None:
        found = run(convert(parts, _FLOAT64, 2))
        if found is None:
            return None
        return fresh(convert(COMPONENTS[2](found.__dict__), dtype, terms), size, dtype, CPU)

    return through


def _exponent(norm: float) -> int:
    """Return how often a matrix with this norm is halved."""
    return max(math.frexp(norm * ABOVE)[1], 0) if math.isfinite(norm) else 0

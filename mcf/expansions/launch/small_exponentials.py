"""Compute exponentials of small matrices in a small number of native calls.

These are the steps of `mcf.linalg.matrix_exponential`: one native call for the sums of columns, one
for the polynomial, one for each squaring. The number of squarings depends on the matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mcf.convert import conversions
from mcf.convert.rounding import convert, nearest
from mcf.expansions.launch.launches import in_float64
from mcf.expansions.launch.offsets import elements_in_order
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import ABS, FMA, MUL, Operation, kernel, settle_kernel
from mcf.kernels.program import Launch, Move, Program, Step
from mcf.kernels.register_choice import get_registers
from mcf.linalg.matrix_exponential import ABOVE, coefficient, degree, polynomial
from mcf.linalg.triangular import BLOCK

_empty_like, _address = torch.empty_like, Tensor.data_ptr
_FLOAT64, _cpu = torch.float64, torch.device("cpu")
# Largest number of elements of a component: above it the operators' overhead is small.
_MOST = 4096
# Largest number of elements of a component whose workspace is cached between calls.
_FEW = 1024

_FORMATS = frozenset({torch.float64, torch.float32})
# Signatures whose functions are cached.
_MOST_RUNS = 1024

Places = list[int]
# Computes the result from the components of a matrix; returns None where it cannot.
Run = Callable[[Components], MCFTensor | None]
_runs: dict[tuple[Any, ...], Run | None] = {}


def _flat(a: Tensor) -> tuple[int, int, int]:
    """Return the shape of matrices with one dimension of batches."""
    return math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1]


def _new(size: Any) -> Tensor:
    return torch.empty(size, dtype=_FLOAT64, device="cpu")


class _Unprepared(Exception):
    """An executor has no prepared loop that takes addresses."""


class _Steps:
    """Steps on matrices [count, n, n] of expansions, and the workspaces between them.

    A matrix is a list of address indices of its components. Indices of operands come first, then
    workspaces; those of constants start at `_CONSTANTS` until the program is created.
    """

    def __init__(self, terms: int, count: int, n: int, given: int) -> None:
        self.terms, self.like = terms, _new((count, n, n))
        self._steps: list[Launch | Move] = []
        self._sizes: list[int] = []
        self._constants: list[Tensor] = []
        self._partial: dict[tuple[int, int], tuple[Places, ...]] = {}
        self._given = given

    def rooms(self, each: int, elements: int | None = None) -> Places:
        """Return indices of new workspaces, which are adjacent in memory."""
        at = self._given + len(self._sizes)
        self._sizes += [8 * (self.like.numel() if elements is None else elements)] * each
        return [*range(at, at + each)]

    def constants(self, *values: Tensor) -> Places:
        """Return indices of tensors with fixed addresses."""
        at = _CONSTANTS + len(self._constants)
        self._constants += values
        return [*range(at, at + len(values))]

    def move(self, x: Places, out: Places, index: Any = None) -> None:
        """Add a copy, with elements gathered by an index."""
        self._steps.append(Move(x, out, self.like.numel(), index))

    def convert(self, x: Places, out: Places) -> None:
        """Add a rounding to the nearest expansion of the same number of components."""
        spec = conversions.kernel(nearest, FP64, self.terms, FP64, self.terms)
        self._launch(spec, [self.like] * (2 * self.terms), [*out, *x])

    def size(self, x: int) -> int:
        """Add |x| of a single component, and return its index."""
        [out] = self.rooms(1)
        self._launch(kernel(ABS, FP64, 1), [self.like] * 2, [out, x])
        return out

    def combined(
        self, operation: Operation, number: Places, others: list[Places], out: Places
    ) -> None:
        """Add an operation on a scalar and matrices."""
        spec = kernel(operation, FP64, *[self.terms] * (1 + len(others)), uniform=frozenset({"x"}))
        fields = [self.like] * self.terms
        row = [*fields, *[_new(())] * self.terms, *fields * len(others)]
        self._launch(spec, row, [*out, *number, *(p for x in others for p in x)])

    def product(self, x: Places, y: Places, out: Places) -> None:
        """Add a matrix product, as `mcf.reductions.products` computes it."""
        count, n, _ = self.like.shape
        terms = len(x)
        rows = n if terms == self.terms else 1
        spec = product_fold(FP64, terms, terms, terms)
        call = registry.prepare_product(spec, (count, rows, n, n), _cpu)
        if call is None:
            raise _Unprepared
        like = _new((count, rows, n))
        key = (spec.state, rows)
        if key not in self._partial:
            # Components beyond the result's go to a workspace that nothing reads.
            self._partial[key] = tuple(
                self.rooms(k, like.numel()) for k in (spec.state, spec.state - terms)
            )
        partial, rest = self._partial[key]
        self._steps.append(Launch(call, x + y, partial[0]))
        settle = settle_kernel(spec.state)
        self._launch(settle, [like] * (2 * spec.state), [*out, *rest, *partial])

    def _launch(self, spec: Elementwise, row: list[Tensor], places: Places) -> None:
        """Add the launch of a kernel; the only scalar of operations is the constant 1."""
        launch = registry.prepare(spec, [row])
        if launch is None:
            raise _Unprepared
        self._steps.append(Launch(launch.row(np.ones((1, len(spec.scalars)))), places))

    def program(self) -> Program:
        """Return the program of all steps."""
        first = self._given + len(self._sizes)

        def numbered(places: Any) -> Places:
            return [p - _CONSTANTS + first if p >= _CONSTANTS else p for p in places]

        steps: list[Step] = [
            step._replace(places=numbered(step.places))
            if isinstance(step, Launch)
            else step._replace(sources=numbered(step.sources))
            for step in self._steps
        ]
        fixed = [c.data_ptr() for c in self._constants]
        found = Program.of(steps, self._given, self._sizes, fixed, self._constants)
        if found is None:
            raise _Unprepared
        return found


_CONSTANTS = 1 << 30


def _opened(terms: int, a: Tensor) -> Program:
    """Return the program that normalises A to [count, n, n] and sums the columns of |A|."""
    steps = _Steps(terms, *_flat(a)[:2], 2 * terms + 1)
    given, out = [*range(terms)], [*range(terms, 2 * terms)]
    index = elements_in_order(a, range(a.ndim))
    if index is not None:
        copies = steps.rooms(terms)
        steps.move(given, copies, index)
        given = copies
    steps.convert(given, out)
    ones = steps.constants(torch.ones(a.shape[:-1], dtype=_FLOAT64, device="cpu"))
    steps.product(ones, [steps.size(out[0])], [2 * terms])
    return steps.program()


def _taylor(terms: int, count: int, n: int) -> Program:
    """Return the program that writes the Taylor polynomial of A to a result."""
    steps = _Steps(terms, count, n, 2 * terms)
    x, out = [*range(terms)], [*range(terms, 2 * terms)]
    eye = torch.eye(n, dtype=_FLOAT64, device="cpu").expand(count, n, n).contiguous()
    zero = torch.zeros_like(eye)
    one = steps.constants(eye, *[zero] * (terms - 1))
    # Sums alternate between two workspaces.
    turns = [steps.rooms(terms), steps.rooms(terms)]

    def product(x: Places, y: Places) -> Places:
        found = turns[x is turns[0]] if x in turns else steps.rooms(terms)
        steps.product(x, y, found)
        return found

    def number(j: int) -> Places:
        values = coefficient(j, terms)
        return steps.constants(*[torch.tensor(v, dtype=_FLOAT64, device="cpu") for v in values])

    def scaled(j: int, x: Places) -> Places:
        steps.combined(MUL, number(j), [x], turns[0])
        return turns[0]

    def added(j: int, x: Places, total: Places) -> Places:
        found = turns[total is turns[0]]
        steps.combined(FMA, number(j), [x, total], found)
        return found

    steps.move(polynomial(degree(terms), one, x, product, scaled, added), out)
    return steps.program()


def _square(terms: int, count: int, n: int) -> Program:
    """Return the program that writes A A to a result."""
    steps = _Steps(terms, count, n, 2 * terms)
    x = [*range(terms)]
    steps.product(x, x, [*range(terms, 2 * terms)])
    return steps.program()


def _closed(terms: int, count: int, n: int) -> Program:
    """Return the program that writes A in normalised components to a result."""
    steps = _Steps(terms, count, n, 2 * terms)
    steps.convert([*range(terms)], [*range(terms, 2 * terms)])
    return steps.program()


class _Room(NamedTuple):
    """A workspace: matrices [2, terms, count, n, n], sums of columns [count, n], addresses."""

    matrices: Any
    sums: Any
    at: Places
    others: Places
    sums_at: int


def exponential(a: MCFTensor) -> MCFTensor | None:
    """Return e^A of small square matrices on a CPU, or None for others."""
    own = a.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor or first.dtype not in _FORMATS:
        return None
    key = (
        terms, first.dtype, first.shape, first.stride(), first.device, registry.get_executor(),
        get_registers(),
    )  # fmt: skip
    try:
        run = _runs[key]
    except KeyError:
        if len(_runs) >= _MOST_RUNS:
            _runs.clear()
        run = _runs[key] = _prepared(terms, first)
    return None if run is None else run(COMPONENTS[terms](own))


def _prepared(terms: int, a: Tensor) -> Run | None:
    """Return the function of the components of a signature, or None where there is none."""
    if a.ndim < 2 or a.device != _cpu or a.shape[-1] != a.shape[-2] or a.shape[-1] > BLOCK:
        return None
    if not 0 < a.numel() <= _MOST:
        return None
    if a.dtype is not _FLOAT64 or terms == 1:
        return _through_float64(terms, a)
    count, n, _ = _flat(a)
    kept = a.numel() <= _FEW
    try:
        opened, taylor = _opened(terms, a), _taylor(terms, count, n)
        closed, squares = _closed(terms, count, n), {count: _square(terms, count, n)}
    except _Unprepared:
        return None
    like, size, free = _new(a.shape), a.shape, list[_Room]()

    def made() -> _Room:
        matrices, sums = np.empty((2, terms, count, n, n)), np.empty((count, n))
        at, others = ([c.ctypes.data for c in x] for x in matrices)
        return _Room(matrices, sums, at, others, sums.ctypes.data)

    def run(parts: Components) -> MCFTensor | None:
        # Concurrent calls must not share a workspace.
        try:
            workspace = free.pop()
        except IndexError:
            workspace = made()
        out = [_empty_like(like) for _ in parts]
        done = opened([*map(_address, parts), *workspace.at, workspace.sums_at])
        done = done and closed([*_powered(workspace), *map(_address, out)])
        if kept:
            free.append(workspace)
        return fresh(out, size, _FLOAT64, _cpu) if done else None

    def _powered(workspace: _Room) -> Places:
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


def _through_float64(terms: int, a: Tensor) -> Run | None:
    """Return the function that computes float32 matrices in two float64 components, or None.

    The result is rounded once.
    """
    run = _prepared(2, _new(a.shape)) if in_float64(a) else None
    if run is None:
        return None
    dtype, size = a.dtype, a.shape

    def through(parts: Components) -> MCFTensor | None:
        found = run(convert(parts, _FLOAT64, 2))
        if found is None:
            return None
        return fresh(convert(COMPONENTS[2](found.__dict__), dtype, terms), size, dtype, _cpu)

    return through


def _exponent(norm: float) -> int:
    """Return how often a matrix with this norm is halved."""
    return max(math.frexp(norm * ABOVE)[1], 0) if math.isfinite(norm) else 0

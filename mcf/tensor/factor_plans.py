"""Factorisations and solutions of few small matrices by plan.

They are the loops of `mcf.linalg`, prepared once for operands of a kind, which call them with
copies of the operands. What is singular, or no such kind, is left to the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import registry
from mcf.kernels.elimination import elimination
from mcf.kernels.formats import FORMATS
from mcf.kernels.pivots import Narrowed
from mcf.kernels.program import Launch, Program
from mcf.kernels.reflection import reflection
from mcf.kernels.register_choice import get_registers
from mcf.linalg.lu_factors import SIDES
from mcf.linalg.triangular import BLOCK
from mcf.tensor.copies import Copies
from mcf.tensor.launches import SMALL
from mcf.tensor.narrow import in_float64
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_empty_like, _address, _array = torch.empty_like, Tensor.data_ptr, Tensor.numpy
_FLOAT64, _cpu = torch.float64, torch.device("cpu")
_copy = np.copyto
_FORMATS = frozenset({torch.float64, torch.float32})

_MOST = 1024
# What computes a result of the components of a matrix, and of another one; None where it cannot.
Run = Callable[..., Any]
_plans: dict[tuple[Any, ...], Run | None] = {}


def factored(
    make: Callable[..., Run | None], a: Any, b: Any = None, *options: Any, beside: Any = ()
) -> Any:
    """What a plan computes of square matrices or others, or None.

    Args:
        make: one of this module's functions, which makes the plan.
        a: expansions of float64 or float32.
        b: others of that format with as many components.
        *options: what else it takes.
        beside: what else the plan takes at each call.
    """
    own = a.__dict__
    first, terms = own["_c0"], own["_terms"]
    if type(first) is not Tensor or first.dtype not in _FORMATS:
        return None
    kind: tuple[Any, ...] = (
        make,
        terms,
        first.dtype,
        first.shape,
        first.stride(),
        first.device,
        options,
    )
    second, others = None, None
    if b is not None:
        others = b.__dict__
        second = others["_c0"]
        if type(second) is not Tensor or second.dtype is not first.dtype:
            return None
        if others["_terms"] != terms:
            return None
        kind += second.shape, second.device
    key = (*kind, registry.get_executor(), get_registers())
    try:
        run = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        run = _plans[key] = _made(make, terms, first, second, options)
    if run is None:
        return None
    parts = COMPONENTS[terms](own)
    return run(parts) if others is None else run(parts, COMPONENTS[terms](others), *beside)


def _made(make: Any, terms: int, a: Tensor, b: Tensor | None, options: Any) -> Run | None:
    for x in (a,) if b is None else (a, b):
        if x.ndim == 0 or x.device != _cpu or not 0 < x.numel():
            return None
    if a.ndim < 2 or a.shape[-1] > BLOCK:
        return None
    run: Run | None = make(terms, a, *options) if b is None else make(terms, a, b, *options)
    return run


def _flat(a: Tensor) -> tuple[int, int, int]:
    """The shape of matrices in one dimension of batches."""
    return math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1]


def new(size: Any, dtype: torch.dtype = _FLOAT64) -> Tensor:
    """A tensor of a size, not filled."""
    return torch.empty(size, dtype=dtype, device="cpu")


def loop(kind: str, terms: int, a: Tensor, *more: Any) -> Any:
    """The loop for such matrices."""
    return registry.on(a.device).prepare_elimination(
        elimination(kind, FORMATS[a.dtype], terms), _flat(a), *more
    )


def _narrowed(count: int) -> Program:
    """What makes int32 of so many numbers of int64, of the addresses of both."""
    program = Program.of([Launch(Narrowed(count), [0, 1])], 2)
    assert program is not None
    return program


def through_float64(
    make: Callable[..., Run | None], terms: int, a: Tensor, *options: Any
) -> Run | None:
    """The plan of what computes matrices of float32 in two components of float64, or None.

    All results are rounded once.
    """
    run = make(2, new(a.shape), *options) if in_float64(a) else None
    if run is None:
        return None
    dtype = a.dtype

    def narrowed(x: MCFTensor) -> MCFTensor:
        own = x.__dict__
        size, parts = own["_c0"].shape, COMPONENTS[2](own)
        if 0 in size:
            return fresh([new(size, dtype) for _ in range(terms)], size, dtype, _cpu)
        return fresh(convert(parts, dtype, terms), size, dtype, _cpu)

    def through(parts: Components) -> tuple[MCFTensor, ...] | None:
        found = run(convert(parts, _FLOAT64, 2))
        return None if found is None else tuple([narrowed(x) for x in found])

    return through


def solution(terms: int, a: Tensor, b: Tensor) -> Run | None:
    """X with A X = B of square A, for vectors or matrices B."""
    n, batch = a.shape[-1], a.shape[:-2]
    if a.shape[-2] != n:
        return None
    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    of, sides = (b.shape[:-1], 1) if vector else (b.shape[:-2], b.shape[-1])
    if b.shape[len(of)] != n or sides > SIDES or len(of) > len(batch):
        return None
    if any(s not in (1, t) for s, t in zip(reversed(of), reversed(batch), strict=False)):
        return None
    call = loop("lu", terms, a, sides)
    if call is None:
        return None
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    size = torch.Size((*batch, *b.shape[len(of) :]))
    like = new(size, a.dtype)

    def run(parts: Components, right: Components) -> MCFTensor | None:
        room = copies.taken(parts)
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            _copy(_array(x), _array(c))
        info, _ = call(room[1], [*map(_address, out)])
        copies.freed(room)
        return None if any(info) else fresh(out, size, like.dtype, _cpu)

    return run


def inverse(terms: int, a: Tensor) -> Run | None:
    """Of square A."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("lu", terms, a, a.shape[-1])
    if call is None:
        return None
    copies, size = Copies(terms, a.shape, range(a.ndim), a.dtype), a.shape
    like, eye = new(size, a.dtype), np.eye(a.shape[-1])
    sides = [eye, *(np.zeros(()) for _ in range(terms - 1))]

    def run(parts: Components) -> MCFTensor | None:
        room = copies.taken(parts)
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, sides, strict=True):
            _copy(_array(x), c)
        info, _ = call(room[1], [*map(_address, out)])
        copies.freed(room)
        return None if any(info) else fresh(out, size, like.dtype, _cpu)

    return run


def pivoted(terms: int, a: Tensor) -> Run | None:
    """L and U in one matrix, and pivots, of A with at least as many rows as columns."""
    if a.shape[-2] < a.shape[-1]:
        return None
    call = loop("lu", terms, a)
    if call is None:
        return None
    size, rows = a.shape, torch.Size((*a.shape[:-2], a.shape[-1]))
    like, numbers = new(size, a.dtype), new(rows, torch.int32)
    narrow = _narrowed(math.prod(rows))

    def run(parts: Components) -> tuple[MCFTensor, Tensor] | None:
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, parts, strict=True):
            _copy(_array(x), _array(c))
        info, found = call([*map(_address, out)])
        if any(info):
            return None
        pivots = _empty_like(numbers)
        narrow([found.buffer_info()[0], _address(pivots)])
        return fresh(out, size, like.dtype, _cpu), pivots

    return run


def root(terms: int, a: Tensor, upper: bool, examined: bool = False) -> Run | None:
    """L with A = L L^T, or its transpose; with the numbers of bad minors where they are wanted."""
    if a.shape[-1] != a.shape[-2]:
        return None
    call = loop("cholesky", terms, a)
    if call is None:
        return None
    order = tuple(range(a.ndim))
    turned = (*order[:-2], order[-1], order[-2]) if upper else order
    copies, size = Copies(terms, a.shape, turned, a.dtype), a.shape
    like = new(size, a.dtype)
    # Of the result: what is neither read nor written.
    rest = np.triu(np.ones(size[-2:], dtype=bool), 1)
    rest = rest.T if upper else rest
    # Of more elements an index takes memory, and other calls little beside the loop.
    take: Any = None
    if a.numel() <= SMALL:
        index = np.where(rest, copies.zero, copies.numbers())
        take = copies.taking(index)
        if take is None:
            return None
    numbers = new(size[:-2], torch.int32)
    narrow = _narrowed(_flat(a)[0])

    def few(parts: Components) -> tuple[Any, list[Tensor]]:
        room = copies.taken(parts)
        info, _ = call(room[1])
        out = [_empty_like(like) for _ in parts]
        take([*room[1], *map(_address, out)])
        copies.freed(room)
        return info, out

    def many(parts: Components) -> tuple[Any, list[Tensor]]:
        turned = [c.mT if upper else c for c in parts]
        out = [_empty_like(like).copy_(c) for c in turned]
        info, _ = call([*map(_address, out)])
        out = [x.tril_() for x in out]
        return info, [x.mT.contiguous() for x in out] if upper else out

    compute = few if a.numel() <= SMALL else many

    def run(parts: Components) -> Any:
        info, out = compute(parts)
        if not examined and any(info):
            return None
        factor = fresh(out, size, like.dtype, _cpu)
        if not examined:
            return factor
        minors = _empty_like(numbers)
        narrow([info.buffer_info()[0], _address(minors)])
        return factor, minors

    return run


def substitution(terms: int, a: Tensor, b: Tensor, upper: bool, unit: bool) -> Any:
    """The loop that solves A X = B of triangular A in the place of B, or None."""
    shape = _flat(b) if b.ndim > 1 else (0, 0, 0)
    n = shape[1]
    if a.shape[-2:] != (n, n) or a.shape[:-2] != b.shape[:-2]:
        return None
    if a.ndim > 3 and not a.is_contiguous():
        return None
    strides = (a.stride(0) if a.ndim == 3 else n * n, *a.stride()[-2:])
    spec = elimination("substitution", FORMATS[a.dtype], terms)
    return registry.on(a.device).prepare_substitution(spec, shape, strides, upper, unit)


def substituted(terms: int, a: Tensor, b: Tensor, upper: bool, unit: bool) -> Run | None:
    """X with A X = B of triangular A."""
    call, size = substitution(terms, a, b, upper, unit), b.shape
    if call is None:
        return None
    like = new(size, a.dtype)

    def run(parts: Components, right: Components) -> MCFTensor:
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            _copy(_array(x), _array(c))
        call([*map(_address, parts)], [*map(_address, out)])
        return fresh(out, size, like.dtype, _cpu)

    return run


def substituted_twice(terms: int, a: Tensor, b: Tensor) -> Run | None:
    """X with P L U X = B of one matrix L U, for pivots that come beside."""
    low = substitution(terms, a, b, False, True) if a.ndim == 2 else None
    high = substitution(terms, a, b, True, False) if a.ndim == 2 else None
    if low is None or high is None:
        return None
    size, n = b.shape, b.shape[0]
    like, home = new(size, a.dtype), range(n)

    def run(parts: Components, right: Components, pivots: list[int]) -> MCFTensor | None:
        order = [*home]
        if len(pivots) != n:
            return None
        for j, other in enumerate(pivots):
            if not 1 <= other <= n:
                return None
            order[j], order[other - 1] = order[other - 1], order[j]
        out = [_empty_like(like) for _ in parts]
        for x, c in zip(out, right, strict=True):
            # All places are in range; else NumPy would look first.
            _array(c).take(order, 0, out=_array(x), mode="clip")
        places, given = [*map(_address, out)], [*map(_address, parts)]
        low(given, places)
        high(given, places)
        return fresh(out, size, like.dtype, _cpu)

    return run


def orthogonal(terms: int, a: Tensor, mode: str) -> Run | None:
    """Q and R of A = Q R, as many columns and rows as `mode` says; an empty Q for "r"."""
    if a.dtype is not _FLOAT64:
        return through_float64(orthogonal, terms, a, mode)
    *batch, m, n = a.shape
    count = min(m, n)
    height = m if mode == "complete" else count
    wanted = 0 if mode == "r" else height
    # The bound of `mcf.linalg.qr_factors`.
    if m > 2 * BLOCK:
        return None
    call = registry.on(a.device).prepare_reflection(reflection(terms), _flat(a), wanted)
    if call is None:
        return None
    copies = Copies(terms, a.shape, range(a.ndim), a.dtype)
    left = torch.Size((*batch, m, wanted) if wanted else (0,))
    right = torch.Size((*batch, height, n))
    likes = new(left), new(right)
    below = np.tril(np.ones((height, n), dtype=bool), -1)
    rows = (..., slice(height), slice(None))

    def run(parts: Components) -> tuple[MCFTensor, MCFTensor]:
        room = copies.taken(parts)
        q = [_empty_like(likes[0]) for _ in parts]
        call(room[1], [*map(_address, q)] if wanted else [])
        r = [_empty_like(likes[1]) for _ in parts]
        for x, c in zip(r, room[0], strict=True):
            array = _array(x)
            _copy(array, c[rows])
            _copy(array, 0.0, where=below)
        copies.freed(room)
        return fresh(q, left, _FLOAT64, _cpu), fresh(r, right, _FLOAT64, _cpu)

    return run

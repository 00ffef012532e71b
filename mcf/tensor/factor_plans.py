"""Factorisations and solutions of small matrices by plan: how plans are found and what they share.

They are the loops of `mcf.linalg`, prepared once for operands of a kind, which call them with
copies of the operands. What is singular, or no such kind, is left to the operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import registry
from mcf.kernels.elimination import elimination
from mcf.kernels.formats import FORMATS
from mcf.kernels.pivots import Narrowed
from mcf.kernels.program import Launch, Program
from mcf.kernels.register_choice import get_registers
from mcf.linalg.triangular import BLOCK
from mcf.tensor.narrow import in_float64
from mcf.tensor.tensor import COMPONENTS, Components, MCFTensor, fresh

_FLOAT64, _cpu = torch.float64, torch.device("cpu")
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


def flat(a: Tensor) -> tuple[int, int, int]:
    """The shape of matrices in one dimension of batches."""
    return math.prod(a.shape[:-2]), a.shape[-2], a.shape[-1]


def new(size: Any, dtype: torch.dtype = _FLOAT64) -> Tensor:
    """A tensor of a size, not filled."""
    return torch.empty(size, dtype=dtype, device="cpu")


def loop(kind: str, terms: int, a: Tensor, *more: Any) -> Any:
    """The loop for such matrices."""
    return registry.on(a.device).prepare_elimination(
        elimination(kind, FORMATS[a.dtype], terms), flat(a), *more
    )


def narrowed(count: int) -> Program:
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

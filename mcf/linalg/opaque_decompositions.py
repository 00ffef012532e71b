"""Register decompositions as opaque operators `torch.ops.mcf.linalg_*` for `torch.compile`.

The modules of the same names define them. An operator has a list of tensors, each separate and
contiguous, so that shapes alone describe it during tracing: the components of all resulting
expansions, then integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.linalg import (
    ldl_factors,
    lu_factors,
    matrix_exponential,
    qr_factors,
    spectral,
    triangular,
)
from mcf.linalg.parts import Components, transpose
from mcf.reductions.rows import operator

_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._functorch.maybe_current_level
_tracing = torch._C._get_tracing_state


def visible(arguments: Iterable[Any]) -> bool:
    """Return whether a mode, a transform, a trace or autograd looks at some arguments.

    The same operator called through PyTorch's dispatcher takes some ten microseconds more.

    Args:
        arguments: tensors, lists of tensors, and other values, which nobody looks at.
    """
    if torch.compiler.is_compiling() or _modes() or _functorch() is not None:
        return True
    if _tracing() is not None:
        return True
    grad = torch.is_grad_enabled()
    for argument in arguments:
        for t in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(t, Tensor) and (type(t) is not Tensor or (grad and t.requires_grad)):
                return True
    return False


Shapes = Sequence[Sequence[int]]


def decomposition(
    schema: str,
    run: Callable[..., Sequence[Any]],
    shapes: Callable[..., Shapes],
    integers: int = 0,
    dtype: torch.dtype = torch.int32,
) -> Callable[..., list[Any]]:
    """Register `torch.ops.mcf.linalg_<schema>`, and return a function with the results of `run`.

    Args:
        schema: the operator's name and arguments, first the components of a matrix.
        run: computes expansions, then tensors of integers, from these arguments.
        shapes: of the results for these arguments.
        integers: the number of tensors of integers.
        dtype: of the integers.
    """

    def flat(*arguments: Any) -> list[Tensor]:
        found = run(*arguments)
        cut = len(found) - integers
        return [
            *(c.contiguous() for x in found[:cut] for c in x),
            *map(Tensor.contiguous, found[cut:]),
        ]

    def fake(*arguments: Any) -> list[Tensor]:
        a, sizes = arguments[0], shapes(*arguments)
        cut = len(sizes) - integers
        return [
            *(c.new_empty(list(size)) for size in sizes[:cut] for c in a),
            *(a[0].new_empty(list(size), dtype=dtype) for size in sizes[cut:]),
        ]

    opaque = operator(f"linalg_{schema}", fake)(flat)

    def call(*arguments: Any) -> list[Any]:
        if not visible(arguments):
            results = run(*arguments)
            cut = len(results) - integers
            whole = [tuple([c.contiguous() for c in x]) for x in results[:cut]]
            return [*whole, *map(Tensor.contiguous, results[cut:])]
        given = [list(a) if isinstance(a, tuple) else a for a in arguments]
        found = opaque(*given)
        terms, cut = len(given[0]), len(found) - integers
        return [*(tuple(found[k : k + terms]) for k in range(0, cut, terms)), *found[cut:]]

    return call


def _lu_shapes(a: list[Tensor]) -> Shapes:
    *batch, m, n = a[0].shape
    return [a[0].shape, [*batch, min(m, n)], batch]


def _solution(a: list[Tensor], b: list[Tensor]) -> Shapes:
    return [(*triangular.broadcast(tuple(a), tuple(b)), *b[0].shape[-2:])]


def _with_factors(found: tuple[Components, lu_factors.Factors]) -> Sequence[Any]:
    result, factors = found
    return result, *factors


# Components are lists in schemas, tuples in the functions that run.
lu_factor = decomposition(
    "lu_factor(Tensor[] a, bool pivot)",
    lambda a, pivot: lu_factors.factor(tuple(a), pivot),
    lambda a, pivot: _lu_shapes(a),
    integers=2,
)
solve = decomposition(
    "solve(Tensor[] a, Tensor[] b)",
    lambda a, b: _with_factors(lu_factors.solved(tuple(a), tuple(b))),
    lambda a, b: [*_solution(a, b), *_lu_shapes(a)],
    integers=2,
)
det = decomposition(
    "det(Tensor[] a)",
    lambda a: _with_factors(lu_factors.determined(tuple(a))),
    lambda a: [a[0].shape[:-2], *_lu_shapes(a)],
    integers=2,
)
lu_solve = decomposition(
    "lu_solve(Tensor[] lu, Tensor pivots, Tensor[] b, bool left, bool adjoint)",
    lambda lu, pivots, b, left, adjoint: [
        lu_factors.solve(tuple(lu), pivots, tuple(b), left=left, adjoint=adjoint)
    ],
    lambda lu, pivots, b, left, adjoint: _solution(lu, b),
)
cholesky = decomposition(
    "cholesky(Tensor[] a)",
    lambda a: triangular.cholesky(tuple(a)),
    lambda a: [a[0].shape, a[0].shape[:-2]],
    integers=1,
)
ldl_factor = decomposition(
    "ldl_factor(Tensor[] a)",
    lambda a: ldl_factors.factor(tuple(a)),
    lambda a: [a[0].shape, a[0].shape[:-1], a[0].shape[:-2]],
    integers=2,
)
ldl_solve = decomposition(
    "ldl_solve(Tensor[] ld, Tensor pivots, Tensor[] b)",
    lambda ld, pivots, b: [ldl_factors.solve(tuple(ld), pivots, tuple(b))],
    lambda ld, pivots, b: _solution(ld, b),
)
reflections = decomposition(
    "reflections(Tensor[] a)",
    lambda a: qr_factors.reflections(tuple(a)),
    lambda a: [a[0].shape, (*a[0].shape[:-2], min(a[0].shape[-2:]))],
)
matrix_exp = decomposition(
    "matrix_exp(Tensor[] a)",
    lambda a: [matrix_exponential.exponential(tuple(a))],
    lambda a: [a[0].shape],
)
_triangular = decomposition(
    "solve_triangular(Tensor[] a, Tensor[] b, bool upper, bool unitriangular)",
    lambda a, b, upper, unit: [
        triangular.solve(tuple(a), tuple(b), upper=upper, unitriangular=unit)
    ],
    lambda a, b, upper, unit: _solution(a, b),
)


def solve_triangular(
    a: Components, b: Components, *, upper: bool, left: bool, unitriangular: bool
) -> Components:
    """Solve as the operator of `triangular.solve`."""
    if left:
        [x] = _triangular(a, b, upper, unitriangular)
    else:
        [x] = _triangular(transpose(a), transpose(b), not upper, unitriangular)
        x = transpose(x)
    found: Components = x
    return found


_opaque_permutation = operator(
    "linalg_permutation(Tensor pivots, SymInt rows) -> Tensor",
    lambda pivots, rows: pivots.new_empty([*pivots.shape[:-1], rows], dtype=torch.int64),
)(lu_factors.permutation)


def permutation(pivots: Tensor, rows: int) -> Tensor:
    """Compute permutations as the operator of `lu_factors.permutation`."""
    function = _opaque_permutation if visible([pivots]) else lu_factors.permutation
    found: Tensor = function(pivots, rows)
    return found


def _qr_shapes(a: list[Tensor], mode: str) -> Shapes:
    *batch, m, n = a[0].shape
    height = m if mode == "complete" else min(m, n)
    return [(*batch, m, height), (*batch, height, n)][mode == "r" :]


_qr = decomposition(
    "qr(Tensor[] a, str mode)",
    lambda a, mode: [x for x in qr_factors.factor(tuple(a), mode) if x is not None],
    _qr_shapes,
)


def qr(a: Components, mode: str) -> tuple[Components | None, Components]:
    """Factorise as the operator of `qr_factors.factor`."""
    *q, r = _qr(a, mode)
    return (q[0] if q else None), r


def converged(name: str, a: Sequence[Tensor], done: Tensor) -> None:
    """Raise PyTorch's LinAlgError if an iteration did not converge."""
    if bool(done.all()):
        return
    if not all(bool(c.isfinite().all()) for c in a):
        reason = "the input matrix contained non-finite values"
    else:
        reason = "rotations of its rows do not become small"
    raise LinAlgError(f"linalg.{name}: The algorithm failed to converge because {reason}.")


def _eigh_run(a: list[Tensor], upper: bool) -> Sequence[Components]:
    values, vectors, done = spectral.eigh(tuple(a), upper)
    converged("eigh", a, done)
    return values, vectors


# Raises LinAlgError without convergence, as `svd`.
eigh = decomposition(
    "eigh(Tensor[] a, bool upper)", _eigh_run, lambda a, upper: [a[0].shape[:-1], a[0].shape]
)


def _svd_run(a: list[Tensor], full: bool, vectors: bool) -> Sequence[Components]:
    u, values, vt, done = spectral.svd(tuple(a), full, vectors)
    converged("svd", a, done)
    return (values,) if u is None or vt is None else (values, u, vt)


def _svd_shapes(a: list[Tensor], full: bool, vectors: bool) -> Shapes:
    *batch, m, n = a[0].shape
    k = min(m, n)
    shapes = [(*batch, k), (*batch, m, m if full else k), (*batch, n if full else k, n)]
    return shapes if vectors else shapes[:1]


# The singular values, then U and V^T if they are wanted.
svd = decomposition("svd(Tensor[] a, bool full, bool vectors)", _svd_run, _svd_shapes)

"""Register decompositions as opaque operators `torch.ops.mcf.linalg_*` for `torch.compile`.

The modules of the same names define them. Each result is a separate contiguous tensor, so that
shapes alone describe it during tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from mcf.linalg import (
    cholesky_factor,
    eigen,
    ldl_factors,
    lu_factors,
    matrix_exponential,
    qr_factors,
    singular,
    triangular,
)
from mcf.linalg.parts import Components, transpose

_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]

Shape = Sequence[int]

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


def operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define `torch.ops.mcf.linalg_<schema>`, and return a function that calls it.

    Args:
        schema: the operator's.
        run: computes the results.
        fake: makes tensors of the results' shapes.
    """
    name = f"linalg_{schema.split('(')[0]}"
    _library.define(f"linalg_{schema}")  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"mcf::{name}", fake, lib=_library)
    opaque = getattr(torch.ops.mcf, name)

    def call(*arguments: Any) -> Any:
        return opaque(*arguments) if visible(arguments) else run(*arguments)

    return call


def _own(*results: Components) -> list[Tensor]:
    return [c.contiguous() for x in results for c in x]


def _empty(a: Sequence[Tensor], *shapes: Shape) -> list[Tensor]:
    """Return empty tensors for the components of expansions of these shapes."""
    return [c.new_empty(list(shape)) for shape in shapes for c in a]


def _info(a: Sequence[Tensor], *shape: int) -> Tensor:
    return a[0].new_empty(list(shape), dtype=torch.int32)


def _split(found: Sequence[Tensor], terms: int) -> list[Components]:
    """Split a list of components into expansions."""
    return [tuple(found[k : k + terms]) for k in range(0, len(found) - terms + 1, terms)]


def _lu(a: list[Tensor], pivot: bool) -> list[Tensor]:
    factors, pivots, info = lu_factors.factor(tuple(a), pivot)
    return [*factors, pivots, info]


def _lu_shapes(a: list[Tensor], pivot: bool) -> list[Tensor]:
    *batch, m, n = a[0].shape
    return [*_empty(a, a[0].shape), _info(a, *batch, min(m, n)), _info(a, *batch)]


_lu_factor = operator("lu_factor(Tensor[] a, bool pivot) -> Tensor[]", _lu, _lu_shapes)


def lu_factor(a: Components, pivot: bool = True) -> tuple[Components, Tensor, Tensor]:
    """Factorise as the operator of `lu_factors.factor`."""
    *factors, pivots, info = _lu_factor(list(a), pivot)
    return tuple(factors), pivots, info


def _split_factors(found: Sequence[Tensor]) -> tuple[Components, tuple[Components, Tensor, Tensor]]:
    """Split a list of components into a result and LU factors with as many components."""
    *parts, pivots, info = found
    result, factors = _split(parts, len(parts) // 2)
    return result, (factors, pivots, info)


def _solve_run(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    x, (factors, pivots, info) = lu_factors.solved(tuple(a), tuple(b))
    return [*_own(x), *factors, pivots, info]


_solve = operator(
    "solve(Tensor[] a, Tensor[] b) -> Tensor[]",
    _solve_run,
    lambda a, b: [*_solved_shape(a, a[0], b, True, False), *_lu_shapes(a, True)],
)


def solve(a: Components, b: Components) -> tuple[Components, tuple[Components, Tensor, Tensor]]:
    """Solve as the operator of `lu_factors.solved`."""
    return _split_factors(_solve(list(a), list(b)))


def _det_run(a: list[Tensor]) -> list[Tensor]:
    determinant, (factors, pivots, info) = lu_factors.determined(tuple(a))
    return [*_own(determinant), *factors, pivots, info]


_det = operator(
    "det(Tensor[] a) -> Tensor[]",
    _det_run,
    lambda a: [*_empty(a, a[0].shape[:-2]), *_lu_shapes(a, True)],
)


def det(a: Components) -> tuple[Components, tuple[Components, Tensor, Tensor]]:
    """Compute determinants as the operator of `lu_factors.determined`."""
    return _split_factors(_det(list(a)))


def _solved_shape(
    lu: list[Tensor], pivots: Tensor, b: list[Tensor], left: bool, adjoint: bool
) -> list[Tensor]:
    return _empty(b, (*triangular.broadcast(tuple(lu), tuple(b)), *b[0].shape[-2:]))


_lu_solve = operator(
    "lu_solve(Tensor[] lu, Tensor pivots, Tensor[] b, bool left, bool adjoint) -> Tensor[]",
    lambda lu, pivots, b, left, adjoint: _own(
        lu_factors.solve(tuple(lu), pivots, tuple(b), left=left, adjoint=adjoint)
    ),
    _solved_shape,
)


def lu_solve(
    lu: Components, pivots: Tensor, b: Components, *, left: bool = True, adjoint: bool = False
) -> Components:
    """Solve as the operator of `lu_factors.solve`."""
    return tuple(_lu_solve(list(lu), pivots, list(b), left, adjoint))


_permutation = operator(
    "permutation(Tensor pivots, SymInt rows) -> Tensor",
    lu_factors.permutation,
    lambda pivots, rows: pivots.new_empty([*pivots.shape[:-1], rows], dtype=torch.int64),
)


def permutation(pivots: Tensor, rows: int) -> Tensor:
    """Compute permutations as the operator of `lu_factors.permutation`."""
    found: Tensor = _permutation(pivots, rows)
    return found


def _cholesky_run(a: list[Tensor]) -> list[Tensor]:
    factor, info = cholesky_factor.factor(tuple(a))
    return [*factor, info]


_cholesky = operator(
    "cholesky(Tensor[] a) -> Tensor[]",
    _cholesky_run,
    lambda a: [*_empty(a, a[0].shape), _info(a, *a[0].shape[:-2])],
)


def cholesky(a: Components) -> tuple[Components, Tensor]:
    """Factorise as the operator of `cholesky_factor.factor`."""
    *factor, info = _cholesky(list(a))
    return tuple(factor), info


def _qr_run(a: list[Tensor], mode: str) -> list[Tensor]:
    q, r = qr_factors.factor(tuple(a), mode)
    return _own(r) if q is None else _own(q, r)


def _qr_shapes(a: list[Tensor], mode: str) -> list[Tensor]:
    *batch, m, n = a[0].shape
    height = m if mode == "complete" else min(m, n)
    shapes = [(*batch, m, height), (*batch, height, n)]
    return _empty(a, *(shapes[1:] if mode == "r" else shapes))


_qr = operator("qr(Tensor[] a, str mode) -> Tensor[]", _qr_run, _qr_shapes)


def qr(a: Components, mode: str) -> tuple[Components | None, Components]:
    """Factorise as the operator of `qr_factors.factor`."""
    *q, r = _split(_qr(list(a), mode), len(a))
    return (q[0] if q else None), r


def _triangular_run(a: list[Tensor], b: list[Tensor], upper: bool, unit: bool) -> list[Tensor]:
    return _own(triangular.solve(tuple(a), tuple(b), upper=upper, unitriangular=unit))


_triangular = operator(
    "solve_triangular(Tensor[] a, Tensor[] b, bool upper, bool unitriangular) -> Tensor[]",
    _triangular_run,
    lambda a, b, upper, unit: _solved_shape(a, a[0], b, True, False),
)


def solve_triangular(
    a: Components, b: Components, *, upper: bool, left: bool, unitriangular: bool
) -> Components:
    """Solve as the operator of `triangular.solve`."""
    if left:
        return tuple(_triangular(list(a), list(b), upper, unitriangular))
    other = tuple(_triangular([c.mT for c in a], [c.mT for c in b], not upper, unitriangular))
    return transpose(other)


def converged(name: str, a: Sequence[Tensor], done: Tensor) -> None:
    """Raise PyTorch's LinAlgError if an iteration did not converge."""
    if bool(done.all()):
        return
    if not all(bool(c.isfinite().all()) for c in a):
        reason = "the input matrix contained non-finite values"
    else:
        reason = "rotations of its rows do not become small"
    raise LinAlgError(f"linalg.{name}: The algorithm failed to converge because {reason}.")


def _eigh_run(a: list[Tensor], upper: bool) -> list[Tensor]:
    values, vectors, done = eigen.decompose(tuple(a), upper)
    converged("eigh", a, done)
    return _own(values, vectors)


_eigh = operator(
    "eigh(Tensor[] a, bool upper) -> Tensor[]",
    _eigh_run,
    lambda a, upper: _empty(a, a[0].shape[:-1], a[0].shape),
)


def eigh(a: Components, upper: bool) -> tuple[Components, Components]:
    """Decompose as the operator of `eigen.decompose`; raise LinAlgError without convergence."""
    values, vectors = _split(_eigh(list(a), upper), len(a))
    return values, vectors


def _svd_run(a: list[Tensor], full: bool, vectors: bool) -> list[Tensor]:
    u, values, vt, done = singular.decompose(tuple(a), full, vectors)
    converged("svd", a, done)
    return _own(values) if u is None or vt is None else _own(values, u, vt)


def _svd_shapes(a: list[Tensor], full: bool, vectors: bool) -> list[Tensor]:
    *batch, m, n = a[0].shape
    k = min(m, n)
    shapes = [(*batch, k), (*batch, m, m if full else k), (*batch, n if full else k, n)]
    return _empty(a, *(shapes if vectors else shapes[:1]))


_svd = operator("svd(Tensor[] a, bool full, bool vectors) -> Tensor[]", _svd_run, _svd_shapes)


def svd(
    a: Components, full: bool, vectors: bool
) -> tuple[Components | None, Components, Components | None]:
    """Decompose as the operator of `singular.decompose`; raise LinAlgError without convergence."""
    values, *both = _split(_svd(list(a), full, vectors), len(a))
    return (both[0], values, both[1]) if both else (None, values, None)


_matrix_exp = operator(
    "matrix_exp(Tensor[] a) -> Tensor[]",
    lambda a: _own(matrix_exponential.exponential(tuple(a))),
    lambda a: _empty(a, a[0].shape),
)


def matrix_exp(a: Components) -> Components:
    """Compute exponentials as the operator of `matrix_exponential.exponential`."""
    return tuple(_matrix_exp(list(a)))


def _ldl_run(a: list[Tensor]) -> list[Tensor]:
    factors, pivots, info = ldl_factors.factor(tuple(a))
    return [*factors, pivots, info]


def _ldl_shapes(a: list[Tensor]) -> list[Tensor]:
    integers = [_info(a, *a[0].shape[:k]) for k in (-1, -2)]
    return [*_empty(a, a[0].shape), *integers]


_ldl_factor = operator("ldl_factor(Tensor[] a) -> Tensor[]", _ldl_run, _ldl_shapes)


def ldl_factor(a: Components) -> tuple[Components, Tensor, Tensor]:
    """Call `ldl_factors.factor` as an operator that torch.compile does not look into."""
    *factors, pivots, info = _ldl_factor(list(a))
    return tuple(factors), pivots, info


_ldl_solve = operator(
    "ldl_solve(Tensor[] ld, Tensor pivots, Tensor[] b) -> Tensor[]",
    lambda ld, pivots, b: list(ldl_factors.solve(tuple(ld), pivots, tuple(b))),
    lambda ld, pivots, b: _solved_shape(ld, pivots, b, True, False),
)


def ldl_solve(ld: Components, pivots: Tensor, b: Components) -> Components:
    """Call `ldl_factors.solve` as an operator that torch.compile does not look into."""
    return tuple(_ldl_solve(list(ld), pivots, list(b)))


def _reflections_run(a: list[Tensor]) -> list[Tensor]:
    both, tau = qr_factors.reflections(tuple(a))
    return [c.contiguous() for c in (*both, *tau)]


_reflections = operator(
    "reflections(Tensor[] a) -> Tensor[]",
    _reflections_run,
    lambda a: [
        *_empty(a, a[0].shape),
        *_empty(a, (*a[0].shape[:-2], min(a[0].shape[-2:]))),
    ],
)


def reflections(a: Components) -> tuple[Components, Components]:
    """Factorise as the operator of `qr_factors.reflections`."""
    found = _reflections(list(a))
    return tuple(found[: len(a)]), tuple(found[len(a) :])

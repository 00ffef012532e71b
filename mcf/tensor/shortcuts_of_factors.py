"""The same as `mcf.tensor.shortcuts` for factorisations of matrices and what they solve."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mcf.tensor.determinant_plans import determinant, signed_logarithm
from mcf.tensor.exponential_plans import exponential
from mcf.tensor.factor_plans import factored
from mcf.tensor.least_squares_plans import least
from mcf.tensor.lu_plans import factors, inverse, pivoted, solution
from mcf.tensor.reflection_plans import orthogonal
from mcf.tensor.registry import DIRECT
from mcf.tensor.shortcuts import TENSORS, counted, forms, register
from mcf.tensor.spectral_plans import eigenvectors, singular_vectors
from mcf.tensor.tensor import MCFTensor
from mcf.tensor.triangle_plans import root, substituted, substituted_twice

linalg = torch.linalg
_EXPANSIONS = frozenset({MCFTensor})


def _of_one(make: Any, kind: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """A function of a matrix, whose results torch has a type for."""

    def call(a: Any) -> Any:
        found = factored(make, a)
        if found is None:
            return NotImplemented
        return found if kind is None else kind(found)

    return counted(call, 1, kinds=_EXPANSIONS)


# These have replacements, for their derivatives.
for _function in (linalg.det, *forms("det")):
    DIRECT[_function] = _of_one(determinant)
register(_of_one(inverse), linalg.inv, *forms("inverse"))
_kinds: Any = torch.return_types
register(_of_one(signed_logarithm, _kinds.linalg_slogdet), linalg.slogdet)
register(_of_one(signed_logarithm, _kinds.slogdet), *forms("slogdet"))


def _logdet(a: Any) -> Any:
    """The logarithm of determinants that are positive; others are torch's way's."""
    found = factored(signed_logarithm, a)
    if found is None:
        return NotImplemented
    sign, size = found
    first = sign.__dict__["_c0"]
    return size if min(first.reshape(-1).tolist(), default=1.0) > 0 else NotImplemented


for _function in forms("logdet"):
    DIRECT[_function] = counted(_logdet, 1, kinds=_EXPANSIONS)


def _lu_factor(a: Any, pivot: Any = True) -> Any:
    found = factored(pivoted, a) if pivot is True else None
    return NotImplemented if found is None else _kinds.linalg_lu_factor(found)


@functools.lru_cache(64)
def _zeros(size: torch.Size) -> torch.Tensor:
    """What says that no matrix was singular, of which a copy takes a third of a new one's time."""
    with torch.inference_mode(False):
        return torch.zeros(size, dtype=torch.int32, device="cpu")


def _told(make: Any, kind: Callable[[Any], Any], *options: str, count: int = 1) -> Any:
    """A function that says of each matrix whether it was singular, of which plans take none.

    Args:
        make: the plan.
        kind: torch's type of the results and of those numbers behind them.
        *options: names of further arguments, for which plans have `True` alone.
        count: how many matrices it takes.
    """

    def call(*args: Any, check_errors: Any = False, **others: Any) -> Any:
        if type(check_errors) is not bool or any(x is not True for x in others.values()):
            return NotImplemented
        found = factored(make, *args)
        if found is None:
            return NotImplemented
        size = args[0].__dict__["_c0"].shape[:-2]
        info = _zeros(size).clone()
        return kind((*found, info) if type(found) is tuple else (found, info))

    return counted(call, count, "check_errors", *options, kinds=_EXPANSIONS)


def _lu(a: Any, pivot: Any = True) -> Any:
    found = factored(factors, a) if pivot is True else None
    return NotImplemented if found is None else _kinds.linalg_lu(found)


def _cholesky(a: Any, upper: Any = False) -> Any:
    found = factored(root, a, None, upper) if type(upper) is bool else None
    return NotImplemented if found is None else found


def _cholesky_ex(a: Any, upper: Any = False, check_errors: Any = False) -> Any:
    if type(upper) is not bool or check_errors is not False:
        return NotImplemented
    found = factored(root, a, None, upper, True)
    return NotImplemented if found is None else _kinds.linalg_cholesky_ex(found)


def _qr(a: Any = None, mode: Any = "reduced", **others: Any) -> Any:
    if others or type(a) is not MCFTensor or mode not in _MODES:
        return NotImplemented
    found = factored(orthogonal, a, None, mode)
    return NotImplemented if found is None else _kinds.linalg_qr(found)


_MODES = ("reduced", "complete", "r")


def _eigh(a: Any, UPLO: Any = "L") -> Any:
    upper = _TRIANGLES.get(UPLO) if type(UPLO) is str else None
    found = None if upper is None else factored(eigenvectors, a, None, upper, True)
    return NotImplemented if found is None else _kinds.linalg_eigh(found)


def _eigvalsh(a: Any, UPLO: Any = "L") -> Any:
    upper = _TRIANGLES.get(UPLO) if type(UPLO) is str else None
    found = None if upper is None else factored(eigenvectors, a, None, upper, False)
    return NotImplemented if found is None else found[0]


_TRIANGLES = {"L": False, "l": False, "U": True, "u": True}


def _svd(a: Any, full_matrices: Any = True, driver: Any = None) -> Any:
    if type(full_matrices) is not bool or driver is not None:
        return NotImplemented
    found = factored(singular_vectors, a, None, full_matrices, True)
    if found is None:
        return NotImplemented
    values, left, right = found
    return _kinds.linalg_svd((left, values, right))


def _svdvals(a: Any, driver: Any = None) -> Any:
    found = factored(singular_vectors, a, None, False, False) if driver is None else None
    return NotImplemented if found is None else found[0]


def _of_two(implementation: Any, *names: str) -> Callable[..., Any]:
    """A function of a matrix, and of its first option by place too."""
    known = frozenset(names)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not known.issuperset(kwargs) or not 0 < len(args) < 3 or type(args[0]) is not MCFTensor:
            return NotImplemented
        if len(args) == 2 and names[0] in kwargs:
            return NotImplemented
        return implementation(*args, **kwargs)

    return call


register(_of_two(_eigh, "UPLO"), linalg.eigh)
register(_of_two(_eigvalsh, "UPLO"), linalg.eigvalsh)
register(_of_two(_svd, "full_matrices", "driver"), linalg.svd)
register(counted(_svdvals, 1, "driver", kinds=_EXPANSIONS), linalg.svdvals)


def _matrix_exp(a: Any) -> Any:
    found = factored(exponential, a)
    return NotImplemented if found is None else found[0]


register(counted(_matrix_exp, 1, kinds=_EXPANSIONS), linalg.matrix_exp, *forms("matrix_exp"))


def _solve(a: Any, b: Any, left: Any = True) -> Any:
    found = factored(solution, a, b) if left is True else None
    return NotImplemented if found is None else found


def _lstsq(a: Any, b: Any, rcond: Any = None, driver: Any = None) -> Any:
    found = factored(least, a, b) if rcond is None and driver is None else None
    return NotImplemented if found is None else _kinds.linalg_lstsq(found)


def _solve_triangular(
    a: Any, b: Any, upper: Any = None, left: Any = True, unitriangular: Any = False
) -> Any:
    if left is not True or type(upper) is not bool or type(unitriangular) is not bool:
        return NotImplemented
    found = factored(substituted, a, b, upper, unitriangular)
    return NotImplemented if found is None else found


def _lu_solve(lu: Any, pivots: Any, b: Any, left: Any = True, adjoint: Any = False) -> Any:
    if left is not True or adjoint is not False or type(lu) is not MCFTensor:
        return NotImplemented
    if type(b) is not MCFTensor or pivots.dtype is not torch.int32 or pivots.dim() != 1:
        return NotImplemented
    found = factored(substituted_twice, lu, b, beside=(pivots.tolist(),))
    return NotImplemented if found is None else found


register(counted(_lu_solve, 3, "left", "adjoint", kinds=TENSORS), linalg.lu_solve)
register(counted(_lu_factor, 1, "pivot", kinds=_EXPANSIONS), linalg.lu_factor)
register(_told(pivoted, _kinds.linalg_lu_factor_ex, "pivot"), linalg.lu_factor_ex)
register(_told(inverse, _kinds.linalg_inv_ex), linalg.inv_ex)
register(_told(solution, _kinds.linalg_solve_ex, "left", count=2), linalg.solve_ex)
register(counted(_lu, 1, "pivot", kinds=_EXPANSIONS), linalg.lu)
register(counted(_cholesky, 1, "upper", kinds=_EXPANSIONS), linalg.cholesky)
register(counted(_cholesky_ex, 1, "upper", "check_errors", kinds=_EXPANSIONS), linalg.cholesky_ex)
register(_qr, linalg.qr)
register(counted(_lstsq, 2, "rcond", "driver", kinds=_EXPANSIONS), linalg.lstsq)
register(counted(_solve, 2, "left", kinds=_EXPANSIONS), linalg.solve)
register(
    counted(_solve_triangular, 2, "upper", "left", "unitriangular", kinds=_EXPANSIONS),
    linalg.solve_triangular,
)

"""Exact: `out=` of functions with several results, and of linear algebra, has the results without.

Caught mutants: a result that is written before all targets are asked; the targets' order; another
dtype of integers cast in silence; gradients dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from tests.helpers import assert_all_same_bits
from tests.helpers.everyday import everyday

A: Any = mcf.tensor(
    [["4", "1.1", "0.3"], ["1.1", "3", "-1"], ["0.3", "-1", "5.7"]], 2, torch.float64
)
L = torch.linalg
LONG = mcf.tensor([[3 * k * k % 97 - 40 for k in range(20)]] * 2, dtype=torch.float64)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "inv": lambda **o: L.inv(A, **o),
    "inverse": lambda **o: torch.inverse(A, **o),
    "solve": lambda **o: L.solve(A, A[:, :2], **o),
    "solve by name": lambda **o: L.solve(A=A, B=A[0], **o),
    "det": lambda **o: L.det(A, **o),
    "cholesky": lambda **o: L.cholesky(A, **o),
    "eigvalsh": lambda **o: L.eigvalsh(A, **o),
    "svdvals": lambda **o: L.svdvals(A, **o),
    "argsort": lambda **o: torch.argsort(A, dim=0, stable=True, **o),
    "qr": lambda **o: L.qr(A, **o),
    "svd": lambda **o: L.svd(A[:, :2], full_matrices=False, **o),
    "eigh": lambda **o: L.eigh(A, **o),
    "lu": lambda **o: L.lu(A, **o),
    "lu_factor": lambda **o: L.lu_factor(A, **o),
    "slogdet": lambda **o: L.slogdet(A, **o),
    "inv_ex": lambda **o: L.inv_ex(A, **o),
    "cholesky_ex": lambda **o: L.cholesky_ex(A, **o),
    "solve_ex": lambda **o: L.solve_ex(A, A, **o),
    "lstsq": lambda **o: L.lstsq(A[:, :2], A, **o),
    "ldl_factor": lambda **o: L.ldl_factor(A, **o),
    "geqrf": lambda **o: torch.geqrf(A, **o),
    "sort": lambda **o: torch.sort(A, 0, True, **o),
    "topk": lambda **o: torch.topk(A, 2, **o),
    "kthvalue": lambda **o: torch.kthvalue(A, 2, 0, **o),
    "median": lambda **o: torch.median(A, 0, **o),
    "mode": lambda **o: torch.mode(A, 0, **o),
    "max": lambda **o: torch.max(A, 1, True, **o),
    "cummin": lambda **o: torch.cummin(A, 0, **o),
    "aminmax": lambda **o: torch.aminmax(A, dim=0, **o),
    "frexp": lambda **o: torch.frexp(A, **o),
    # Torch composes it of a product with a double and others.
    "ndtr": lambda **o: torch.special.ndtr(A - 4, **o),
    "exp2": lambda **o: torch.exp2(A, **o),
    # As a product with a row it adds up in another order than as a dot product.
    "tensordot": lambda **o: torch.tensordot(LONG / 7, LONG / 11 - 1, 2, **o),
    "matrix_norm": lambda **o: L.matrix_norm(A.bfloat16(), "nuc", **o),
    # Torch leaves the target as it is.
    "matrix_rank": lambda **o: L.matrix_rank(A, **o),
    "lu_unpack": lambda **o: torch.lu_unpack(*L.lu_factor(A), **o),
}
SLOW = [
    n
    for n in FUNCTIONS
    if n not in ("inv", "lu_factor", "sort", "qr", "frexp", "ndtr", "matrix_rank")
]


def _empty(like: Any, shape: tuple[int, ...] = (0,)) -> Any:
    if isinstance(like, mcf.MCFTensor):
        return torch.full(shape, 7.0, dtype=like.dtype) + 0 * A[0, 0].to(like.dtype)
    return torch.full(shape, 7, dtype=like.dtype)


def _flat(found: Any) -> list[torch.Tensor]:
    each = found if isinstance(found, tuple) else (found,)
    return [c for x in each for c in getattr(x, "components", (x,))]


@pytest.mark.parametrize("name", everyday(FUNCTIONS, lambda n: n not in SLOW))
def test_what_is_written_is_the_result(name: str) -> None:
    """Into empty tensors, and into others of the shape; the very targets are returned."""
    wanted = FUNCTIONS[name]()
    several = isinstance(wanted, tuple)
    for filled in (False, True):
        shapes = [tuple(w.shape) if filled else (0,) for w in (wanted if several else (wanted,))]
        targets = [*map(_empty, wanted if several else (wanted,), shapes)]
        found = FUNCTIONS[name](out=tuple(targets) if several else targets[0])
        assert all(a is b for a, b in zip(found if several else (found,), targets, strict=True))
        assert_all_same_bits(_flat(found), _flat(wanted))
    if several:
        assert [k for k in dir(found) if k[0] != "_"] == [k for k in dir(wanted) if k[0] != "_"]


def test_operands_may_be_targets() -> None:
    own, index = A.clone(), torch.empty(0, dtype=torch.int64)
    torch.sort(own, 0, out=(own, index))
    assert_all_same_bits(_flat((own, index)), _flat(torch.sort(A, 0)))
    L.inv(own.copy_(A), out=own)
    assert_all_same_bits(own.components, L.inv(A).components)


def _refused(error: type[Exception], match: str, out: Any, call: Callable[..., Any]) -> None:
    before = [c.clone() for x in out for c in _flat(x) if isinstance(x, torch.Tensor)]
    with pytest.raises(error, match=match):
        call(out)
    assert_all_same_bits([c for x in out for c in _flat(x) if isinstance(x, torch.Tensor)], before)


def test_nothing_is_written_where_a_target_is_refused() -> None:
    index, values = torch.zeros(3, 3, dtype=torch.int64), torch.zeros_like(A)
    sort = lambda out: torch.sort(A, 0, out=out)  # noqa: E731
    _refused(mcf.UnsupportedError, "round its result", (torch.zeros(3, 3), index), sort)
    _refused(RuntimeError, "dtype torch.int64, but got torch.int32", (values, index.int()), sort)
    _refused(RuntimeError, "an expansion of torch.float64", (values, values.clone()), sort)
    _refused(TypeError, "tuple of 2 tensors, got 1", (values,), sort)
    _refused(TypeError, "tuple of 2 tensors, got 3", (values, index, index.clone()), sort)
    # By torch's own reading of arguments.
    for call in (
        lambda: torch.sort(A, 0, out=values),
        lambda: torch.sort(A, 0, out=(values, 3)),
        lambda: L.inv(A, out=(values,)),
    ):
        with pytest.raises(TypeError):
            call()
    assert values.count_nonzero() == 0
    # A matrix that is singular: as without out=.
    with pytest.raises(torch.linalg.LinAlgError):
        L.inv(A * 0, out=values)


def test_what_requires_grad_is_refused() -> None:
    """As torch does; without a gradient it is written."""
    x, index = A.clone().requires_grad_(), torch.zeros(3, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.sort(x, 0, out=(torch.zeros_like(A), index))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        L.inv(A, out=torch.zeros_like(A).requires_grad_())
    with torch.no_grad():
        found = torch.sort(x, 0, out=(torch.zeros_like(A), index))
    assert_all_same_bits(_flat(found), _flat(torch.sort(A, 0)))

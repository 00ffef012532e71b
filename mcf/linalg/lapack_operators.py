"""LDL factors and LAPACK-style reflections as opaque operators."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.linalg import ldl_factors, qr_factors, triangular
from mcf.linalg.opaque_decompositions import operator
from mcf.linalg.parts import Components


def _empty(a: list[Tensor], *shape: int) -> list[Tensor]:
    return [c.new_empty(list(shape)) for c in a]


def _ldl_run(a: list[Tensor]) -> list[Tensor]:
    factors, pivots, info = ldl_factors.factor(tuple(a))
    return [*factors, pivots, info]


def _ldl_shapes(a: list[Tensor]) -> list[Tensor]:
    integers = [a[0].new_empty(list(a[0].shape[:k]), dtype=torch.int32) for k in (-1, -2)]
    return [*_empty(a, *a[0].shape), *integers]


_ldl_factor = operator("ldl_factor(Tensor[] a) -> Tensor[]", _ldl_run, _ldl_shapes)


def ldl_factor(a: Components) -> tuple[Components, Tensor, Tensor]:
    """Factorise as the operator of `ldl_factors.factor`."""
    *factors, pivots, info = _ldl_factor(list(a))
    return tuple(factors), pivots, info


_ldl_solve = operator(
    "ldl_solve(Tensor[] ld, Tensor pivots, Tensor[] b) -> Tensor[]",
    lambda ld, pivots, b: list(ldl_factors.solve(tuple(ld), pivots, tuple(b))),
    lambda ld, pivots, b: _empty(b, *triangular.broadcast(tuple(ld), tuple(b)), *b[0].shape[-2:]),
)


def ldl_solve(ld: Components, pivots: Tensor, b: Components) -> Components:
    """Solve as the operator of `ldl_factors.solve`."""
    return tuple(_ldl_solve(list(ld), pivots, list(b)))


def _reflections_run(a: list[Tensor]) -> list[Tensor]:
    both, tau = qr_factors.reflections(tuple(a))
    return [c.contiguous() for c in (*both, *tau)]


_reflections = operator(
    "reflections(Tensor[] a) -> Tensor[]",
    _reflections_run,
    lambda a: [
        *_empty(a, *a[0].shape),
        *_empty(a, *a[0].shape[:-2], min(a[0].shape[-2:])),
    ],
)


def reflections(a: Components) -> tuple[Components, Components]:
    """Factorise as the operator of `qr_factors.reflections`."""
    found = _reflections(list(a))
    return tuple(found[: len(a)]), tuple(found[len(a) :])

"""Matrices of expansions for tests of linear algebra, and their exact values."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.linalg.parts import Components, each, padded
from tests.helpers.draws import power_of_two
from tests.helpers.exactly import UNIT, integers

Exact = np.ndarray[Any, np.dtype[np.object_]]
# A matrix that `exact` returns is in these units, a product in their square.
ONE = 1 << -UNIT


def exact(x: Components) -> Exact:
    """The values as integers in units of 2^UNIT."""
    total: Exact = sum(integers(c) for c in x).reshape(x[0].shape)  # type: ignore[union-attr]
    return total


def size(x: Exact) -> int:
    """The square of the Frobenius norm, exactly."""
    return int((x * x).sum())


def uniform(dtype: torch.dtype, terms: int, *shape: int, seed: int = 0) -> Components:
    """Numbers of all components in (-1, 1), of integers and powers of two."""
    g = torch.Generator().manual_seed(seed + sum(shape))
    u = float(format_of(dtype).u)

    def numbers() -> torch.Tensor:
        return torch.randint(-(2**20), 2**20, shape, generator=g).double() * 2.0**-20

    parts = [numbers().to(dtype)]
    for _ in range(1, terms):
        parts.append((numbers() * parts[-1].double() * u).to(dtype))
    return operations.renormalize(tuple(parts), terms)


def symmetric(x: Components) -> Components:
    """The lower triangle, mirrored."""
    return each(lambda c: c.tril() + c.tril(-1).mT, x)


def plain(x: torch.Tensor, terms: int) -> Components:
    """A plain tensor as an expansion."""
    return padded((x,), terms)


def graded(terms: int, n: int) -> Components:
    """Rows that differ by 2^150 each, from 2^-450 to 2^450 for n = 7."""
    x = uniform(torch.float64, terms, n, n, seed=3)
    factor = power_of_two(150 * (torch.arange(n) - n // 2))
    return each(lambda c: c * factor[:, None], x)

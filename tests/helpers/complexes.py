"""Complex expansions for tests, and their errors by mpmath with more bits than they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import torch

import mcf
from mcf.linalg.parts import each
from tests.helpers.draws import power_of_two
from tests.helpers.matrices import uniform

# Products of two float64 numbers of four components have fewer bits but for wide gaps.
BITS = 1200


def numbers(
    dtype: torch.dtype, terms: int, *shape: int, seed: int = 0, exponent: int = 0, real: float = 0.0
) -> Any:
    """Both parts in (-2^exponent, 2^exponent), of all components; plus a real number."""
    scale = power_of_two(torch.tensor(exponent)).item()
    x, y = (
        mcf.MCFTensor(each(lambda c: c * scale, uniform(dtype, terms, *shape, seed=seed + k)))
        for k in (0, 1000)
    )
    return mcf.complex(x + real if real else x, y)


def flat(z: Any) -> list[Any]:
    """The elements as mpmath's numbers, exactly."""
    found: list[Any] = z.reshape(-1).to_mpmath()
    return found


def worst(result: Any, exact: Callable[..., Any], *arguments: Any, absolute: float = 0.0) -> float:
    """The largest |r - t| - absolute, relative to |t|."""
    found = mpmath.mpf(0)
    with mpmath.workprec(BITS):
        for r, *given in zip(flat(result), *map(flat, arguments), strict=True):
            if not mpmath.isfinite(r):
                return float("inf")
            t = exact(*given)
            error = max(abs(r - t) - absolute, mpmath.mpf(0))
            if error:
                found = max(found, error / abs(t))
    return float(found)


def with_real(result: Any) -> Any:
    """A real result as a complex one."""
    return result if isinstance(result, mcf.MCFComplexTensor) else mcf.complex(result, 0)

"""Complex expansions for tests, and their errors by mpmath with more bits than they have."""

from __future__ import annotations

import math
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


def agrees_with_torch(function: Callable[[Any], Any], t: torch.Tensor, near: float) -> None:
    """Values and gradients are those that PyTorch computes in complex128, but for its errors.

    Args:
        function: returns a tensor, or several.
        t: complex128 numbers.
        near: the tolerance, relative and absolute.
    """
    t = t.detach().requires_grad_()
    z = mcf.complex_tensor(t.detach(), 2, torch.float64, requires_grad=True)
    found = []
    for given in (t, z):
        out = function(given)
        found.append(list(out) if isinstance(out, tuple) else [out])
        loss: Any = 0
        for k, x in enumerate(found[-1]):
            g = torch.arange(1.0, 1 + math.prod(x.shape), dtype=torch.float64).reshape(x.shape)
            g = g % 5 + k
            loss = loss + (x.real * g).sum() + ((x.imag * (g - 2)).sum() if x.is_complex() else 0)
        loss.backward()
    for want, ours in zip(*found, strict=True):
        assert ours.shape == want.shape
        assert torch.allclose(ours.detach().to_plain(), want.detach(), rtol=near, atol=near)
    assert torch.allclose(z.grad.to_plain(), t.grad, rtol=near, atol=near)

"""Transforms of real sequences of even length n = 2m, computed as complex ones of length m.

With z_j = x_2j + i x_(2j+1), Z its transform, Z_m = Z_0 and w = exp(-2 pi i / n) the transform of x
begins with X_k = (Z_k + conj(Z_(m-k)) - i w^k (Z_k - conj(Z_(m-k)))) / 2, k = 0 ... m; and back,
2 Z_k = X_k + conj(X_(m-k)) + i w^-k (X_k - conj(X_(m-k))).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mcf.complexes.tensor import pair
from mcf.expansions.tensor import wrap
from mcf.fourier.opaque_transforms import turns
from mcf.kernels.components import Components

# From this length on the shorter transform and its postprocessing are faster than the full one.
HALVED = 4096

# A transform of [m, columns] with exp(sign 2 pi i / m).
Transform = Callable[[Any, Any, int], tuple[Any, Any]]


def halved(n: int) -> bool:
    """Return whether a real sequence of this length is transformed as a complex one."""
    return n % 2 == 0 and n >= HALVED


def _turns(n: int, sign: int, like: Components) -> Any:
    """Return sign i exp(sign 2 pi i k / n) for k = 0 ... n / 2, as a column, rounded once."""
    found = turns(like, n, sign)
    return pair(*(wrap([c[k] for c in found]) for k in (0, 1)))


def _mixed(z: Any, n: int, sign: int) -> Any:
    """Return z_k + conj(z_(m-k)) + sign i w (z_k - conj(z_(m-k))) for k = 0 ... m."""
    mirror = torch.conj(torch.flip(z, (0,)))
    part = (z - mirror) * _turns(n, sign, z.real.components)
    return (z + mirror) + part


def forward(x: Any, transform: Transform) -> Any:
    """Return the first m + 1 numbers of the transform of x [n, columns]."""
    n, columns = x.shape
    real, imag = (p.contiguous() for p in x.reshape(n // 2, 2, columns).unbind(1))
    found: Any = pair(*transform(real, imag, -1))
    whole: Any = torch.cat((found, found[:1]))
    return _mixed(whole, n, -1) * 0.5


def backward(x: Any, n: int, transform: Transform) -> Any:
    """Return n times the real [n, columns] whose transform begins with x [m + 1, columns]."""
    zero = torch.zeros_like(x.imag[:1])
    # The first and the last number have no imaginary part.
    z = pair(x.real, torch.cat((zero, x.imag[1:-1], zero)))
    both = _mixed(z, n, 1)[:-1]
    real, imag = transform(both.real.contiguous(), both.imag.contiguous(), 1)
    whole: Any = torch.stack((real, imag), 1)
    return whole.reshape(n, x.shape[1])

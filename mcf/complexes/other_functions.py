"""Functions of complex expansions composed of other functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mcf.complexes.complex_elementary import holomorphic
from mcf.complexes.tensor import implements
from mcf.elementary import fixed
from mcf.expansions.ops.elementary.constants import constant

holomorphic("expm1", derivative=lambda z, f: torch.exp(z))
holomorphic("log1p", derivative=lambda z, f: 1 / (1 + z))
holomorphic("log2", derivative=lambda z, f: 1 / (z * constant(fixed.ln2(), z.real)))
holomorphic("log10", derivative=lambda z, f: 1 / (z * constant(fixed.ln10(), z.real)))


def _lengthened(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compute a function with one more component (at most four): products of z are rounded."""

    @functools.wraps(function)
    def call(z: Any) -> Any:
        if z.terms == 4:
            return function(z)
        found: Any = function(z.to(z.dtype, terms=z.terms + 1))
        return found.to(z.dtype, terms=z.terms)

    return call


@implements("exp2", "special_exp2")
@_lengthened
def exp2(z: Any) -> Any:
    """Return exp(z log 2)."""
    return torch.exp(z * constant(fixed.ln2(), z.real))


@implements("sinc", "special_sinc")
@_lengthened
def sinc(z: Any) -> Any:
    """Return sin(pi z) / (pi z), 1 at 0; z is reduced by the integer nearest to its real part."""
    pi = constant(fixed.pi(), z.real)
    zero = (z.real == 0) & (z.imag == 0)
    whole: Any = z.real.detach().round()
    safe = torch.where(zero, 1.0, z)
    near = torch.where(zero, 0.25, z - whole)
    wave = torch.sin(pi * near) / (pi * safe)
    odd = whole.remainder(2) == 1
    return torch.where(zero, 1.0, torch.where(odd, -wave, wave))


@implements("float_power")
def float_power(x: Any, y: Any) -> Any:
    """Return x**y in float64 components."""
    return _wide(x) ** _wide(y)


def _wide(v: Any) -> Any:
    if not hasattr(v, "terms"):
        return v
    return v if v.dtype is torch.float64 else v.to(torch.float64)


implements("silu")(lambda z, inplace=False: z * torch.sigmoid(z))
implements("softsign")(lambda z: z / (1 + abs(z)))
implements("tanhshrink")(lambda z: z - torch.tanh(z))

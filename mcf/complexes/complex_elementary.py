"""Register elementary functions of complex expansions, and functions composed of them.

Each has a bound in `mcf.bound("complex_exp", ...)`, relative to the modulus of the result, or to
each part for those marked componentwise there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mcf.complexes.arithmetic import planned, unrecorded
from mcf.complexes.each_part import halves, node
from mcf.complexes.tensor import MCFComplexTensor, gradient, implements, made, untraced
from mcf.elementary import fixed
from mcf.elementary.fused import Formula
from mcf.elementary.operator import apply
from mcf.expansions.dispatch.recorded import functorch
from mcf.expansions.ops.arithmetic.constants import constant


def holomorphic(
    name: str, *names: str, derivative: Callable[[Any, Any], Any]
) -> Callable[[Any], MCFComplexTensor]:
    """Register a complex function, with its derivative, for PyTorch's function of that name.

    Args:
        name: of PyTorch's function; our program's name has "complex_" before it.
        *names: other names that PyTorch has for it.
        derivative: f' as a function of z and f(z); the gradient is multiplied by its conjugate.
    """
    formula = Formula(f"complex_{name}")

    def computed(x: Any, y: Any) -> tuple[Any, Any]:
        return halves(apply(formula.name, x.components, y.components))

    def backward(saved: Any, grads: Any) -> tuple[Any, Any]:
        z: Any = MCFComplexTensor(*saved)
        # Recompute f(z), so that the derivative can be differentiated again.
        g: Any = gradient(grads) * torch.conj(derivative(z, call(z)))
        return g.real, g.imag

    function = node(name, computed, backward)

    def call(z: MCFComplexTensor) -> MCFComplexTensor:
        x, y = z.real, z.imag
        if functorch() is not None or (
            torch.is_grad_enabled() and (x.requires_grad or y.requires_grad)
        ):
            return MCFComplexTensor(*function.apply(x, y))
        found = planned(formula, x, y) if unrecorded((x, y)) else None
        return made(*computed(x.detach(), y.detach())) if found is None else found

    call.__name__ = name
    found = untraced(call)
    implements(name, *names)(found)
    return found


def _cofactor(z: Any) -> Any:
    """Return sqrt(1 - z^2)."""
    return torch.sqrt(1 - z) * torch.sqrt(1 + z)


holomorphic("exp", derivative=lambda z, f: f)
holomorphic("sinh", derivative=lambda z, f: torch.cosh(z))
holomorphic("cosh", derivative=lambda z, f: torch.sinh(z))
holomorphic("sin", derivative=lambda z, f: torch.cos(z))
holomorphic("cos", derivative=lambda z, f: -torch.sin(z))
holomorphic("tanh", derivative=lambda z, f: 1 - f * f)
holomorphic("tan", derivative=lambda z, f: 1 + f * f)
holomorphic("log", derivative=lambda z, f: 1 / z)
holomorphic("sqrt", derivative=lambda z, f: 1 / (2 * f))
holomorphic("asin", "arcsin", derivative=lambda z, f: 1 / _cofactor(z))
holomorphic("acos", "arccos", derivative=lambda z, f: -1 / _cofactor(z))
holomorphic("atan", "arctan", derivative=lambda z, f: 1 / ((1 + 1j * z) * (1 - 1j * z)))
holomorphic("asinh", "arcsinh", derivative=lambda z, f: 1 / _cofactor(1j * z))
holomorphic("acosh", "arccosh", derivative=lambda z, f: 1 / (torch.sqrt(z - 1) * torch.sqrt(z + 1)))
holomorphic("atanh", "arctanh", derivative=lambda z, f: 1 / ((1 + z) * (1 - z)))
implements("sigmoid")(lambda z: (1 + torch.tanh(z / 2)) / 2)
implements("rsqrt")(lambda z: 1 / torch.sqrt(z))


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

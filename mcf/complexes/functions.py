"""Elementary functions of complex expansions, of real ones of their parts.

Each has a bound in `mcf.bound("complex_exp", ...)`, relative to the modulus of the result; of
those marked componentwise it holds for each part. Infinities and NaN are what the formulas make of
them, but for what a function says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mcf.complexes.tensor import MCFComplexTensor, gradient, implements
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import refuse_float32
from mcf.tensor.tensor import wrap

Parts = tuple[Any, Any]


def holomorphic(
    *names: str, derivative: Callable[[Any, Any], Any]
) -> Callable[[Callable[[Any, Any], Parts]], Callable[[Any], MCFComplexTensor]]:
    """Register a function of parts for torch's functions of the names, with its derivative.

    Args:
        *names: of torch's functions.
        derivative: f' as a function of z and f(z); the gradient is multiplied by its conjugate.
    """

    def register(function: Callable[[Any, Any], Parts]) -> Callable[[Any], MCFComplexTensor]:
        def forward(ctx: Any, x: Any, y: Any) -> Parts:
            ctx.save_for_backward(x, y)
            ctx.set_materialize_grads(False)
            return rounded(function, x.detach(), y.detach())

        def backward(ctx: Any, *grads: Any) -> Parts:
            z: Any = MCFComplexTensor(*ctx.saved_tensors)
            # Computed again, so that it may be differentiated again.
            g: Any = gradient(grads) * torch.conj(derivative(z, call(z)))
            return g.real, g.imag

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        node: Any = type(names[0], (torch.autograd.Function,), members)

        def call(z: MCFComplexTensor) -> MCFComplexTensor:
            if torch.is_grad_enabled() and z.requires_grad:
                return MCFComplexTensor(*node.apply(z.real, z.imag))
            return MCFComplexTensor(*rounded(function, z.real.detach(), z.imag.detach()))

        call.__doc__ = function.__doc__
        implements(*names)(call)
        return call

    return register


def rounded(function: Callable[[Any, Any], Parts], x: Any, y: Any) -> Parts:
    """The function in float64 components for narrower formats, two at least, rounded to theirs.

    So it has the range of float64, as real elementary functions have. Of float64 it is computed in
    as many components as it has.
    """
    if x.dtype is torch.float64:
        return function(x, y)
    refuse_float32("a complex function", format_of(x.dtype), x.device)
    wide = (v.to(torch.float64, terms=max(2, v.terms)) for v in (x, y))
    real, imag = function(*wide)
    return real.to(x.dtype, terms=x.terms), imag.to(x.dtype, terms=x.terms)


def _held(y: Any, value: Any) -> Any:
    """y where it is a zero, whose sign the result keeps; else the value."""
    return torch.where(y == 0, y, value)


@holomorphic("exp", derivative=lambda z, f: f)
def exp(x: Any, y: Any) -> Parts:
    """e^x (cos y + i sin y), componentwise; real for real z, and 0 for x = -inf and finite y."""
    size = torch.exp(x)
    return size * torch.cos(y), _held(y, size * torch.sin(y))


@holomorphic("sinh", derivative=lambda z, f: torch.cosh(z))
def sinh(x: Any, y: Any) -> Parts:
    """sinh x cos y + i cosh x sin y, componentwise."""
    return _held(x, torch.sinh(x) * torch.cos(y)), _held(y, torch.cosh(x) * torch.sin(y))


@holomorphic("cosh", derivative=lambda z, f: torch.sinh(z))
def cosh(x: Any, y: Any) -> Parts:
    """cosh x cos y + i sinh x sin y, componentwise."""
    imag = torch.sinh(x) * torch.sin(y)
    return torch.cosh(x) * torch.cos(y), torch.where((x == 0) | (y == 0), x * y, imag)


@holomorphic("sin", derivative=lambda z, f: torch.cos(z))
def sin(x: Any, y: Any) -> Parts:
    """-i sinh(iz): sin x cosh y + i cos x sinh y, componentwise."""
    found = sinh(MCFComplexTensor(-y, x))
    return found.imag, -found.real


@holomorphic("cos", derivative=lambda z, f: -torch.sin(z))
def cos(x: Any, y: Any) -> Parts:
    """cosh(iz): cos x cosh y - i sin x sinh y, componentwise."""
    found = cosh(MCFComplexTensor(-y, x))
    return found.real, found.imag


@holomorphic("tanh", derivative=lambda z, f: 1 - f * f)
def tanh(x: Any, y: Any) -> Parts:
    """(t + i s c q) / (t^2 + c^2 q), t = tanh x, q = 1 / cosh^2 x, s = sin y, c = cos y.

    Componentwise: the denominator is a sum of squares, and nothing overflows.
    """
    t, s, c = torch.tanh(x), torch.sin(y), torch.cos(y)
    q = torch.square(1 / torch.cosh(x))
    size = torch.square(t) + torch.square(c) * q
    return _held(x, t / size), _held(y, s * c * q / size)


@holomorphic("tan", derivative=lambda z, f: 1 + f * f)
def tan(x: Any, y: Any) -> Parts:
    """-i tanh(iz), componentwise."""
    found = tanh(MCFComplexTensor(-y, x))
    return found.imag, -found.real


@holomorphic("log", derivative=lambda z, f: 1 / z)
def log(x: Any, y: Any) -> Parts:
    """log |z| + i atan2(y, x), the principal value; -inf for 0.

    With p >= q the moduli of the parts log |z| is log1p((p - 1)(p + 1) + q^2) / 2 for p from 1/2 to
    sqrt(2), which loses nothing near 1, else log p + log1p((q / p)^2) / 2.
    """
    a, b = torch.abs(x), torch.abs(y)
    p, q = torch.maximum(a, b), torch.minimum(a, b)
    near = (p >= 0.5) & (p <= 1.4140625)
    one = torch.where(near, p, 1.0)
    middle = torch.log1p((one - 1) * (one + 1) + torch.square(torch.where(near, q, 0.0))) / 2
    plain = (p == 0) | torch.isinf(p)
    ratio = torch.where(plain, 0.0, q) / torch.where(plain, 1.0, p)
    wide = torch.log(p) + torch.log1p(torch.square(ratio)) / 2
    return torch.where(near, middle, wide), torch.atan2(y, x)


@holomorphic("sqrt", derivative=lambda z, f: 1 / (2 * f))
def sqrt(x: Any, y: Any) -> Parts:
    """The root whose real part is not negative, componentwise.

    It is t + iy / 2t with t = sqrt((|x| + |z|) / 2); for x < 0 the moduli change places. z is
    scaled by an even power of two first.
    """
    largest: Any = torch.maximum(torch.abs(x), torch.abs(y))
    size = largest.components[0]
    half = torch.div(torch.frexp(size)[1].long(), 2, rounding_mode="floor")
    a, b = (wrap(operations.ldexp(v.components, -2 * half)) for v in (x, y))
    t: Any = torch.sqrt((torch.abs(a) + torch.hypot(a, b)) / 2)
    other: Any = torch.where(b == 0, 0.0, torch.abs(b)) / torch.where(t == 0, 1.0, 2 * t)
    t, other = (wrap(operations.ldexp(v.components, half)) for v in (t, other))
    back = torch.signbit(x)
    imag = torch.copysign(torch.where(back, t, other), y)
    return torch.where(back, other, t), imag


implements("sigmoid")(lambda z: (1 + torch.tanh(z / 2)) / 2)
implements("rsqrt")(lambda z: 1 / torch.sqrt(z))

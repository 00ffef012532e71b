"""Implement powers, `exp2` and `ldexp`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.elementary.operator import apply
from mcf.elementary.power import EXPONENTS, name_of, serves
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.launch.operations import planned, selected
from mcf.expansions.ops.arithmetic.arithmetic import reciprocal_times
from mcf.expansions.ops.elementary.constants import in_format
from mcf.expansions.ops.elementary.elementary import of_two
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import FP64, format_of
from mcf.kernels.operators import MUL
from mcf.kernels.register_choice import registers_for

aten = torch.ops.aten


@implements(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(x: Any, y: Any) -> Any:
    """Return x**y; by products or a reciprocal if y is 2, -1 or another small half-integer."""
    if isinstance(y, int | float) and isinstance(x, MCFTensor):
        if y == 2:
            return planned(MUL, x, x)
        if y == 1:
            return wrap([c.clone() for c in x.components])
        if y == -1:
            return reciprocal_times(x, 1)
        # `x.dtype` would go through `__torch_function__`.
        fmt = format_of(x.__dict__["_c0"].dtype)
        if y in EXPONENTS and serves(x.terms) and registers_for(fmt, x.device) is FP64:
            return _of_few_products(y, x)
    return of_two("pow", x, y)


def _of_few_products(k: float, x: MCFTensor) -> MCFTensor:
    name = name_of(k)
    found = selected(Formula(name), x)
    return wrap(apply(name, x.components)) if found is None else found


@implements(torch.pow, Tensor.pow, Tensor.__pow__)
def _power(x: Any, y: Any) -> Any:
    """Return x**y; convert a scalar base to an expansion, so that its logarithm has all components.

    A scalar exponent that is no half-integer is converted too if x requires grad: the derivative
    has the exponent y - 1.
    """
    if not recorded(x) and (type(y) in (int, float) or not recorded(y)):
        return power(x, y)
    if not isinstance(x, Tensor):
        x = tensor(x, y.terms, y.dtype, y.device)
    differs = torch.is_grad_enabled() and x.requires_grad
    if differs and isinstance(y, float) and not (2 * y).is_integer():
        y = tensor(y, x.terms, x.dtype, x.device)
    return forward(torch.pow, (x, y), {})


@implements(torch.float_power, Tensor.float_power)
def float_power(x: Any, y: Any) -> Any:
    """Return x**y with float64 components."""
    x, y = (v.to(torch.float64) if isinstance(v, Tensor) else v for v in (x, y))
    return _power(x, y)


@implements(Tensor.__rpow__)
def rpow(y: Any, x: Any) -> Any:
    """Return x**y for `Tensor.__rpow__`, whose first argument is the exponent."""
    return _power(x, y)


@implements(torch.exp2, Tensor.exp2, torch.special.exp2)
def exp2(x: Any) -> Any:
    """Return 2**x."""
    return _power(2.0, x)


@implements(torch.ldexp, Tensor.ldexp)
def ldexp(x: Any, other: Any) -> Any:
    """Return x 2**other by products with powers of two, exact while all components are in range.

    For integer exponents 2**other may be out of range; for others the result is x * 2**other.
    """
    like = x if isinstance(x, MCFTensor) else other
    x = in_format(x, like)
    if isinstance(other, Tensor) and other.is_floating_point():
        return x * torch.exp2(other)
    fmt = format_of(x.dtype)
    # An int8 exponent cannot hold the exponent range of a format.
    e = torch.as_tensor(other, device=x.device).to(torch.int64)
    # After three steps the result is zero or infinite.
    for _ in range(3):
        step = e.clamp(fmt.emin, fmt.emax)
        e = e - step
        x = x * torch.ldexp(torch.ones_like(step, dtype=torch.float64), step).to(x.dtype)
    return x


@implements(Tensor.ldexp_)
def ldexp_(x: Any, other: Any) -> Any:
    """Multiply x by 2**other in place."""
    return x.copy_(ldexp(x, other))

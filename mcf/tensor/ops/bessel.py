"""Bessel functions: the operators and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.ops.elementary import Unary, computed, differentiable
from mcf.tensor.recorded import transformed
from mcf.tensor.registry import UnsupportedError, implements

aten = torch.ops.aten


def _over(value: Any, x: Any) -> Any:
    """value / x, whose limit at 0 is 1/2."""
    zero = x == 0
    quotient = value / torch.where(zero, torch.ones_like(x), x)
    return torch.where(zero, torch.full_like(x, 0.5), quotient)


def _undifferentiated(torch_name: str, function: Unary) -> Unary:
    """A function as the operator that torch.func's derivatives see, to which it is a constant."""

    def run(x: Any) -> Any:
        if transformed():
            raise UnsupportedError(
                f"torch.special.{torch_name} of an expansion tensor under torch.func.grad, vjp or "
                "jvp, where torch takes its derivative to be zero: use backward or "
                "torch.autograd.grad, which have it"
            )
        return function(x)

    return run


# torch's derivatives take a constant for small arguments.
_i0 = differentiable("i0", computed("i0"), lambda x: torch.special.i1(x))
_i0e = differentiable(
    "i0e",
    computed("i0e"),
    lambda x: torch.special.i1e(x) - x.sign() * torch.special.i0e(x),
)
_i1 = differentiable(
    "i1", computed("i1"), lambda x: torch.special.i0(x) - _over(torch.special.i1(x), x)
)


def _slope(x: Any) -> Any:
    value = torch.special.i1e(x)
    return torch.special.i0e(x) - x.sign() * value - _over(value, x)


_i1e = differentiable("i1e", computed("i1e"), _slope)

implements(torch.i0, Tensor.i0, torch.special.i0, torch.special.modified_bessel_i0)(_i0)
implements(torch.special.i0e)(_i0e)
implements(torch.special.i1, torch.special.modified_bessel_i1)(_i1)
implements(torch.special.i1e)(_i1e)
implements(aten.i0.default)(computed("i0"))
implements(aten.special_i0e.default)(computed("i0e"))
implements(aten.special_i1.default)(computed("i1"))
implements(aten.special_i1e.default)(computed("i1e"))
for _name in ("i0", "i1"):
    _operator = getattr(aten, f"special_modified_bessel_{_name}").default
    implements(_operator)(_undifferentiated(f"modified_bessel_{_name}", computed(_name)))


def _special(name: str, torch_name: str, derivative: Callable[[Any], Any]) -> Any:
    """Register a function of torch.special, which has no derivative there."""
    function = computed(name)
    ours = differentiable(name, function, derivative)
    implements(getattr(torch.special, torch_name))(ours)
    operator = getattr(aten, f"special_{torch_name}").default
    implements(operator)(_undifferentiated(torch_name, function))
    return ours


_k0: Any = _special("k0", "modified_bessel_k0", lambda x: -_k1(x))
_k1: Any = _special("k1", "modified_bessel_k1", lambda x: -_k0(x) - _k1(x) / x)
_k0e: Any = _special("k0e", "scaled_modified_bessel_k0", lambda x: _k0e(x) - _k1e(x))
_k1e: Any = _special(
    "k1e", "scaled_modified_bessel_k1", lambda x: (_k1e(x) - _k0e(x)) - _k1e(x) / x
)


# J_1(x) / x is 1/2 at 0.
_j0: Any = _special("j0", "bessel_j0", lambda x: -_j1(x))
_j1: Any = _special("j1", "bessel_j1", lambda x: _j0(x) - _over(_j1(x), x))
_y0: Any = _special("y0", "bessel_y0", lambda x: -_y1(x))
_y1: Any = _special("y1", "bessel_y1", lambda x: _y0(x) - _y1(x) / x)


def _spherical_slope(x: Any) -> Any:
    """(cos(x) - j_0(x)) / x, 0 at 0; what cancels for small x is lost, as in sinc's."""
    zero = x == 0
    slope = (x.cos() - _spherical(x)) / torch.where(zero, torch.ones_like(x), x)
    return torch.where(zero, torch.zeros_like(x), slope)


_spherical = _special("spherical_bessel_j0", "spherical_bessel_j0", _spherical_slope)

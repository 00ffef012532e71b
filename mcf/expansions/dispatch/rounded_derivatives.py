"""Refuse derivatives that torch.func would round to double precision.

Above autograd these functions have derivatives of our own. A transform of torch.func uses torch's,
whose constants are doubles (1 / log(2), 2 / sqrt(pi), 2 / (count - 1)) or which cancel. The
operators can only detect this from the call stack.

Autograd would record torch's own in-place form with torch's derivative. The in-place forms here
copy the function's result, so the copy carries our derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import (
    DERIVATIVES,
    FORWARD,
    _duals,
    differentiated,
    pulling,
    transformed,
)
from mcf.expansions.dispatch.registry import FUNCTIONS, OPERATORS, UnsupportedError, forms, readable
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.ops.forms.natives import wide
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import format_of

aten = torch.ops.aten

# Precision of torch's constants, in bits.
_DOUBLE = 53


_CONSTANTS = "has constants of double precision"


def _refused(
    func: Any, callers: frozenset[str], where: str, bits: int = _DOUBLE, why: str = _CONSTANTS
) -> None:
    implementation = OPERATORS[func]

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, MCFTensor) and x.terms * format_of(x.dtype).p > bits:
            if transformed(callers):
                raise UnsupportedError(
                    f"{readable(func)} of {x.terms} components of {x.dtype} under {where}: torch's "
                    f"derivative {why}; use backward or torch.autograd.grad, which compute all "
                    "components"
                )
        return implementation(x, *args, **kwargs)

    OPERATORS[func] = run


for _func in (
    aten.log2.default, aten.log10.default, aten.erf.default, aten.erfc.default,
    aten.erfinv.default, aten.special_erfcx.default, aten.special_ndtri.default,
    aten.special_log_ndtr.default, aten.sinc.default, aten.deg2rad.default, aten.rad2deg.default,
    aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction,
):  # fmt: skip
    _refused(_func, DERIVATIVES, "torch.func.grad, vjp or jvp")
_refused(aten.logcumsumexp.default, FORWARD, "torch.func.jvp")
_refused(
    aten.trace.default, DERIVATIVES - FORWARD, "torch.func.grad or vjp",
    bits=0, why="is a plain tensor (x.diagonal().sum() has one of expansions)",
)  # fmt: skip


_NUMBERS = (int, float)


def _exact(x: float, y: float) -> bool:
    """Return whether the difference of two doubles is exact."""
    return not math.isfinite(x - y) or Fraction(x - y) == Fraction(x) - Fraction(y)


def _plain(x: Any) -> bool:
    """Return whether x is a plain float tensor: torch computes with it in its own precision."""
    return isinstance(x, Tensor) and not isinstance(x, MCFTensor) and x.is_floating_point()


def _of_powers(x: Any, y: Any, *rest: Any) -> str | None:
    if not isinstance(x, MCFTensor) and x is not None and not (isinstance(x, _NUMBERS) and x == 1):
        return "the logarithm of the base"
    if isinstance(y, _NUMBERS) and not _exact(float(y), 1.0):
        return f"the exponent {y} less 1"
    return "the exponents less 1" if _plain(y) and not _whole_halves(y) else None


def _whole_halves(y: Tensor) -> bool:
    twice = 2 * y
    return bool((twice == twice.trunc()).all())


def _of_lerps(x: Any, end: Any, weight: Any) -> str | None:
    if isinstance(weight, _NUMBERS):
        return None if _exact(1.0, float(weight)) else f"1 less the weight {weight}"
    return "1 less the weights" if _plain(weight) else None


def _of_products(x: Any, a: Any, b: Any, *, value: Any = 1) -> str | None:
    # A product with a power of two is exact.
    if (_plain(a) or _plain(b)) and abs(math.frexp(value)[0]) not in (0.0, 0.5):
        return "a plain tensor times value"
    return None


def _of_quotients(x: Any, a: Any, b: Any, *, value: Any = 1) -> str | None:
    return "quotients of plain tensors" if _plain(b) else _of_products(x, a, b, value=value)


def _of_angles(x: Any, y: Any) -> str | None:
    return "squares of a plain tensor" if _plain(x) or _plain(y) else None


def _refused_where(func: Any, rounded: Callable[..., str | None]) -> None:
    """Refuse a derivative in which torch rounds a number or a plain tensor above the operator.

    Args:
        func: the operator.
        rounded: function of its arguments that names the rounded quantity, or returns None.
    """
    implementation = OPERATORS[func]

    def run(*args: Any, **kwargs: Any) -> Any:
        if transformed() and wide(*args):
            # While a derivative is computed, only an enclosing transform differentiates again.
            what = rounded(*args, **kwargs) if transformed(times=1 + pulling()) else None
            if what is not None:
                raise UnsupportedError(
                    f"{readable(func)} under torch.func.grad, vjp or jvp: in torch's derivative "
                    f"{what} is rounded to double precision; pass an expansion tensor "
                    "instead, or use backward or torch.autograd.grad, which compute all components"
                )
        return implementation(*args, **kwargs)

    OPERATORS[func] = run


for _func in (aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar):
    _refused_where(_func, _of_powers)
for _func in (aten.lerp.Scalar, aten.lerp.Tensor):
    _refused_where(_func, _of_lerps)
_refused_where(aten.addcmul.default, _of_products)
_refused_where(aten.addcdiv.default, _of_quotients)
_refused_where(aten.atan2.default, _of_angles)


def _has_operator(name: str) -> bool:
    packet = getattr(torch.ops.aten, name)
    return any(getattr(packet, each) in OPERATORS for each in packet.overloads())


def _copied(name: str, own: Any) -> Any:
    """Return the in-place form of the method `name`; `own` is torch's in-place method."""
    function, direct = FUNCTIONS[getattr(Tensor, name)], _has_operator(name)

    def written(input: Any, *args: Any, **kwargs: Any) -> Any:
        given = (input, *args, *kwargs.values())
        if direct and _duals._current_level < 0 and not differentiated(given):
            return forward(own, (input, *args), kwargs)
        # Compute from a copy: tensors saved for derivatives must not change.
        return input.copy_(function(input.clone(), *args, **kwargs))

    return written


for _name in dir(Tensor):
    if not _name.startswith("_") and getattr(Tensor, _name) in FUNCTIONS:
        for _own in forms(f"{_name}_"):
            if _own not in FUNCTIONS:
                FUNCTIONS[_own] = _copied(_name, _own)

"""Declare elementary functions: all that other modules need to know of one stands with its formula.

`mcf.elementary.operator.function` registers a declaration; kernels, `mcf.bound`, PyTorch's names
and `mcf`'s public functions read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from mcf.elementary.error_steps import Steps
from mcf.kernels.components import Components
from mcf.kernels.formats import Format

# A function of the arguments, their format and the number of components to return.
Compute = Callable[[tuple[Components, ...], Format, int], Components]
# A function from errors of steps to that of a result: relative to it, or a pair, the second
# relative to the terms of a sum that may cancel.
Bound = Callable[[Steps], "float | tuple[float, float]"]
# The derivative at an expansion tensor x, given x and `of`: `of.name` is any declared function of
# expansion tensors, with its own derivative.
Derivative = Callable[[Any, Any], Any]
# A function from the name of an operation to its relative error.
Real = Callable[[str], float]
# A function from the errors of steps to that of a derivative, without the product with a gradient.
SlopeBound = Callable[[Real], float]

# Derivatives without a composed bound: formulas with series or differences; differences whose zeros
# are in no table; exponentials of a rounded argument.
OBSERVED, OSCILLATING, POWER = "observed", "oscillating", "power"


class Program(NamedTuple):
    """The declaration of an elementary function of component tuples.

    Attributes:
        compute: the program over tensors.
        arguments: the names of its arguments.
        parts: the number of expansions that it returns.
        fused: whether it also runs as one kernel.
        float32: whether it runs in float32 registers, too.
        bound: the error of the computation, before the rounding to components.
        proven: whether the bound is proved if those of its steps are.
        auxiliary: whether it only serves other functions, such as derivatives.
        worst: the worst error found for four components of float64, in units of u^4.
        torch: the names of PyTorch's function, in any of its modules.
        undifferentiated: names of functions that PyTorch takes to have a zero derivative.
        tensors: the function of expansion tensors, if PyTorch has none of that name.
        derivative: the derivative, None for PyTorch's.
        slope: the bound of the derivative: a function, the names of functions whose product it is,
            or the reason why there is none.
    """

    compute: Compute
    arguments: tuple[str, ...]
    parts: int = 1
    fused: bool = True
    float32: bool = True
    bound: Bound | None = None
    proven: bool = True
    auxiliary: bool = False
    worst: float | None = None
    torch: tuple[str, ...] = ()
    undifferentiated: tuple[str, ...] = ()
    tensors: Callable[..., Any] | None = None
    derivative: Derivative | None = None
    slope: SlopeBound | tuple[str, ...] | str | None = None


class Composed(NamedTuple):
    """A function of expansion tensors composed of others, with its derivative."""

    value: Derivative
    derivative: Derivative


PROGRAMS: dict[str, Program] = {}
COMPOSED: dict[str, Composed] = {}


def composed(*errors: float) -> float:
    """Return (1 + e1)(1 + e2) ... - 1, the error of a product or of repeated rounding."""
    return math.expm1(sum(map(math.log1p, errors)))


def inverse(error: float) -> float:
    """Return 1 / (1 - e) - 1, the error contributed by a divisor."""
    return error / (1 - error)


def root_of(error: float) -> float:
    """Return 1 - sqrt(1 - e), the error that a root passes on."""
    return -math.expm1(0.5 * math.log1p(-error))


def product_of(*names: str) -> SlopeBound:
    """Return the errors of a product of functions."""
    return lambda real: composed(*map(real, names))


def quotient_by(*divisors: str) -> SlopeBound:
    """Return the errors of a quotient by several results in turn."""
    return lambda real: composed(*(v for d in divisors for v in (real("div"), inverse(real(d)))))


def one_plus_square(error: float, real: Real) -> float:
    """Return the error of 1 + y^2 for a relative error of y."""
    return composed(error, error, real("mul"), real("add"))


def scaled_inverse(real: Real) -> float:
    """Return the error of 1 / (x c) for a constant c, which `mul` of exact numbers covers."""
    constant = real("mul")
    return composed(inverse(composed(constant, real("mul"))), real("reciprocal"))

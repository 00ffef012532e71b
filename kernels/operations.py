"""Arithmetic on component tuples: expansions of one to four components.

An expansion is a tuple of 1 to 4 tensors of one dtype (bfloat16, float16, float32, float64) and
device, largest component first, |x[k + 1]| <= ulp(x[k]) / 2; an infinity or NaN has low components
of zero. Arguments broadcast; a plain tensor is an expansion of one component; a result has as many
components as the longest argument. One component is the plain format, correctly rounded.

Infinities, NaN and signed zeros behave as IEEE 754 has them: inf + 1 = inf, -0 + -0 = -0,
1 / 0 = inf, sqrt(-0) = -0. Bounds are in `mcf.kernels.bounds`. Nothing here has a derivative.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices, or what is no tensor;
`ValueError` for shapes that do not broadcast and a wrong number of components;
`RuntimeError` for a tensor that requires grad while grad mode is on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels import opaque as opaque
from mcf.kernels.components import (
    MAX_TERMS,
    Argument,
    Components,
    checked,
)
from mcf.kernels.formats import FORMATS, power_of_two
from mcf.kernels.operators import (
    ADD,
    BARE_ADD,
    BARE_MUL,
    COMMUTATIVE,
    COMPARE,
    DIV,
    EQ,
    FAST_TWO_SUM,
    FMA,
    GROW,
    LE,
    LT,
    MAX_FLOATS,
    MUL,
    NE,
    RECIPROCAL,
    RSQRT,
    SCALE,
    SPLIT,
    SQRT,
    SQUARE,
    SUB,
    TWO_PROD,
    TWO_SUM,
    Operation,
)


def apply(operation: Operation, arguments: Sequence[Argument]) -> Components:
    """Check and broadcast component tuples, and apply an operation to them."""
    given = checked(operation.name, operation.arguments, arguments)
    if operation in (*COMMUTATIVE, BARE_ADD, BARE_MUL) and len(given[0]) < len(given[1]):
        given[0], given[1] = given[1], given[0]
    return tuple(getattr(torch.ops.mcf, operation.operator)(*given))


def transform(operation: Operation, *arguments: Argument) -> Components:
    """Apply one of `operators.TRANSFORMS`, whose arguments have fixed numbers of components."""
    given = checked(operation.name, operation.arguments, arguments, counts=operation.components)
    components = [t for group in given for t in group]
    result: Components = getattr(torch.ops.mcf, operation.name)(*components)
    return result


def two_sum(a: Tensor, b: Tensor) -> Components:
    """s = RN(a + b) and e = a + b - s exactly; see `mcf.two_sum`."""
    return transform(TWO_SUM, a, b)


def fast_two_sum(a: Tensor, b: Tensor) -> Components:
    """s = RN(a + b) and e = a + b - s exactly, if a = 0 or exponent(a) >= exponent(b)."""
    return transform(FAST_TWO_SUM, a, b)


def split(a: Tensor) -> Components:
    """hi + lo = a exactly, with halves short enough to multiply exactly; see `mcf.split`."""
    return transform(SPLIT, a)


def two_prod(a: Tensor, b: Tensor) -> Components:
    """p = RN(a * b) and e = a * b - p, exactly where it is representable; see `mcf.two_prod`."""
    return transform(TWO_PROD, a, b)


def _pair_and_float(named: Operation, operation: Operation, x: Argument, a: Tensor) -> Components:
    given = checked(named.name, named.arguments, (x, a), counts=named.components)
    return tuple(getattr(torch.ops.mcf, operation.operator)(*given))


def grow(x: Sequence[Tensor], a: Tensor) -> Components:
    """x + a of a pair and a float; see `mcf.grow`."""
    return _pair_and_float(GROW, ADD, x, a)


def scale(x: Sequence[Tensor], a: Tensor) -> Components:
    """x * a of a pair and a float; see `mcf.scale`."""
    return _pair_and_float(SCALE, MUL, x, a)


def add(x: Argument, y: Argument) -> Components:
    """x + y, commutative, accurate under cancellation too."""
    return apply(ADD, (x, y))


def sub(x: Argument, y: Argument) -> Components:
    """x - y, with the error of `add`."""
    return apply(SUB, (x, y))


def mul(x: Argument, y: Argument) -> Components:
    """x * y, commutative."""
    return apply(MUL, (x, y))


def div(x: Argument, y: Argument) -> Components:
    """x / y."""
    return apply(DIV, (x, y))


def fma(x: Argument, y: Argument, z: Argument) -> Components:
    """x * y + z in one kernel, commutative in x and y.

    The product is rounded as `mul` rounds it, so the error is that of `mul` relative to x * y and
    that of `add` relative to the result. With one component the product is exact.
    """
    return apply(FMA, (x, y, z))


def square(x: Argument) -> Components:
    """x * x."""
    return apply(SQUARE, (x,))


def sqrt(x: Argument) -> Components:
    """Return the square root of x; NaN for x < 0."""
    return apply(SQRT, (x,))


def reciprocal(x: Argument) -> Components:
    """1 / x."""
    return apply(RECIPROCAL, (x,))


def rsqrt(x: Argument) -> Components:
    """1 / sqrt(x); NaN for x < 0, an infinity for zeros."""
    return apply(RSQRT, (x,))


def compare(x: Argument, y: Argument) -> Tensor:
    """-1, 0 or 1 for x less than, equal to or greater than y by value; NaN where one is NaN."""
    return apply(COMPARE, (x, y))[0]


def _truth(function: str, operation: Operation, **named: Argument) -> Tensor:
    """Compare two arguments, given in the order in which the kernel takes them."""
    given = checked(function, tuple(named), tuple(named.values()))
    [found] = getattr(torch.ops.mcf, operation.operator)(*given)
    return found  # type: ignore[no-any-return]


def lt(x: Argument, y: Argument) -> Tensor:
    """x < y by value, a bool tensor; false where one is NaN, as all comparisons but `ne`."""
    return _truth("lt", LT, x=x, y=y)


def le(x: Argument, y: Argument) -> Tensor:
    """x <= y by value."""
    return _truth("le", LE, x=x, y=y)


def gt(x: Argument, y: Argument) -> Tensor:
    """x > y by value."""
    return _truth("gt", LT, y=y, x=x)


def ge(x: Argument, y: Argument) -> Tensor:
    """x >= y by value."""
    return _truth("ge", LE, y=y, x=x)


def eq(x: Argument, y: Argument) -> Tensor:
    """x = y by value; an expansion at a tie has two forms, which compare equal."""
    return _truth("eq", EQ, x=x, y=y)


def ne(x: Argument, y: Argument) -> Tensor:
    """Not x = y by value; true where one is NaN."""
    return _truth("ne", NE, x=x, y=y)


def renormalize(x: Argument, terms: int | None = None) -> Components:
    """Sum 1 to 16 floats, which may be unordered, overlap and cancel, into an expansion.

    Args:
        x: the floats; each broadcasts.
        terms: components of the result, 1 to 4; None for as many as there are floats, at most 4.
    """
    given = checked("renormalize", ("x",), (x,), MAX_FLOATS)
    if terms is None:
        terms = min(len(given[0]), MAX_TERMS)
    if isinstance(terms, bool) or not isinstance(terms, int):
        raise TypeError(f"renormalize: terms must be an int, got {type(terms).__name__}")
    if not 1 <= terms <= MAX_TERMS:
        raise ValueError(f"renormalize: terms must be 1 to {MAX_TERMS}, got {terms}")
    return tuple(torch.ops.mcf.expansion_renormalize(*given, terms))


def neg(x: Argument) -> Components:
    """-x, exactly; zero changes its sign."""
    [given] = checked("neg", ("x",), (x,))
    return tuple(-t for t in given)


def abs(x: Argument) -> Components:
    """|x|, exactly: -x where the leading component has its sign bit set."""
    [given] = checked("abs", ("x",), (x,))
    minus = torch.signbit(given[0])
    return tuple(torch.where(minus, -t, t) for t in given)


def ldexp(x: Argument, exponent: Tensor | int) -> Components:
    """x * 2**exponent, exactly but for components that leave the range of the format.

    Args:
        x: the expansion.
        exponent: an integer or a tensor of integers that broadcasts with x.
    """
    [given] = checked("ldexp", ("x",), (x,))
    if isinstance(exponent, bool) or not isinstance(exponent, (int, Tensor)):
        raise TypeError(
            f"ldexp: exponent must be an int or a tensor, got {type(exponent).__name__}"
        )
    k = torch.as_tensor(exponent, device=given[0].device)
    if k.is_floating_point() or k.is_complex() or k.dtype == torch.bool:
        raise TypeError(f"ldexp: exponent must hold integers, got {k.dtype}")
    # Beyond this exponent every result is zero or infinite.
    k = k.to(torch.int64).clamp(-2200, 2200)
    scaled = tuple(_scaled(t, k) for t in given)
    finite = torch.isfinite(scaled[0])
    lows = (torch.where(finite, t, 0.0) for t in scaled[1:])
    return scaled[0], *lows


def _scaled(t: Tensor, k: Tensor) -> Tensor:
    """Return t * 2**k, rounded once."""
    register = FORMATS[t.dtype].register
    assert register.dtype is not None
    x = t.to(register.dtype)
    # Use one factor if the register format can represent it. The other factors come first: they
    # leave the normal range only if the result is zero or infinite.
    low, high = register.emin, register.emax
    k = k.clamp(3 * low, 3 * high)
    main = k.clamp(low, high)
    more = (k - main).clamp(low, high)
    for part in (k - main - more, more, main):
        x = x * power_of_two(part, register)
    return x.to(t.dtype)

"""Errors of the elementary functions at some hundred thousand a second, by MPFR.

Each element's function is evaluated on the exact sum of its components. MPFR's functions are
correctly rounded, and what is put together from several of them works with 64 bits more, so with
`_GUARD` bits beyond the result's an error is known to some 2**-50 of u^n. So the search goes; what
it finds, the worst and all that break the bound, is evaluated again with at least four times the
bits of the result. `tests/mcf/test_elementary.py` compares with ball arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from mcf.kernels.formats import Format
from tests.helpers import mpfr
from tests.helpers.elementary import HALF

Array = np.ndarray[Any, np.dtype[Any]]

_GUARD = 64
# Bits for arguments: four components, each at most 2 p + 3 bits below the one before.
_ARGUMENT = 448


@dataclasses.dataclass
class Errors:
    """What a batch of results showed.

    Args:
        relative: |r - t| less HALF a subnormal number, over |t|, in units of u^n; 0 where nothing
            is left, NaN where both are beyond the largest number.
        absolute: that in smallest subnormal numbers, where it is no more than HALF.
        wrong: elements that are infinite where the exact result is not, or the other way round.
    """

    relative: Array
    absolute: Array
    wrong: list[int]


# What fills t with f(x, y); a and b are for what is on the way. All are addresses.
_EVALUATE = numba.types.void(*[numba.types.intp] * 5)
_FLOATS = numba.types.Array(numba.float64, 2, "C", readonly=True)
_FILL = numba.types.intp(
    numba.types.FunctionType(_EVALUATE),
    *[_FLOATS] * 3,
    *[numba.types.intp] * 5,
    *[numba.types.Array(numba.float64, 1, "C")] * 2,
)


def _unary(name: str) -> Callable[..., Any]:
    function = mpfr.function(name)

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        function(t, x, 0)

    return evaluate


def _binary(name: str) -> Callable[..., Any]:
    function = mpfr.function(name)

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        function(t, x, y, 0)

    return evaluate


def _sigmoid() -> Callable[..., Any]:
    """1 / (1 + exp(-x))"""
    neg, exp, add_d, d_div = (mpfr.function(f) for f in ("neg", "exp", "add_d", "d_div"))

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        neg(a, x, 0)
        exp(a, a, 0)
        add_d(a, a, 1.0, 0)
        d_div(t, 1.0, a, 0)

    return evaluate


def _normal_cdf(times_x: bool) -> Callable[..., Any]:
    """erfc(-x / sqrt(2)) / 2, times x for `gelu`"""
    neg, sqrt, set_d, div = (mpfr.function(f) for f in ("neg", "sqrt", "set_d", "div"))
    erfc, mul_2si, mul = (mpfr.function(f) for f in ("erfc", "mul_2si", "mul"))

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        set_d(a, 2.0, 0)
        sqrt(a, a, 0)
        div(a, x, a, 0)
        neg(a, a, 0)
        erfc(a, a, 0)
        mul_2si(t, a, -1, 0)
        if times_x:
            mul(t, t, x, 0)

    return evaluate


def _normal_pdf() -> Callable[..., Any]:
    """exp(-x x / 2) / sqrt(2 pi)"""
    mul, mul_2si, neg, exp = (mpfr.function(f) for f in ("mul", "mul_2si", "neg", "exp"))
    const_pi, sqrt, div = (mpfr.function(f) for f in ("const_pi", "sqrt", "div"))

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        mul(a, x, x, 0)
        mul_2si(a, a, -1, 0)
        neg(a, a, 0)
        exp(a, a, 0)
        const_pi(b, 0)
        mul_2si(b, b, 1, 0)
        sqrt(b, b, 0)
        div(t, a, b, 0)

    return evaluate


def _gelu_tanh() -> Callable[..., Any]:
    """x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3)))"""
    mul, add, set_d, div = (mpfr.function(f) for f in ("mul", "add", "set_d", "div"))
    const_pi, d_div, sqrt = (mpfr.function(f) for f in ("const_pi", "d_div", "sqrt"))
    exp, add_d, mul_d = (mpfr.function(f) for f in ("exp", "add_d", "mul_d"))

    @numba.njit(_EVALUATE)
    def evaluate(t, x, y, a, b):
        mul(a, x, x, 0)
        mul(a, a, x, 0)
        mul_d(a, a, 44715.0, 0)
        set_d(b, 1e6, 0)
        div(a, a, b, 0)
        add(a, a, x, 0)
        const_pi(b, 0)
        d_div(b, 2.0, b, 0)
        sqrt(b, b, 0)
        mul(a, a, b, 0)
        mul_d(a, a, -2.0, 0)
        exp(a, a, 0)
        add_d(a, a, 1.0, 0)
        div(t, x, a, 0)

    return evaluate


_MADE: dict[str, Callable[[], Callable[..., Any]]] = {
    "sigmoid": _sigmoid,
    "normal_cdf": lambda: _normal_cdf(False),
    "normal_pdf": _normal_pdf,
    "gelu": lambda: _normal_cdf(True),
    "gelu_tanh": _gelu_tanh,
}


@functools.cache
def _evaluate(name: str) -> Callable[..., Any]:
    if name in _MADE:
        return _MADE[name]()
    return _binary(name) if name in mpfr.BINARY else _unary(name)


@functools.cache
def _fill() -> Callable[..., Any]:
    """The compiled loop; made at first use, since addresses of functions are part of it."""
    init2, clear, set_d = (mpfr.function(f) for f in ("init2", "clear", "set_d"))
    add_d, sub_d, div = (mpfr.function(f) for f in ("add_d", "sub_d", "div"))
    get_d, mul_2si = (mpfr.function(f) for f in ("get_d", "mul_2si"))

    @numba.njit(_FILL)
    def fill(evaluate, x, y, r, start, precision, argument, scale, eta, relative, units):
        """Errors as they are, NaN for infinite results; returns how many sums were not exact."""
        size = 8 * mpfr.WORDS
        xs, ys, t = start, start + size, start + 2 * size
        a, b, d = start + 3 * size, start + 4 * size, start + 5 * size
        for k, n in enumerate((xs, ys, t, a, b, d)):
            init2(n, argument if k < 2 else precision)
        rounded = 0
        for i in range(r.shape[1]):
            set_d(xs, x[0, i], 0)
            for k in range(1, x.shape[0]):
                rounded += add_d(xs, xs, x[k, i], 0) != 0
            if y.shape[0]:
                set_d(ys, y[0, i], 0)
                for k in range(1, y.shape[0]):
                    rounded += add_d(ys, ys, y[k, i], 0) != 0
            evaluate(t, xs, ys, a, b)
            if abs(r[0, i]) < np.inf:
                sub_d(d, t, r[0, i], 0)
                for k in range(1, r.shape[0]):
                    sub_d(d, d, r[k, i], 0)
                mul_2si(a, d, -eta, 0)
                units[i] = abs(get_d(a, 0))
                mul_2si(d, d, scale, 0)
                div(d, d, t, 0)
                relative[i] = abs(get_d(d, 0)) if units[i] != 0 else 0.0
            else:
                # Of the size of the exact result only.
                units[i], relative[i] = np.nan, abs(get_d(t, 0))
        for n in (xs, ys, t, a, b, d):
            clear(n)
        return rounded

    return fill


def _doubles(components: tuple[Tensor, ...]) -> Array:
    return torch.stack([t.double() for t in components]).numpy()


def errors(
    name: str,
    fmt: Format,
    arguments: tuple[tuple[Tensor, ...], ...],
    result: tuple[Tensor, ...],
    precision: int | None = None,
) -> Errors:
    """The errors of a function's result, NaN in no argument.

    Args:
        name: of the function.
        fmt: of the components.
        arguments: one or two expansions of one-dimensional tensors.
        result: what it returned.
        precision: bits for the exact result; by default those for a search.
    """
    terms = len(result)
    bits = terms * fmt.p
    x, r = _doubles(arguments[0]), _doubles(result)
    y = _doubles(arguments[1]) if len(arguments) > 1 else np.zeros((0, x.shape[1]))
    relative, units = np.empty((2, x.shape[1]))
    eta = fmt.emin - fmt.p + 1
    # Ours and not the loop's: compiled code would free it after taking its address.
    numbers = np.zeros((6, mpfr.WORDS), np.int64)
    start, digits = numbers.ctypes.data, precision or bits + _GUARD
    rounded = _fill()(
        _evaluate(name), x, y, r, start, digits, _ARGUMENT, bits, eta, relative, units
    )
    assert rounded == 0, f"{name}: {rounded} arguments have more than {_ARGUMENT} bits"
    limit = float(fmt.max)
    infinite = np.isnan(units)
    wrong = infinite & ~(relative >= limit * (1 - float(fmt.u)))
    # A finite result of something that is not: its error is some 100 %.
    wrong |= ~infinite & ~np.isfinite(units) & ~np.isfinite(relative)
    tiny = units <= HALF
    less = 1 - HALF / np.maximum(np.where(infinite, np.inf, units), HALF)
    return Errors(
        np.where(infinite, np.nan, np.where(tiny, 0.0, relative * less)),
        np.where(tiny, units, 0.0),
        np.flatnonzero(wrong).tolist(),
    )


def full_precision(fmt: Format, terms: int) -> int:
    """Bits with which what a search found is evaluated again."""
    return max(4 * terms * fmt.p, terms * fmt.p + _GUARD) + 64

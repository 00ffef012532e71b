"""Export expansions to other representations of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mcf.convert.rounding import canonical, convert, round_odd, widen

Number = Fraction | float


def fractions(components: Sequence[Tensor]) -> list[Number]:
    """Return the elements in order, exactly; infinities, NaN and -0 as floats."""
    rows = [c.detach().double().cpu().flatten().tolist() for c in components]
    return [_value(parts) for parts in zip(*rows, strict=True)]


def _value(parts: tuple[float, ...]) -> Number:
    if not math.isfinite(parts[0]):
        return parts[0]
    if not all(map(math.isfinite, parts)):
        return sum(parts)
    value = sum((Fraction(x) for x in parts), Fraction(0))
    return parts[0] if value == 0 and math.copysign(1.0, parts[0]) < 0 else value


def nested(values: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return the elements as nested lists of a shape; a single element for no dimensions."""
    return _objects(values, shape).tolist()


def _objects(values: Sequence[Any], shape: Sequence[int]) -> npt.NDArray[Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out.reshape(tuple(shape))


def few_floats(components: Sequence[Tensor]) -> list[float] | None:
    """Return the values in order, each rounded once; None if a sum leaves the range."""
    rows = [c.reshape(-1).tolist() for c in components]
    try:
        # `math.fsum` adds exactly and rounds once. Without low components the first keeps its sign
        # of zero.
        return [math.fsum(v) if any(v[1:]) else v[0] for v in zip(*rows, strict=True)]
    except (OverflowError, ValueError):
        return None


def mpmath_number() -> Callable[[Number], Any]:
    """Return a function that converts a number to an mpf exactly, whatever `mpmath.mp.prec` is."""
    import mpmath
    from mpmath.libmp import from_man_exp

    def make(x: Number) -> Any:
        if isinstance(x, float):
            return mpmath.mpf(x)
        # The denominator is a power of two, since the number is a sum of floats.
        return mpmath.mp.make_mpf(from_man_exp(x.numerator, 1 - x.denominator.bit_length()))

    return make


def array(components: Sequence[Tensor], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return a NumPy array of the values rounded to nearest; exact for dtype object (Fractions)."""
    shape = tuple(components[0].shape)
    kind = np.dtype(dtype)
    if kind == np.dtype(object):
        return _objects(fractions(components), shape)
    torch_dtype = {
        np.dtype(np.float16): torch.float16,
        np.dtype(np.float32): torch.float32,
        np.dtype(np.float64): torch.float64,
    }.get(kind)
    host = [c.detach().cpu() for c in components]
    if torch_dtype is not None:
        return convert(host, torch_dtype, 1)[0].numpy()
    if kind != np.dtype(np.longdouble):
        raise TypeError(
            f"dtype must be float16, float32, float64, longdouble or object, got {kind}"
        )
    parts = canonical(widen(host, torch.float64))
    high = parts[0].numpy().astype(np.longdouble)
    if len(parts) == 1:
        return high
    low = round_odd(parts[1], parts[2]) if len(parts) > 2 else parts[1]
    return np.asarray(high + np.where(np.isfinite(high), low.numpy(), 0.0))

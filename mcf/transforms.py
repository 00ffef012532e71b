"""Error-free transforms of plain tensors, and arithmetic of pairs with one float.

Every function takes tensors of one dtype (bfloat16, float16, float32 or float64) and device, which
broadcast, and returns two new contiguous tensors `(hi, lo)` of that dtype and of the broadcast
shape, largest component first. Every operation is rounded to nearest even in that dtype, on every
executor with the same bits. u = 2**-p with p = 8, 11, 24, 53 for bfloat16, float16, float32,
float64. Bounds are relative to the exact result and hold without overflow and underflow.

Where an argument or the result is infinite or NaN, `lo` is NaN or meaningless, but of `grow` and
`scale`, which give what IEEE 754 has for the leading components, with a low component of 0.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices; `ValueError` for shapes
that do not broadcast or a wrong number of components; `RuntimeError` for a tensor that requires
grad while grad mode is on, because these functions have no derivative.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from mcf.kernels import operations as _operations
from mcf.kernels.operators import RENORMALIZE

__all__ = ["fast_two_sum", "grow", "renormalize", "scale", "split", "two_prod", "two_sum"]

Pair = tuple[Tensor, Tensor]


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """s = RN(a + b) and e = a + b - s exactly, for any a and b.

    Exact also with subnormal numbers, unless a + b overflows or, in float32 and float64, |b| is the
    largest finite number. Source: Knuth, The Art of Computer Programming 2, 4.2.2; for the limits
    Boldo, Graillat, Muller 2017, doi:10.1145/3054947.
    """
    return cast(Pair, _operations.two_sum(a, b))


def fast_two_sum(a: Tensor, b: Tensor) -> Pair:
    """s = RN(a + b) and e = a + b - s exactly, if a = 0 or exponent(a) >= exponent(b).

    Three operations where `two_sum` has six. Where |a| < |b| the error may be wrong. Source:
    Dekker 1971, doi:10.1007/BF01397083.
    """
    return cast(Pair, _operations.fast_two_sum(a, b))


def split(a: Tensor) -> Pair:
    """hi + lo = a exactly, with hi of p - ceil(p/2) bits and lo of ceil(p/2) - 1 bits and a sign.

    Overflows to NaN for |a| above about max / 2**ceil(p/2). Source: Veltkamp, in Dekker 1971,
    doi:10.1007/BF01397083.
    """
    return cast(Pair, _operations.split(a))


def two_prod(a: Tensor, b: Tensor) -> Pair:
    """p = RN(a * b) and e = a * b - p, exactly while e is representable.

    That is where a * b = 0 or exponent(a) + exponent(b) >= emin + p - 1 (emin = -126 for bfloat16
    and float32, -14 for float16, -1022 for float64); below, e is rounded. Source: Handbook of
    Floating-Point Arithmetic, doi:10.1007/978-3-319-76526-6, 4.4.
    """
    return cast(Pair, _operations.two_prod(a, b))


def grow(x: Pair, a: Tensor) -> Pair:
    """x + a for an expansion x and a float a; error at most 2u^2.

    DWPlusFP of Joldes, Muller, Popescu 2017, doi:10.1145/3121432.
    """
    return cast(Pair, _operations.grow(x, a))


def scale(x: Pair, a: Tensor) -> Pair:
    """x * a for an expansion x and a float a; error at most 1.5u^2 + 4u^3.

    DWTimesFP1 of Joldes, Muller, Popescu 2017, doi:10.1145/3121432.
    """
    return cast(Pair, _operations.scale(x, a))


def renormalize(x: Pair) -> Pair:
    """Return an equal pair with |lo| <= ulp(hi)/2, exactly, from components in any order.

    TwoSum of the two components.
    """
    return cast(Pair, _operations.transform(RENORMALIZE, x))

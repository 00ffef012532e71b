"""Error-free transforms and expansion arithmetic on tensors.

Every function takes tensors of one dtype (bfloat16, float16, float32 or float64) and device, which
broadcast, and returns two new contiguous tensors `(hi, lo)` of that dtype and of the broadcast
shape, largest component first. Every operation is rounded to nearest even in that dtype, on every
executor with the same bits. u = 2**-p with p = 8, 11, 24, 53 for bfloat16, float16, float32,
float64. Bounds are relative to the exact result and hold without overflow and underflow.

`add`, `mul` and those of `mcf.arithmetic` take tuples of 1 to 4 components. Where an argument or
the result is infinite or NaN, arithmetic gives what IEEE 754 has for the leading components, with
low components of 0, as on `MCFTensor`s; of the transforms `lo` is NaN or meaningless there.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices; `ValueError` for shapes
that do not broadcast or a wrong number of components; `RuntimeError` for a tensor that requires
grad while grad mode is on, because these functions have no derivative.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from mcf.kernels import operations as _operations
from mcf.kernels.components import Components
from mcf.kernels.operators import RENORMALIZE

if TYPE_CHECKING:
    from mcf.tensor import MCFTensor

Pair = tuple[Tensor, Tensor]


def _pair(result: tuple[Tensor, ...]) -> Pair:
    hi, lo = result
    return hi, lo


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """s = RN(a + b) and e = a + b - s exactly, for any a and b.

    Exact also with subnormal numbers, unless a + b overflows or, in float32 and float64, |b| is the
    largest finite number. Source: Knuth, The Art of Computer Programming 2, 4.2.2; for the limits
    Boldo, Graillat, Muller 2017, doi:10.1145/3054947.
    """
    return _pair(_operations.two_sum(a, b))


def fast_two_sum(a: Tensor, b: Tensor) -> Pair:
    """s = RN(a + b) and e = a + b - s exactly, if a = 0 or exponent(a) >= exponent(b).

    Three operations where `two_sum` has six. Where |a| < |b| the error may be wrong. Source:
    Dekker 1971, doi:10.1007/BF01397083.
    """
    return _pair(_operations.fast_two_sum(a, b))


def split(a: Tensor) -> Pair:
    """hi + lo = a exactly, with hi of p - ceil(p/2) bits and lo of ceil(p/2) - 1 bits and a sign.

    Overflows to NaN for |a| above about max / 2**ceil(p/2). Source: Veltkamp, in Dekker 1971,
    doi:10.1007/BF01397083.
    """
    return _pair(_operations.split(a))


def two_prod(a: Tensor, b: Tensor) -> Pair:
    """p = RN(a * b) and e = a * b - p, exactly while e is representable.

    That is where a * b = 0 or exponent(a) + exponent(b) >= emin + p - 1 (emin = -126 for bfloat16
    and float32, -14 for float16, -1022 for float64); below, e is rounded. Source: Handbook of
    Floating-Point Arithmetic, doi:10.1007/978-3-319-76526-6, 4.4.
    """
    return _pair(_operations.two_prod(a, b))


def grow(x: Pair, a: Tensor) -> Pair:
    """x + a for an expansion x and a float a; error at most 2u^2.

    DWPlusFP of Joldes, Muller, Popescu 2017, doi:10.1145/3121432.
    """
    return _pair(_operations.grow(x, a))


def scale(x: Pair, a: Tensor) -> Pair:
    """x * a for an expansion x and a float a; error at most 1.5u^2 + 4u^3.

    DWTimesFP1 of Joldes, Muller, Popescu 2017, doi:10.1145/3121432.
    """
    return _pair(_operations.scale(x, a))


@overload
def add(x: Components, y: Components | Tensor) -> Components: ...
@overload
def add(x: MCFTensor, y: Any) -> MCFTensor: ...
@overload
def add(x: Any, y: MCFTensor) -> MCFTensor: ...
def add(x: Any, y: Any) -> Any:
    """x + y for two expansions, commutative; error of pairs at most 2u^2, under cancellation too.

    Tuples of 1 to 4 components, or one and a plain tensor: as many components as the longest. The
    two-term network of Zhang and Aiken 2025, doi:10.1007/978-3-031-98682-6_12. With an
    `MCFTensor` among the arguments it is `torch.add`, which see: any terms, with a gradient.
    """
    if are_components("add", x, y):
        return _operations.add(x, y)
    return x + y


@overload
def mul(x: Components, y: Components | Tensor) -> Components: ...
@overload
def mul(x: MCFTensor, y: Any) -> MCFTensor: ...
@overload
def mul(x: Any, y: MCFTensor) -> MCFTensor: ...
def mul(x: Any, y: Any) -> Any:
    """x * y for two expansions, commutative; error of pairs at most 5u^2.

    Tuples of 1 to 4 components, or one and a plain tensor: as many components as the longest. Of
    pairs it is DWTimesDW1 of Joldes, Muller, Popescu 2017, with the bound of Muller and Rideau
    2022, doi:10.1145/3484514. With an `MCFTensor` among the arguments it is `torch.mul`, which see:
    any terms, with a gradient.
    """
    if are_components("mul", x, y):
        return _operations.mul(x, y)
    return x * y


def are_components(function: str, *values: Any) -> bool:
    """Whether values are tuples of components, and plain tensors; not if one is an `MCFTensor`.

    Raises:
        TypeError: for both, and for neither.
    """
    from mcf.tensor import MCFTensor

    expansion = any(isinstance(v, MCFTensor) for v in values)
    components = any(isinstance(v, (tuple, list)) for v in values)
    if expansion and components:
        raise TypeError(
            f"{function}: a tuple of components stands beside an mcf.MCFTensor; make one of the "
            "other, mcf.from_components(components) or x.components"
        )
    if not expansion and not components:
        kinds = ", ".join(type(v).__name__ for v in values)
        raise TypeError(
            f"{function} needs an mcf.MCFTensor or a tuple of 1 to 4 components among its "
            f"arguments, got {kinds}"
        )
    return components


def renormalize(x: Pair) -> Pair:
    """The same value with |lo| <= ulp(hi)/2, exactly, from components in any order.

    TwoSum of the two components.
    """
    return _pair(_operations.transform(RENORMALIZE, x))

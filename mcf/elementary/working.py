"""The arithmetic in which functions are computed: expansions with bits to spare.

A function of n components of any format is computed on `working_terms` components of float64, or of
float32 if those are the registers (`mcf.elementary.format`). The argument is converted to these
exactly, and the result is rounded once to n components of its format. Only operations of
`mcf.kernels.operations` and exact tensor operations occur in between, so that every executor gives
the same bits.

Programs compute with finite numbers far from the ends of the range, and handle special values
themselves. So sums, products and quotients are the bare networks, a fifth shorter than
`mcf.kernels.operations` with the same bounds. A zero result may have the other sign. In float32
registers last components may underflow, which the networks tolerate as the operations do. Only
numbers that are not selected come near the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.elementary.format import left_out, working
from mcf.elementary.tables import TERMS, Components
from mcf.kernels import operations
from mcf.kernels.components import Argument
from mcf.kernels.formats import FP32, FP64, Format
from mcf.kernels.operations import reciprocal as reciprocal
from mcf.kernels.operations import renormalize as renormalize
from mcf.kernels.operations import sqrt as sqrt
from mcf.kernels.operations import two_prod as two_prod
from mcf.kernels.operations import two_sum as two_sum
from mcf.kernels.operators import ABSORB, BARE_ADD, BARE_DIV, BARE_MUL

# Integer dtypes with as many bits.
INTEGERS = {FP64: torch.int64, FP32: torch.int32}
# Minimum of extra bits in the computation, except for four components.
_SPARE = 10


def add(x: Argument, y: Argument) -> Components:
    """Return x + y."""
    return operations.apply(BARE_ADD, (x, y))


def mul(x: Argument, y: Argument) -> Components:
    """Return x * y."""
    return operations.apply(BARE_MUL, (x, y))


def div(x: Argument, y: Argument) -> Components:
    """Return x / y."""
    return operations.apply(BARE_DIV, (x, y))


def absorb(x: Argument, y: Argument) -> Components:
    """Return x + y for |y| at most about |x| / 2; see `mcf.kernels.algorithms.sums`."""
    return operations.apply(ABSORB, (x, y))


def working_terms(fmt: Format, terms: int) -> int:
    """Return the number of components of a computation: about 10 guard bits."""
    width = working().format
    if fmt is width:
        return min(terms + 1, TERMS)
    return max(2, -(-(fmt.p * terms + _SPARE) // width.p))


def enter(x: Components, fmt: Format) -> Components:
    """Convert to an equal expansion of as many working components, exactly."""
    width = working().format
    if fmt is width:
        return tuple(x)
    wide = tuple(c.to(width.dtype) for c in x)
    return renormalize(wide) if len(wide) > 1 else wide


def exponent(x: Tensor) -> Tensor:
    """Return floor(log2 |x|) of normal numbers, int64; emin - 1 for zero and subnormal numbers."""
    if x.dtype is torch.float32:
        bits = x.view(torch.int32).to(torch.int64)
        return ((bits >> (FP32.p - 1)) & 0xFF) - FP32.emax
    return ((x.view(torch.int64) >> (FP64.p - 1)) & 0x7FF) - FP64.emax


def integer(k: Tensor) -> Tensor:
    """Return the int64 of a whole number of at most 2**50 (2**21 in float32) in magnitude.

    It is the difference of bit patterns after adding 3 * 2**51, since processors without AVX-512
    convert element by element.
    """
    if k.dtype is torch.float32:
        return (k + 1.5 * 2.0**23).view(torch.int32).to(torch.int64) - 0x4B400000
    return (k + 1.5 * 2.0**52).view(torch.int64) - 0x4338000000000000


def power(k: Tensor) -> Tensor:
    """Return 2**k for int64 exponents of normal numbers, in the working format."""
    width = working().format
    bits = (k + width.emax) << (width.p - 1)
    assert width.dtype is not None
    return bits.to(INTEGERS[width]).view(width.dtype)


def scale(x: Tensor, k: Tensor) -> Tensor:
    """Return x * 2**k with at most one rounding, for 2 emin <= k <= 2 emax."""
    half = k >> 1
    return x * power(half) * power(k - half)


def scale_all(x: Components, k: Tensor) -> Components:
    """Scale every component by 2**k."""
    half = k >> 1
    first, second = power(half), power(k - half)
    return tuple(c * first * second for c in x)


def head(x: Components, terms: int) -> Components:
    """Return the leading components, padded with zeros."""
    return x[:terms] + (torch.zeros_like(x[0]),) * (terms - len(x))


def select(condition: Tensor, x: Components, y: Components | float) -> Components:
    """Return x where the condition holds, else y; a float means itself and zeros."""
    if isinstance(y, float):
        return (
            torch.where(condition, x[0], y),
            *(torch.where(condition, c, 0.0) for c in x[1:]),
        )
    return tuple(torch.where(condition, a, b) for a, b in zip(x, y, strict=True))


def lifted(x: Components) -> tuple[Components, Tensor]:
    """Return x times a power of two where it would lose bits, and the exponent."""
    faint = working().faint
    lift = torch.where(x[0].abs() < 2.0**-faint, faint, 0)
    return scale_all(x, lift), lift


def minus(x: Components) -> Components:
    """Return -x."""
    return tuple(-c for c in x)


def signed(x: Components, sign: Tensor) -> Components:
    """Return x times 1.0 or -1.0."""
    return tuple(c * sign for c in x)


def sign_of(condition: Tensor) -> Tensor:
    """Return -1.0 where the condition holds, else 1.0."""
    return 1.0 - 2.0 * condition.to(working().format.dtype)


def magnitude(x: Components) -> tuple[Components, Tensor]:
    """Return |x| and its sign, 1.0 or -1.0."""
    sign = sign_of(torch.signbit(x[0]))
    return signed(x, sign), sign


def mantissa(x: Components) -> tuple[Components, Tensor]:
    """Return m and int64 e with x = m * 2**e and 1 <= |m[0]| < 2, for any nonzero finite x."""
    lift = torch.where(x[0].abs() < working().low, working().lift, 0)
    x = scale_all(x, lift)
    e = exponent(x[0])
    return scale_all(x, -e), e - lift


def collected(floats: Components, terms: int) -> Components:
    """Return the sum of up to 16 floats as an expansion.

    The floats are padded with zeros to one of four lengths: each length is a kernel to compile.
    """
    length = next(n for n in (4, 8, 12, 16) if n >= len(floats))
    zeros = (torch.zeros_like(floats[0]),) * (length - len(floats))
    return renormalize((*floats, *zeros), terms)


def rare(condition: Tensor) -> bool:
    """Return whether the condition of a rarely needed step holds for any element.

    A formula skips such a step: it counts the elements for which the condition holds, and if there
    are any the program runs instead (`mcf.elementary.fused`).
    """
    found = left_out.get()
    if found is None:
        return bool(condition.any())
    found.append(condition)
    return False


def plus(x: Components, y: Components) -> Components:
    """Return x + y for |y| at most about |x| / 2, with the error of a sum."""
    return absorb(x, y) if len(x) < TERMS else add(x, y)


def root(x: Components) -> Components:
    """Return the square root of x >= 0, scaling x if it would underflow."""
    low, raised = x[0] < working().small, working().raised
    y = sqrt(scale_all(x, torch.where(low, raised, 0)))
    return scale_all(y, torch.where(low, -raised // 2, 0))


def sanitized(x: Components, good: Tensor, otherwise: float = 1.0) -> Components:
    """Return x where `good` holds, elsewhere a harmless number."""
    return select(good, x, otherwise)


def special(condition: Tensor, value: Tensor | float, x: Components) -> Components:
    """Return the plain value, padded with zeros, where the condition holds, else x."""
    return (
        torch.where(condition, value, x[0]),
        *(torch.where(condition, 0.0, c) for c in x[1:]),
    )


def leave(x: Components, fmt: Format, terms: int, k: Tensor | None = None) -> Components:
    """Return x * 2**k rounded to an expansion of a format.

    Each component is the number of the format nearest to the remainder after those before it (ties
    to even), also among subnormal numbers. So the error is at most u^terms relative to the result,
    or half of the smallest subnormal if that is more. A result beyond the largest number is
    infinite.
    """
    if k is None:
        k = torch.zeros((), dtype=torch.int64, device=x[0].device).expand(x[0].shape)
    if fmt is working().format:
        out = scale_all(head(renormalize(x, terms), terms), k)
        low = exponent(x[0]) + k < fmt.emin + fmt.p * terms
        if bool(low.any()):
            out = select(low, _rounded(x, fmt, terms, k), out)
    else:
        out = _rounded(x, fmt, terms, k)
    infinite = out[0].to(fmt.dtype).isinf()
    first = out[0].to(fmt.dtype)
    rest = (torch.where(infinite, 0.0, c).to(fmt.dtype) for c in out[1:])
    return (first, *rest)


def _rounded(x: Components, fmt: Format, terms: int, k: Tensor) -> Components:
    """Round as `leave`, component by component."""
    out: list[Tensor] = []
    bottom = fmt.emin - fmt.p + 1 - k
    for _ in range(terms):
        top = exponent(x[0])
        unit = torch.minimum(torch.maximum(top - (fmt.p - 1), bottom), top + 2)
        # Use magnitudes, so that the fraction of a number below 1 is the number itself.
        t = scale(x[0].abs(), -unit)
        whole = t.floor()
        part = t - whole
        above = torch.remainder(whole, 2.0) == 1.0
        if len(x) > 1:
            rest = x[1] * x[0].sign()
            above = (rest > 0) | ((rest == 0) & above)
        up = (part > 0.5) | ((part == 0.5) & above)
        r = torch.copysign(scale(whole + up.to(x[0].dtype), unit), x[0])
        out.append(r)
        x = (x[0] - r, *x[1:])
        if len(x) > 1:
            x = renormalize(x)
    return scale_all(tuple(out), k)


class Sums:
    """A sum with one float per component, each collecting the errors of the previous one.

    The errors of the last float are lost, so four components use an additional float.

    Args:
        first: the first number.
        terms: components wanted.
        spare: whether to use an additional float in any case.
    """

    def __init__(self, first: Tensor, terms: int, *, spare: bool = False) -> None:
        self._terms, more = terms, spare or terms == TERMS
        self._places: list[Tensor | None] = [first, *[None] * (terms - 1 + more)]

    def add(self, x: Tensor, place: int) -> None:
        """Add a number to the float at an index, its rounding error to the next, and so on."""
        last = len(self._places) - 1
        for k in range(place, last + 1):
            old = self._places[k]
            if old is None:
                self._places[k] = x
                return
            if k == last:
                self._places[k] = old + x
            else:
                self._places[k], x = two_sum(old, x)

    def add_product(self, x: Components, y: Components) -> None:
        """Add the product of two expansions of at most half of the sum's magnitude.

        The errors of products in the last place, and everything below it, are lost.
        """
        last = len(self._places) - 1
        low = None
        for order in range(last + 1):
            for j in range(order + 1):
                if order < last:
                    p, e = two_prod(x[j], y[order - j])
                    self.add(p, order)
                    self.add(e, order + 1)
                else:
                    p = x[j] * y[order - j]
                    low = p if low is None else low + p
        assert low is not None
        self.add(low, last)

    def total(self) -> Components:
        """Return the sum as an expansion."""
        found = [p for p in self._places if p is not None]
        for order in (reversed(range(len(found) - 1)), range(1, len(found) - 1)):
            for k in order:
                found[k], found[k + 1] = two_sum(found[k], found[k + 1])
        if len(found) > self._terms:
            found[-2:] = [found[-2] + found[-1]]
        return head(tuple(found), self._terms)


def beside(z: Components, node: Tensor, terms: int) -> Components:
    """Return z - node for floats z >= 0, largest first, near the node or below half of it.

    The error is at most 4 u^terms of the difference: z[0] - node is exact, or z[0] is no larger
    than it.
    """
    return gathered(z[0], [(0, (-node,)), (1, z[1:terms])], terms)


def gathered(
    first: Tensor, groups: Sequence[tuple[int, Components]], terms: int, *, spare: bool = False
) -> Components:
    """Return the sum of a number and groups of floats, each starting at its place."""
    sums = Sums(first, terms, spare=spare)
    for place, floats in groups:
        for k, x in enumerate(floats, place):
            sums.add(x, k)
    return sums.total()

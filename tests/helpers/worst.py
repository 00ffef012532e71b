"""Hard inputs for arithmetic on expansions, and the errors of results in exact integers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import Format, operations
from mcf.kernels.expansion_bounds import ExpansionBound
from tests.helpers.expansions import (
    Array,
    Integers,
    draw,
    lowest,
    partners,
    roots,
    tensors,
    value,
)

# Operation, and whether its second argument is a float.
OPERATIONS = [
    *((name, False) for name in ("add", "mul", "div", "fma", "square", "sqrt", "reciprocal")),
    ("rsqrt", False),
    ("renormalize", False),
    *((name, True) for name in ("add", "mul", "div")),
]


@dataclasses.dataclass
class Errors:
    """|result - exact|, what the relative bound multiplies, what the absolute bound multiplies.

    For `fma` also the product, which a part of the bound multiplies.
    """

    error: Integers
    reference: Integers
    absolute: Integers
    product: Integers | int = 0

    def breaks(self, row: ExpansionBound, fmt: Format) -> Array:
        """Where a result breaks the bound of a row."""
        assert fmt.dtype is not None
        relative, of_product = row.relative(fmt.dtype), row.relative_to_product(fmt.dtype)
        unit = math.lcm(relative.denominator, of_product.denominator)
        allowed = int(relative * unit) * self.reference + int(of_product * unit) * self.product
        found = self.error * unit > allowed + unit * row.absolute * self.absolute
        return found.astype(bool)

    def exceeds(self, row: ExpansionBound, fmt: Format) -> int:
        """How many results break the bound of a row."""
        return int(self.breaks(row, fmt).sum())

    def worst(self, scale: int) -> float:
        """The largest error / reference, times 2**scale."""
        found = 0.0
        for e, r in zip(self.error, self.reference, strict=True):
            if e:
                found = max(found, (e << scale) / r if r else np.inf)
        return found


# Every operation of a chunk takes its arguments from the same few draws.
_draw = functools.lru_cache(maxsize=8)(draw)


@functools.lru_cache(maxsize=2)
def _partners(fmt: Format, terms: int, count: int, seed: int, low: int, high: int) -> list[Array]:
    return partners(fmt, _draw(fmt, terms, count, 3 * seed, low, high), 3 * seed + 1, low, high)


def arguments(
    operation: str, fmt: Format, terms: int, count: int, seed: int, low: int, high: int
) -> list[tuple[Tensor, ...]]:
    """Hard arguments with leading exponents from low to high (sums: partners that cancel)."""
    if operation == "renormalize":
        # In any order, overlapping and cancelling; four floats at least.
        x = _draw(fmt, max(2, terms), count, 3 * seed, low, high)
        y = _partners(fmt, max(2, terms), count, seed, low, high)
        return [tensors(fmt, [*y[::-1], *x])]
    x = _draw(fmt, terms, count, 3 * seed, low, high)
    if operation in ("sqrt", "rsqrt"):
        sign = np.sign(x[0]) + (x[0] == 0)
        return [tensors(fmt, [c * sign for c in x])]
    if operation in ("square", "reciprocal"):
        return [tensors(fmt, x)]
    if operation == "add":
        y = _partners(fmt, terms, count, seed, low, high)
        return [tensors(fmt, x), tensors(fmt, y)]
    y = _draw(fmt, terms, count, 3 * seed + 1, low, high)
    if operation == "fma":
        z = _draw(fmt, terms, count, 3 * seed + 2, low, high)
        # Half of the products are nearly cancelled.
        product = np.clip(-x[0] * y[0], -float(fmt.max) / 8, float(fmt.max) / 8)
        leading = torch.from_numpy(product).to(fmt.dtype).double().numpy()
        cancels = np.arange(count) % 2 == 0
        z = [np.where(cancels, leading if k == 0 else 0.0, c) for k, c in enumerate(z)]
        return [tensors(fmt, c) for c in (x, y, z)]
    return [tensors(fmt, x), tensors(fmt, y)]


def tied(fmt: Format, terms: int) -> list[Fraction]:
    """Floats whose sum is next to a tie: 1 + u + u/2, and so on with the last component.

    2 and -(1 - u) stand apart since -2**p came last. Their sum is a tie, the rest leads away
    from it; with two components u + u/2 ends in another.
    """
    u, big = fmt.u, Fraction(2**fmt.p)
    rest = [
        [u / 2 - u**2],
        [u / 2 - u**2, -(u**2) / 4 + u**3 / 2],
        [u / 2 - u**2, -(u**2) / 4 + u**3, u**3 / 8 - u**4 / 4],
    ][terms - 1]
    return [big + 2, u - 1, *rest, -big]


def errors(
    operation: str, fmt: Format, given: Sequence[tuple[Tensor, ...]], result: Sequence[Tensor]
) -> Errors:
    """The errors of a result, for finite arguments and results.

    Integers are in units of 2**-s, or its square, where 2**-s divides every component.
    """
    eta = fmt.emin - fmt.p + 1
    s = -max(eta, lowest([t for c in (*given, result) for t in c]))
    # What eta is in units of 2**-s, rounded down to zero where it is smaller.
    missing = -s - eta
    g = value(result, -s)
    v = [value(c, -s) for c in given]
    one = np.full(len(g), 1, dtype=object)
    if operation in ("add", "renormalize"):
        exact = sum(v)
        return Errors(abs(g - exact), abs(exact), one >> missing)
    if operation in ("mul", "square"):
        exact = v[0] * v[-1]
        return Errors(abs((g << s) - exact), abs(exact), (one << s) >> missing)
    if operation == "fma":
        product = v[0] * v[1]
        exact = product + (v[2] << s)
        error = abs((g << s) - exact)
        return Errors(error, abs(exact), (one << s) >> missing, abs(product))
    if operation in ("div", "reciprocal"):
        x = v[0] if operation == "div" else one << s
        y = v[-1]
        return Errors(abs(g * y - (x << s)), abs(x) << s, (abs(y) + (one << s)) >> missing)
    # Bits of the root below the unit; it is rounded down to an integer.
    k = fmt.p * (len(result) + 2)
    root = roots(v[0] << (s + 2 * k))
    if operation == "sqrt":
        error = np.maximum(abs((g << k) - root) - 1, 0)
        absolute = (one << k) + (one << (s + 2 * k)) // np.maximum(root, 1)
        return Errors(error, root, absolute >> missing)
    x = np.maximum(v[0], 1)
    exact = one << (2 * s + k)
    error = np.maximum(abs(g * root - exact) - abs(g), 0)
    return Errors(error, exact, ((exact >> s) + (x << k) + exact // x) >> missing)


def apply(operation: str, given: Sequence[tuple[Tensor, ...]], terms: int) -> tuple[Tensor, ...]:
    """Call the function on expansions."""
    extra = (terms,) if operation == "renormalize" else ()
    result: tuple[Tensor, ...] = getattr(operations, operation)(*given, *extra)
    return result

"""The largest error of an operation on expansions over hard inputs, in exact integers.

    python -m tests.helpers.worst --count 1000000

prints the worst case of every operation, number of components and format as a Markdown table.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.kernels import BF16, FP32, FP64, Format, expansions
from mcf.kernels.expansion_bounds import ExpansionBound
from tests.helpers.expansions import (
    Integers,
    draw,
    is_normalised,
    lowest,
    partners,
    roots,
    tensors,
    value,
)

# Operation, and whether its second argument is a float.
CASES = [
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

    def exceeds(self, row: ExpansionBound, fmt: Format) -> int:
        """How many results break the bound of a row."""
        assert fmt.dtype is not None
        relative, of_product = row.relative(fmt.dtype), row.relative_to_product(fmt.dtype)
        unit = math.lcm(relative.denominator, of_product.denominator)
        allowed = int(relative * unit) * self.reference + int(of_product * unit) * self.product
        return int((self.error * unit > allowed + unit * row.absolute * self.absolute).sum())

    def worst(self, scale: int) -> float:
        """The largest error / reference, times 2**scale."""
        found = 0.0
        for e, r in zip(self.error, self.reference + self.product, strict=True):
            if e:
                found = max(found, (e << scale) / r if r else np.inf)
        return found


def arguments(
    operation: str, fmt: Format, terms: int, count: int, seed: int, low: int, high: int
) -> list[tuple[Tensor, ...]]:
    """Hard arguments with leading exponents from low to high (sums: partners that cancel)."""
    if operation == "renormalize":
        # In any order, overlapping and cancelling; four floats at least.
        x = draw(fmt, max(2, terms), count, 3 * seed, low, high)
        y = partners(fmt, x, 3 * seed + 1, low, high)
        return [tensors(fmt, [*y[::-1], *x])]
    x = draw(fmt, terms, count, 3 * seed, low, high)
    if operation in ("sqrt", "rsqrt"):
        sign = np.sign(x[0]) + (x[0] == 0)
        return [tensors(fmt, [c * sign for c in x])]
    if operation in ("square", "reciprocal"):
        return [tensors(fmt, x)]
    if operation == "add":
        return [tensors(fmt, x), tensors(fmt, partners(fmt, x, 3 * seed + 1, low, high))]
    y = draw(fmt, terms, count, 3 * seed + 1, low, high)
    if operation == "fma":
        z = draw(fmt, terms, count, 3 * seed + 2, low, high)
        # Half of the products are nearly cancelled.
        product = np.clip(-x[0] * y[0], -float(fmt.max) / 8, float(fmt.max) / 8)
        leading = torch.from_numpy(product).to(fmt.dtype).double().numpy()
        cancels = np.arange(count) % 2 == 0
        z = [np.where(cancels, leading if k == 0 else 0.0, c) for k, c in enumerate(z)]
        return [tensors(fmt, c) for c in (x, y, z)]
    return [tensors(fmt, x), tensors(fmt, y)]


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
    result: tuple[Tensor, ...] = getattr(expansions, operation)(*given, *extra)
    return result


def live(fmt: Format, given: Sequence[Sequence[Tensor]], result: Sequence[Tensor]) -> Tensor:
    """Where nothing comes near overflow, and no argument that divides is zero."""
    keep = torch.ones(len(result[0]), dtype=torch.bool)
    for t in (*(t for c in given for t in c), *result):
        keep &= t.abs().double() < float(fmt.max) / 8
    return keep


def measured(
    operation: str,
    fmt: Format,
    terms: int,
    float_second: bool,
    count: int,
    seed: int,
    low: int,
    high: int,
) -> Errors:
    """The errors over `count` hard inputs; fails where a result is not normalised."""
    given = arguments(operation, fmt, terms, count, seed, low, high)
    if float_second:
        given[1] = given[1][:1]
    result = apply(operation, given, terms)
    keep = live(fmt, given, result)
    if operation in ("div", "reciprocal", "rsqrt"):
        keep &= given[-1][0] != 0
    given = [tuple(t[keep] for t in c) for c in given]
    result = tuple(t[keep] for t in result)
    assert bool(is_normalised(result, fmt).all()), f"{operation}: not normalised"
    return errors(operation, fmt, given, result)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="inputs per case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="names of operations")
    options = parser.parse_args()
    print("| operation | n | " + " | ".join(f.name for f in (BF16, FP32, FP64)) + " |")
    print("|---|---|---|---|---|", flush=True)
    step = 100_000
    for name, float_second in CASES:
        if options.only and name not in options.only:
            continue
        for terms in (1, 2, 3, 4):
            cells = []
            for fmt in (BF16, FP32, FP64):
                found = 0.0
                for k in range(0, options.count, step):
                    errors = measured(
                        name,
                        fmt,
                        terms,
                        float_second,
                        min(step, options.count - k),
                        options.seed + k // step,
                        -8,
                        8,
                    )
                    found = max(found, errors.worst(terms * fmt.p))
                cells.append(f"{found:.3f}")
            label = f"`{name}`" + (" by a float" if float_second else "")
            print(f"| {label} | {terms} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

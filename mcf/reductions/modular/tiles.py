"""One tile of a product: integers, products of residues, the way back, the rounding test."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.formats import Format
from mcf.reductions.modular import declarations, int8
from mcf.reductions.modular.integers import UP, Integers
from mcf.reductions.modular.moduli import Plan, weights


def tile(
    left: Integers, right: Integers, plan: Plan, fmt: Format, terms: int
) -> tuple[Components, Tensor]:
    """The nearest expansions to the products of rows and columns, [m, n], and where that is sure.

    Where it is not, the components are any numbers.
    """
    rows, inner, columns = *left.planes.shape[1:], right.planes.shape[2]
    device = left.planes.device
    y = _weighted(left.planes, right.planes, plan).view(len(plan.moduli), -1)
    # Exact but for the last row, whose error is far below the distance from a half.
    digits = weights(plan, device) @ y
    shape, scale = (rows, columns), plan.width * (plan.digits - 1)
    # With |a - a'| <= da and |b - b'| <= db: |a b - a' b'| <= da |b| + db |a'|.
    dropped = left.dropped, right.dropped
    size = left.size + inner * dropped[0]
    error = dropped[0][:, None] * right.size[None, :] + dropped[1][None, :] * size[:, None]
    error *= UP * 2.0**-scale
    exponent = (left.unit[:, None] + right.unit[None, :] + scale).double()
    kept = torch.float64 if fmt.p == 53 else torch.float32
    out = torch.empty(terms, rows * columns, dtype=kept, device=device)
    sure = torch.empty(rows * columns, dtype=torch.int8, device=device)
    spec = declarations.rounded(fmt, plan.digits, plan.width, terms)
    row = [*out, sure, *digits, exponent.view(-1), error.view(-1)]
    declarations.run(spec, [row], [plan.split(plan.product)])
    assert fmt.dtype is not None
    return tuple(x.view(shape).to(fmt.dtype) for x in out), sure.view(shape) == 1


def _weighted(a: Tensor, b: Tensor, plan: Plan) -> Tensor:
    """y_t, float64 [moduli, m, n]."""
    squares, count = len(plan.squares), len(plan.moduli)
    out = torch.empty(count, a.shape[1], b.shape[2], dtype=torch.float64, device=a.device)
    mixed = torch.empty(squares, *out.shape[1:], dtype=torch.float64, device=a.device)
    sums = torch.empty_like(out)
    for t in range(count):
        sums[t] = _product(a[t], b[t])
    for t in range(squares):
        # The digits in the middle: one product with twice the inner dimension.
        mixed[t] = _product(torch.cat([a[t], a[count + t]], 1), torch.cat([b[count + t], b[t]], 0))
    factors = [float(q) for q in plan.inverses]
    moduli = [[float(m), 1 / m] for m in plan.moduli]
    if squares:
        declarations.run(
            declarations.joined(),
            [[out[t].view(-1), sums[t].view(-1), mixed[t].view(-1)] for t in range(squares)],
            [[factors[t], float(s), 1 / s, *moduli[t]] for t, s in enumerate(plan.squares)],
        )
    plain = range(squares, count)
    declarations.run(
        declarations.multiple(),
        [[out[t].view(-1), sums[t].view(-1)] for t in plain],
        [[factors[t], *moduli[t]] for t in plain],
    )
    return out


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, exact, in blocks of the inner dimension."""
    inner = a.shape[1]
    if inner <= int8.INTEGERS:
        return int8.product(a, b).double()
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64, device=a.device)
    for start in range(0, inner, int8.INTEGERS):
        part = slice(start, start + int8.INTEGERS)
        total += int8.product(a[:, part].contiguous(), b[part])
    return total

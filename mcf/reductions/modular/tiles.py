"""One tile of a product: integers, products of residues, the way back, and the rounding test."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.formats import Format
from mcf.reductions.modular import declarations, int8
from mcf.reductions.modular.integer_matrices import UP, Integers
from mcf.reductions.modular.moduli import Plan, batches

# Elements whose digits are gathered at a time, so that intermediate results stay in the cache.
CELLS = 1 << 17


def tile(
    left: Integers, right: Integers, plan: Plan, fmt: Format, terms: int
) -> tuple[Components, Tensor]:
    """Return the nearest expansions to the products of rows and columns, [m, n], and where certain.

    Where the result is not certain, the components are arbitrary.
    """
    rows, inner, columns = *left.planes.shape[1:], right.planes.shape[2]
    device, scale = left.planes.device, plan.width * (plan.digits - 1)
    # With |a - a'| <= da and |b - b'| <= db: |a b - a' b'| <= da |b| + db |a'|.
    size = left.size + inner * left.dropped
    kept = torch.float64 if fmt.p == 53 else torch.float32
    out = torch.empty(terms, rows * columns, dtype=kept, device=device)
    sure = torch.empty(rows * columns, dtype=torch.int8, device=device)
    spec = declarations.rounded(fmt, plan.digits, plan.width, terms)
    modulus = torch.tensor([plan.split(plan.product)], dtype=torch.float64, device="cpu")
    step = min(rows, max(1, CELLS // columns))
    digits_of_all = torch.empty(plan.digits + 1, step * columns, dtype=torch.float64, device=device)
    sums = torch.empty(2 * declarations.GROUP, step * columns, dtype=torch.int32, device=device)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        count = (min(rows, start + step) - start) * columns
        digits = digits_of_all[:, :count]
        _gather(left.planes[:, part], right.planes, plan, digits, sums[:, :count])
        error = left.dropped[part, None] * right.size + size[part, None] * right.dropped
        error *= UP * 2.0**-scale
        exponent = (left.unit[part, None] + right.unit + scale).double()
        cells = slice(start * columns, start * columns + count)
        row = [*out[:, cells], sure[cells], *digits, exponent.view(-1), error.view(-1)]
        declarations.run(spec, row, modulus)
    assert fmt.dtype is not None
    shape = rows, columns
    return tuple(x.view(shape).to(fmt.dtype) for x in out), sure.view(shape) == 1


def _gather(a: Tensor, b: Tensor, plan: Plan, digits: Tensor, sums: Tensor) -> None:
    """Accumulate the digits of the products of integers, and the multiple of M in them.

    Args:
        a: planes [planes, m, k].
        b: planes [planes, k, n].
        plan: the moduli.
        digits: results, [digits + 1, m n].
        sums: workspace for products, [2 GROUP, m n].
    """
    moduli, size = len(plan.moduli), declarations.GROUP
    digits.zero_()
    for batch in batches(plan, size):
        # The products of padding moduli stay 0.
        if batch.count < size:
            sums.zero_()
        for k in range(batch.count):
            t = batch.first + k
            int8.product(a[t], b[t], sums[k].view(a.shape[1], -1), plan.moduli[t])
            if batch.digits == 2:
                # The middle digits: one product with twice the inner dimension.
                wide = torch.cat([a[t], a[moduli + t]], 1)
                tall = torch.cat([b[moduli + t], b[t]], 0)
                middle = sums[size + k].view(a.shape[1], -1)
                int8.product(wide, tall, middle, plan.squares[t])
        spec = declarations.gathered(plan.digits, batch.digits)
        declarations.run(spec, [*digits, *sums[: size * batch.digits]], batch.back)

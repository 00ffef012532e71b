"""Compute x @ y with each element the nearest expansion to the exact sum of exact products.

A tile of the result consists of integers, products of residues, the way back, and a rounding test.
Every intermediate sum of int8 products is an integer that the arithmetic can represent, so neither
the order of additions nor the hardware changes a bit.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mcf.kernels.components import Components as Components
from mcf.kernels.formats import Format, format_of
from mcf.reductions.exact import exact_dots
from mcf.reductions.modular import residues
from mcf.reductions.modular.moduli import Plan, batches, plan_for
from mcf.reductions.modular.residues import UP, Integers, integers
from mcf.reductions.rows import operator

# Since |a b| <= 2**14, this many products fit an int32 (2**30) and a float32 (2**24) accumulator.
INTEGERS, FLOATS = 1 << 16, 1 << 10


def int8_product(a: Tensor, b: Tensor, out: Tensor, modulus: int) -> None:
    """Store a @ b, or a value congruent to it modulo `modulus` <= 2**16, in int32 `out`.

    a and b are contiguous int8 [m, k] and [k, n] with m, k, n > 0.
    """
    inner = a.shape[1]
    if _units(a.device):
        if inner <= INTEGERS:
            _on_units(a, b, out)
            return
        step, part_of = INTEGERS, _part_on_units
    else:
        step, part_of = FLOATS, _part_in_floats
    out.zero_()
    for start in range(0, inner, step):
        part = part_of(a[:, start : start + step].contiguous(), b[start : start + step])
        out += part.remainder_(modulus) if inner > INTEGERS else part


def _part_on_units(a: Tensor, b: Tensor) -> Tensor:
    out = torch.empty(a.shape[0], b.shape[1], dtype=torch.int32, device=a.device)
    _on_units(a, b, out)
    return out


def _part_in_floats(a: Tensor, b: Tensor) -> Tensor:
    # Autocast would round the sums to 16 bits.
    with torch.autocast(a.device.type, enabled=False):
        return (a.float() @ b.float()).int()


def _on_units(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.device.type == "cpu":
        torch._int_mm(a, b, out=out)
        return
    # cuBLAS requires more than 16 rows, and an inner dimension and columns that are multiples of 8.
    out.copy_(_padded(a, b))


def _padded(a: Tensor, b: Tensor) -> Tensor:
    rows, columns, inner = a.shape[0], b.shape[1], -a.shape[1] % 8
    a = torch.nn.functional.pad(a, (0, inner, 0, max(0, 32 - rows)))
    b = torch.nn.functional.pad(b, (0, -columns % 8, 0, inner))
    return torch._int_mm(a, b)[:rows, :columns]


@functools.cache
def _units(device: torch.device) -> bool:
    """Return whether the device multiplies int8 exactly and fast, tested on the largest numbers.

    Processors without VNNI add pairs of products in 16 bits, which saturate.
    """
    if device.type == "cpu" and not getattr(torch.cpu, "_is_vnni_supported", lambda: False)():
        return False
    try:
        for size in (64, 320):
            a = torch.full((size, size), -128, dtype=torch.int8, device=device)
            b = a.clone()
            b[:, ::3] = 127
            if not torch.equal(_part_on_units(a, b).double(), a.double() @ b.double()):
                return False
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


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
    spec = residues.rounded(fmt, plan.digits, plan.width, terms)
    modulus = torch.tensor([plan.split(plan.product)], dtype=torch.float64, device="cpu")
    step = min(rows, max(1, CELLS // columns))
    digits_of_all = torch.empty(plan.digits + 1, step * columns, dtype=torch.float64, device=device)
    sums = torch.empty(2 * residues.GROUP, step * columns, dtype=torch.int32, device=device)
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
        residues.run(spec, row, modulus)
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
    moduli, size = len(plan.moduli), residues.GROUP
    digits.zero_()
    for batch in batches(plan, size):
        # The products of padding moduli stay 0.
        if batch.count < size:
            sums.zero_()
        for k in range(batch.count):
            t = batch.first + k
            int8_product(a[t], b[t], sums[k].view(a.shape[1], -1), plan.moduli[t])
            if batch.digits == 2:
                # The middle digits: one product with twice the inner dimension.
                wide = torch.cat([a[t], a[moduli + t]], 1)
                tall = torch.cat([b[moduli + t], b[t]], 0)
                middle = sums[size + k].view(a.shape[1], -1)
                int8_product(wide, tall, middle, plan.squares[t])
        spec = residues.gathered(plan.digits, batch.digits)
        residues.run(spec, [*digits, *sums[: size * batch.digits]], batch.back)


# Approximate temporary memory of a tile, in bytes.
WORKSPACE = 1 << 28
# Numbers gathered at a time for exact dot products.
GATHERED = 1 << 20


@operator(
    "exact_matrices(Tensor[] x, Tensor[] y, int terms)",
    lambda x, y, terms: [x[0].new_empty(*x[0].shape[:2], y[0].shape[2]) for _ in range(terms)],
)
def exact_matrices(x: list[Tensor], y: list[Tensor], terms: int) -> list[Tensor]:
    """Return the nearest expansions of `terms` components to x @ y.

    Args:
        x: components, contiguous [batch, m, k].
        y: components, contiguous [batch, k, n], of the same dtype.
        terms: components of the results.

    Returns:
        Components [batch, m, n].
    """
    batch, rows, inner = x[0].shape
    columns, fmt = y[0].shape[2], format_of(x[0].dtype)
    out = [x[0].new_zeros(batch, rows, columns) for _ in range(terms)]
    if not out[0].numel() or not inner:
        return out
    plan = plan_for(fmt, terms, inner)
    across, down = _tiles(plan, rows, inner, columns)
    for b in range(batch):
        left, right = _finite([c[b] for c in x]), _finite([c[b] for c in y])
        for j in range(0, columns, across):
            strip = [c[:, j : j + across].contiguous() for c in right]
            factors = integers(strip, 0, plan)
            for i in range(0, rows, down):
                part = [c[i : i + down] for c in left]
                found, sure = tile(integers(part, 1, plan), factors, plan, fmt, terms)
                area = (b, slice(i, i + down), slice(j, j + across))
                for o, c in zip(out, found, strict=True):
                    o[area] = c
                _again([o[area] for o in out], part, strip, ~sure, fmt)
        _special([o[b] for o in out], x[0][b], y[0][b])
    return out


def _tiles(plan: Plan, rows: int, inner: int, columns: int) -> tuple[int, int]:
    """Return the columns and rows of a tile, as large as the workspace allows."""
    planes = len(plan.moduli) + len(plan.squares)
    down, across = rows, columns

    def taken(down: int, across: int) -> int:
        # Residues, exponents and sizes of strips; components and certainty of elements.
        return inner * (planes + 40) * (down + across) + 40 * down * across

    while taken(down, across) > WORKSPACE and max(down, across) > 1:
        if down > across:
            down = -(-down // 2)
        else:
            across = -(-across // 2)
    return across, down


def _finite(x: list[Tensor]) -> list[Tensor]:
    """Return components in float64, with 0 in place of infinities and NaN."""
    wide = [c.double() for c in x]
    finite = wide[0].isfinite()
    for c in wide[1:]:
        finite &= c.isfinite()
    if bool(finite.all()):
        return wide
    return [torch.where(finite, c, 0.0) for c in wide]


def _again(out: list[Tensor], x: list[Tensor], y: list[Tensor], where: Tensor, fmt: Format) -> None:
    """Recompute elements of a product, in integers as wide as the range of the format."""
    places = where.nonzero()
    step = max(1, GATHERED // (x[0].shape[1] * len(x)))
    for start in range(0, len(places), step):
        i, j = places[start : start + step].unbind(1)
        left = [c[i].to(fmt.dtype) for c in x]
        right = [c[:, j].mT.contiguous().to(fmt.dtype) for c in y]
        for o, c in zip(out, exact_dots(left, right, len(out)), strict=True):
            o[i, j] = c


def _special(out: list[Tensor], x: Tensor, y: Tensor) -> None:
    """Write infinities and NaN where products of x and y have them."""
    rows, columns = ~x.isfinite().all(1), ~y.isfinite().all(0)
    if not bool(rows.any() | columns.any()):
        return

    # Count products of each kind as sums of ones: 0 means that there are none.
    def count(a: Tensor, b: Tensor) -> Tensor:
        return a.double() @ b.double()

    inf = torch.inf
    nan = count(x.isnan(), torch.ones_like(y)) + count(torch.ones_like(x), y.isnan())
    nan += count(x.isinf(), y == 0) + count(x == 0, y.isinf())
    plus = count(x == inf, y > 0) + count(x == -inf, y < 0)
    plus += count((x > 0) & x.isfinite(), y == inf) + count((x < 0) & x.isfinite(), y == -inf)
    minus = count(x == inf, y < 0) + count(x == -inf, y > 0)
    minus += count((x > 0) & x.isfinite(), y == -inf) + count((x < 0) & x.isfinite(), y == inf)
    special = (nan > 0) | (plus > 0) | (minus > 0)
    value = torch.where(plus > 0, inf, -inf).to(x.dtype)
    value = torch.where((nan > 0) | (plus > 0) & (minus > 0), torch.nan, value)
    out[0].copy_(torch.where(special, value, out[0]))
    for o in out[1:]:
        o.masked_fill_(special, 0.0)

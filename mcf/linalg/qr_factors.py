"""QR factorisation by Householder reflections, and least squares by it or by singular values."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.convert.rounding import convert
from mcf.kernels import operations, registry
from mcf.kernels.formats import format_of
from mcf.kernels.reflection import reflection
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg import triangular
from mcf.linalg.number_kinds import REAL, Real, working_terms
from mcf.linalg.parts import (
    ALL,
    Components,
    assign,
    each,
    identity,
    like,
    one_like,
    part,
    transpose,
    where,
)
from mcf.reductions.products import matmul

# One panel of at most so many rows and columns is done in one call, if there is a loop for it.
SMALL = 64


def factor(
    a: Components, mode: str = "reduced", numbers: Real = REAL
) -> tuple[Components | None, Components]:
    """Return A = Q R with LAPACK's signs, in blocks of reflections I - V T V^H.

    Shapes: A [..., m, n]; with k = min(m, n), Q [..., m, k] and R [..., k, n] ("reduced"), Q
    [..., m, m] and R [..., m, n] ("complete"), or R alone ("r").

    Narrower formats than float64 are factorised in two components of that, and rounded once.

    Q R = A + E with columnwise |E_j| <= c m n u^terms |A_j| in the 2-norm, and Q is orthogonal to
    the same order (Higham 2002, theorem 19.4, doi:10.1137/1.9780898718027; Schreiber, Van Loan
    1989 for V T V^T, doi:10.1137/0910005).
    """
    refuse_float32("a factorisation Q R", format_of(a[0].dtype), a[0].device)
    if a[0].dtype is torch.float64:
        return _factor(a, mode, numbers)
    fmt, terms = a[0].dtype, len(a) // numbers.parts
    wide = numbers.by_parts(lambda p: convert(p, torch.float64, working_terms(p)), a)
    q, r = (
        None if x is None else numbers.by_parts(lambda p: convert(p, fmt, terms), x)
        for x in _factor(wide, mode, numbers)
    )
    assert r is not None
    return q, r


def reflections(a: Components) -> tuple[Components, Components]:
    """Return R with the vectors of I - tau v v^T below its diagonal, and tau: LAPACK's `geqrf`.

    v begins with a 1 that is not stored; shapes [..., m, n] and [..., min(m, n)].
    """
    refuse_float32("a factorisation Q R", format_of(a[0].dtype), a[0].device)
    wide = convert(a, torch.float64, working_terms(a)) if a[0].dtype is not torch.float64 else a
    r = each(lambda c: c.clone(memory_format=torch.contiguous_format), wide)
    taus = [each(lambda c: c.new_empty(*c.shape[:-2], 0), r)]
    low = each(torch.zeros_like, r)
    for start, v, t in _blocks(r, REAL):
        rows, columns = v[0].shape[-2:]
        place = (slice(start, start + rows), slice(start, start + columns))
        assign(low, place, each(lambda c: c.tril(-1), v))
        taus.append(each(lambda c: c.diagonal(dim1=-2, dim2=-1), t))
    tau = tuple(torch.cat(parts, -1) for parts in zip(*taus, strict=True))
    both = tuple(torch.triu(c) + below for c, below in zip(r, low, strict=True))
    return (
        (both, tau)
        if wide is a
        else (convert(both, a[0].dtype, len(a)), convert(tau, a[0].dtype, len(a)))
    )


def _factor(a: Components, mode: str, numbers: Real) -> tuple[Components | None, Components]:
    """Factorise float64 components; arguments and results as in `factor`."""
    r = each(lambda c: c.clone(memory_format=torch.contiguous_format), a)
    *_, m, n = r[0].shape
    count = min(m, n)
    if m <= SMALL and n <= SMALL and 0 < count <= triangular.BLOCK:
        return _whole(r, mode, numbers)
    return _assembled(r, mode, _blocks(r, numbers), numbers)


def _blocks(r: Components, numbers: Real) -> list[tuple[int, Components, Components]]:
    """Overwrite the upper triangle with R; return the first row, V and T of each panel."""
    *_, m, n = r[0].shape
    count = min(m, n)
    blocks = []
    for start in range(0, count, triangular.BLOCK):
        block = slice(start, min(start + triangular.BLOCK, count))
        v, t, _ = _panel(r, block, numbers)
        blocks.append((start, v, t))
        if block.stop < n:
            rest = (slice(start, m), slice(block.stop, n))
            assign(r, rest, _reflect(v, numbers.adjoint(t), part(r, *rest), numbers))
    return blocks


def _assembled(
    r: Components, mode: str, blocks: list[tuple[int, Components, Components]], numbers: Real
) -> tuple[Components | None, Components]:
    """Return Q, assembled from the reflections of panels, and R."""
    *_, m, n = r[0].shape
    height = m if mode == "complete" else min(m, n)
    upper = each(lambda c: c[..., :height, :].triu(), r)
    if mode == "r":
        return None, upper
    q = each(lambda c: c[..., :height].clone(), identity(r, m))
    for start, v, t in reversed(blocks):
        rows = (slice(start, m), ALL)
        assign(q, rows, _reflect(v, t, part(q, *rows), numbers))
    return q, upper


def _whole(r: Components, mode: str, numbers: Real) -> tuple[Components | None, Components]:
    """Factorise a matrix of one panel, in one call if there is a loop for it."""
    *batch, m, n = r[0].shape
    count = min(m, n)
    height = m if mode == "complete" else count
    q = None if mode == "r" else each(lambda c: c.new_empty(*batch, m, height), r)
    v, t, done = _panel(r, slice(0, count), numbers, whole=True, q=q)
    if done:
        return q, each(lambda c: c[..., :height, :].triu(), r)
    if count < n:
        rest = (ALL, slice(count, n))
        assign(r, rest, _reflect(v, numbers.adjoint(t), part(r, *rest), numbers))
    return _assembled(r, mode, [(0, v, t)], numbers)


def _reflect(v: Components, t: Components, x: Components, numbers: Real) -> Components:
    """Return (I - V T V^H) X."""
    inner = numbers.matmul(t, numbers.matmul(numbers.adjoint(v), x))
    return numbers.minus(x, numbers.matmul(v, inner))


def _panel(
    r: Components,
    block: slice,
    numbers: Real = REAL,
    whole: bool = False,
    q: Components | None = None,
) -> tuple[Components, Components, bool]:
    """Reflect the columns of a block to upper triangular form; return V and T of their product.

    Also return whether it was one call. That call has also reflected the columns on the right of
    the block (`whole`) and stored the columns of Q.
    """
    start, width = block.start, block.stop - block.start
    batch, height = r[0].shape[:-2], r[0].shape[-2] - start
    v = each(lambda c: c.new_zeros(*batch, height, width), r)
    t = each(lambda c: c.new_zeros(*batch, width, width), r)
    if r[0].numel():
        flat = triangular.flat
        reflect = registry.on(r[0].device).reflect
        spec = reflection(len(r) // numbers.parts, numbers.parts)
        given = (spec, flat(r), start, flat(v), flat(t))
        if reflect(*given, whole=whole, q=None if q is None else flat(q)):
            return v, t, True
        if (whole or q is not None) and reflect(*given):
            return v, t, False
    adjoint, matmul = numbers.adjoint, numbers.matmul
    for j in range(width):
        below = slice(start + j, None)
        column, tau = _reflector(part(r, below, slice(start + j, start + j + 1)), numbers)
        assign(v, (slice(j, None), slice(j, j + 1)), column)
        panel = (below, slice(start + j, block.stop))
        along = numbers.times(numbers.conj(tau), matmul(adjoint(column), part(r, *panel)))
        assign(r, panel, numbers.less_product(part(r, *panel), column, along))
        before = slice(0, j)
        if j:
            # V^H v and T V^H v in the loop's order: computed by conjugates and from the transpose.
            overlap = matmul(adjoint(part(v, ALL, slice(j, j + 1))), part(v, ALL, before))
            inner = matmul(numbers.conj(overlap), transpose(part(t, before, before)))
            entry = numbers.by_parts(operations.neg, numbers.times(tau, transpose(inner)))
            assign(t, (before, slice(j, j + 1)), entry)
        assign(t, (slice(j, j + 1), slice(j, j + 1)), tau)
    return v, t, False


def _reflector(x: Components, numbers: Real) -> tuple[Components, Components]:
    """Return v (v[0] = 1) and tau with (I - conj(tau) v v^H) x = (beta, 0, ..., 0), beta real.

    The column is scaled by a power of two, so that its norm neither overflows nor underflows.
    """
    _, exponent = torch.frexp(numbers.magnitude(x).amax((-2, -1), keepdim=True))
    x = numbers.by_parts(lambda p: operations.ldexp(p, -exponent), x)
    first, rest = part(x, slice(0, 1), ALL), part(x, slice(1, None), ALL)
    if rest[0].shape[-2] == 0 and numbers.parts == 1:
        return one_like(first), each(torch.zeros_like, first)
    flat = (numbers.magnitude(rest) == 0).all(-2, keepdim=True) & numbers.is_real(first)
    norm = numbers.root(numbers.matmul(numbers.adjoint(x), x))
    beta = where(first[0] > 0, operations.neg(norm), norm)
    gap = (*operations.sub(numbers.real(first), beta), *first[len(norm) :])
    safe = where(flat, one_like(gap), gap)
    v = each(torch.clone, x)
    assign(v, (slice(0, 1), ALL), one_like(first))
    assign(v, (slice(1, None), ALL), numbers.over(rest, safe))
    tau = numbers.over_real(gap, where(flat, one_like(beta), beta))
    tau = numbers.by_parts(operations.neg, tau)
    return v, where(flat, like(tau, torch.zeros_like(tau[0])), tau)


def least_squares(a: Components, b: Components) -> tuple[Components, Tensor]:
    """Return X of least norm that minimises |A X - B|, for A [..., m, n] of full rank.

    R X = Q^T B with A = Q R, and X = Q R^-T B with A^T = Q R for m < n (Higham 2002, theorems 20.3
    and 21.4, doi:10.1137/1.9780898718027: X is exact for a matrix within c m n u^terms of A).

    Returns:
        X [..., n, k], and the smallest |r_ii| over the largest, which is 0 or about u^terms for a
        rank-deficient matrix.
    """
    wide = a[0].shape[-2] < a[0].shape[-1]
    q, r = factor(transpose(a) if wide else a)
    assert q is not None
    size = r[0].diagonal(dim1=-2, dim2=-1).abs()
    if size.shape[-1]:
        top = size.amax(-1)
        ratio = torch.where(top > 0, size.amin(-1) / torch.where(top > 0, top, 1.0), 0.0)
    else:
        ratio = size.new_ones(size.shape[:-1])
    if wide:
        return matmul(q, triangular.solve(transpose(r), b, upper=False)), ratio
    return triangular.solve(r, matmul(transpose(q), b), upper=True), ratio


def from_singular_values(
    u: Components, s: Components, vt: Components, kept: Tensor, b: Components
) -> Components:
    """Return V diag(1 / s) U^T B over the retained singular values."""
    y = matmul(transpose(u), b)
    safe = where(kept, s, one_like(s))
    y = operations.div(y, each(lambda c: c[..., None], safe))
    y = each(lambda c: torch.where(kept[..., None], c, 0.0), y)
    return matmul(transpose(vt), y)

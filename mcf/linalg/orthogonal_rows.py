"""An orthogonal matrix that makes the rows of another one orthogonal: W M = X.

One-sided Jacobi rotations in float64 arithmetic start the iteration, and end it in expansions where
corrections of all rows at once stall. Residuals, in units of u^terms, check results that the
stopping test does not prove: by first components and sums that are exact in any order, so that
every executor agrees.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import operations, registry, rotation
from mcf.kernels.bind import Algorithm, Binder
from mcf.kernels.decomposition import LOST as MOST
from mcf.kernels.decomposition import Limits
from mcf.kernels.formats import FP64
from mcf.kernels.refinement import DONE, STUCK, refinement
from mcf.kernels.torch.registers import primitives
from mcf.linalg.number_kinds import REAL, Real, squared_norms
from mcf.linalg.parts import (
    Components,
    each,
    identity,
    matrices,
    one_like,
    padded,
    part,
    where,
)


def exponent(terms: int) -> int:
    """Return log2 of `tolerance`."""
    return 4 - 53 * terms


def tolerance(terms: int) -> float:
    """Return the |cos| below which two rows count as orthogonal: 16 u^terms."""
    return 2.0 ** exponent(terms)


# log2 of the fraction of the largest row norm from which on rows must meet the tolerance: for
# general matrices, and for rows scaled by eigenvalues.
SHARES = {False: -1, True: -3}


def orthogonal_rows(
    m: Components, positive: bool = False, numbers: Real = REAL
) -> tuple[Components, Components, Components, Tensor]:
    """Return W and X = W M with orthogonal rows, W orthogonal, as in the one-sided Jacobi method.

    Args:
        m: float64 components [batch, n, columns], elements of at most some hundreds.
        positive: M is Hermitian and positive definite. Then the rows of X are those of W times
            eigenvalues, and the start needs no W.
        numbers: the arithmetic.

    Returns:
        W, X, the squared norms of X's rows and whether each matrix converged.
    """
    rows, columns = m[0].shape[1:]
    terms = len(m) // numbers.parts
    if m[0].numel() == 0:
        done = torch.ones(m[0].shape[0], dtype=torch.bool, device=m[0].device)
        return identity(m, rows), m, squared_norms(m, numbers), done
    leading = without_vanished(numbers.leading(m), columns, numbers)
    start = numbers.by_parts(lambda p: padded(p, terms), _start(leading, positive, numbers))
    x = each(torch.empty_like, m)
    w = each(torch.clone, start)
    squares = each(lambda c: c.new_empty(c.shape[:2]), numbers.real(m))
    settings = steps(terms), exponent(terms), SHARES[positive]
    given = refinement(terms, numbers.parts), m, w, x, squares
    state = registry.on(m[0].device).refine(*given, *settings)
    if state is not None:
        done, left = state != STUCK, state != DONE
        if bool(left.any()):
            _rotated(m, w, x, done, left, numbers)
            _put(squares, left, squared_norms(matrices(x, left), numbers))
        return w, x, squares, done
    w = orthonormal(start, terms, numbers)
    done = torch.zeros(m[0].shape[0], dtype=torch.bool, device=m[0].device)
    stuck = torch.zeros_like(done)
    before = torch.full(done.shape, 0.25, dtype=torch.float64, device=done.device)
    while True:
        active = (~done & ~stuck).nonzero().flatten()
        if active.numel() == 0:
            break
        some = matrices(m, active)
        v = matrices(w, active)
        y = without_vanished(numbers.matmul(v, some), columns, numbers)
        step, error = _step(v, y, numbers)
        slow = ~(error <= 2.0**-8 * before[active])
        finished = (error <= tolerance(terms)) | (slow & (error <= 8 * tolerance(terms)))
        before[active] = error
        done[active] = finished
        stuck[active] = slow & ~finished
        _put(x, active, y)
        moved = numbers.by_parts(operations.add, v, numbers.matmul(numbers.adjoint(step), v))
        _put(w, active, where((finished | slow)[:, None, None], v, moved))
    # Corrections do not rotate rows whose squared norms differ by less than 2^24 times their
    # product. A small row cannot do better than 8 tolerances; for large rows that is not a rounding
    # error. For a small and a large row the mean of both numerators may vanish although the product
    # does not.
    stuck = stuck | (done & _apart(x, 2.0 ** SHARES[positive], numbers))
    if bool(stuck.any()):
        v = orthonormal(matrices(w, stuck), terms, numbers)
        _put(w, stuck, v)
        product = numbers.matmul(v, matrices(m, stuck))
        _put(x, stuck, without_vanished(product, columns, numbers))
        _rotated(m, w, x, done, stuck, numbers)
    return w, x, squared_norms(x, numbers), done


def _apart(x: Components, share: float, numbers: Real) -> Tensor:
    """Return which matrices have rows that are not orthogonal.

    Rows below a fraction `share` of the largest may reach 8 tolerances.
    """
    product = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, own = numbers.magnitude(product), product[0].diagonal(dim1=-2, dim2=-1)
    norms = operations.sqrt((own.contiguous(),))[0]
    large = norms >= share * norms.amax(-1, keepdim=True)
    limit = tolerance(len(x) // numbers.parts) * norms[..., None] * norms[..., None, :]
    limit = torch.where(large[..., None] & large[..., None, :], limit, 8 * limit)
    return (size > limit).triu(1).flatten(1).any(1)


def _rotated(
    m: Components, w: Components, x: Components, done: Tensor, stuck: Tensor, numbers: Real
) -> None:
    """Rotate pairs of rows in expansions, for matrices on which simultaneous corrections stall."""
    columns, terms = x[0].shape[2], len(x) // numbers.parts
    given = zip(matrices(x, stuck), matrices(w, stuck), strict=True)
    both = tuple(torch.cat(pair, 2) for pair in given)
    both, ended = orthogonalize(both, columns, tolerance(terms), numbers)
    y = each(lambda c: c[..., :columns].contiguous(), both)
    v = each(lambda c: c[..., columns:].contiguous(), both)
    done[stuck] = ended & held(matrices(m, stuck), v, y, numbers)
    _put(x, stuck, y)
    _put(w, stuck, v)


def _start(m: Components, positive: bool, numbers: Real) -> Components:
    """Return the start W in float64 arithmetic, one component per part."""
    columns = m[0].shape[2]
    if positive:
        x, _ = orthogonalize(m, columns, tolerance(1), numbers)
        (norms,) = operations.sqrt(squared_norms(x, numbers))
        return each(lambda c: c / norms[..., None], x)
    both = tuple(torch.cat(p, 2) for p in zip(m, identity(m, m[0].shape[1]), strict=True))
    x, _ = orthogonalize(both, columns, tolerance(1), numbers)
    return each(lambda c: c[..., columns:].contiguous(), x)


def steps(terms: int) -> int:
    """Return the number of orthogonalisation steps of a start, see `orthonormal`."""
    return 3 if terms > 3 else 2


def orthonormal(v: Components, terms: int, numbers: Real = REAL) -> Components:
    """Return the nearest orthogonal matrix, given one orthogonal up to float64 rounding errors.

    Newton's iteration without inverses, V + (I - V V^H) V / 2, which squares the distance (Bjorck,
    Bowie 1971, doi:10.1137/0708036).
    """
    for _ in range(steps(terms)):
        rest = each(lambda c: c / 2, lacking(v, numbers))
        v = numbers.by_parts(operations.add, v, numbers.matmul(rest, v))
    return v


def _step(w: Components, x: Components, numbers: Real) -> tuple[Components, Tensor]:
    """Return all rotations combined, to first order, and how far the rows are from orthogonal.

    E makes w + E^H w orthogonal and brings E^H x closer to orthogonal quadratically (Ogita, Aishima
    2018, doi:10.1007/s13160-018-0310-3, for X X^T).
    """
    n = w[0].shape[-1]
    diagonal = torch.eye(n, dtype=torch.bool, device=w[0].device)
    r = lacking(w, numbers)
    g = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, rest = (each(lambda c: c.diagonal(dim1=-2, dim2=-1), numbers.real(p)) for p in (g, r))
    size = operations.div(size, operations.sub(one_like(rest), rest))
    column, row = each(lambda c: c[..., None], size), each(lambda c: c[..., None, :], size)
    numerator = numbers.by_parts(lambda p, q: operations.fma(row, p, q), r, g)
    gap = operations.sub(row, column)
    mean = numbers.mean_size(numerator)
    near = mean > 2.0**-24 * gap[0].abs()
    near |= diagonal | (gap[0] == 0)
    quotient = numbers.over_real(
        where(near, each(torch.zeros_like, numerator), numerator), where(near, one_like(gap), gap)
    )
    step = where(near, each(lambda c: c / 2, r), quotient)
    norms = operations.sqrt((size[0],))[0]
    sizes = norms[..., None] * norms[..., None, :]
    cosine = torch.where((sizes > 0) & ~diagonal, mean / torch.where(sizes > 0, sizes, 1.0), 0.0)
    return step, torch.maximum(cosine, numbers.magnitude(r)).amax((1, 2))


def _put(x: Components, index: Tensor, values: Components) -> None:
    for c, v in zip(x, values, strict=True):
        c[index] = v


def orthogonalize(
    x: Components, width: int, limit: float, numbers: Real = REAL
) -> tuple[Components, Tensor]:
    """Rotate pairs of rows until all rows are orthogonal in their first `width` columns.

    Rows i and j with squared norms a and b and inner product g become c x_i - s x_j and
    s x_i + c x_j with c^2 + s^2 = 1, t = s / c, t^2 + 2 z t = 1 and z = (b - a) / 2 g, the smaller
    root (Hestenes 1958, doi:10.1137/0106005; Demmel, Veselic 1992, doi:10.1137/0613074). The n / 2
    pairs of a round are rotated together and n - 1 rounds are a sweep, in which each pair meets
    once. Columns after the first `width` follow. One component takes float64 operations that IEEE
    754 rounds in one way, so that the start of a decomposition has the same bits everywhere
    (`mcf.kernels.rotation`). Of complex rows g = |g| p, and they become c x_i - s p x_j and
    s conj(p) x_i + c x_j.

    Args:
        x: float64 components [batch, n, columns], none of them larger than some hundreds. Rows of
            the first `width` columns below 2^-250 become zeros.
        width: of the columns that become orthogonal.
        limit: pairs with |g| <= limit sqrt(a b) are left as they are;
            a power of two.
        numbers: the arithmetic.

    Returns:
        The rows, each matrix as if it were alone, and which of the matrices have converged.
    """
    batch, n, columns = x[0].shape
    done = torch.zeros(batch, dtype=torch.bool, device=x[0].device)
    if n < 2 or batch == 0:
        return x, ~done
    if n % 2:
        # Pad with a zero row: it is orthogonal to all others and last again after a full sweep.
        x = each(lambda c: torch.cat([c, c.new_zeros(batch, 1, columns)], 1), x)
    # The loop works in place, on a copy.
    rows = each(lambda c: c.clone(memory_format=torch.contiguous_format), x)
    exponent = math.frexp(limit)[1] - 1
    executor, spec = registry.on(rows[0].device), _rotations(x, numbers)
    found = executor.rotate(spec, rows, width, n, exponent)
    if found is not None:
        return each(lambda c: c[:, :n], rows), found
    for _ in range(rotation.SWEEPS):
        active = (~done).nonzero().flatten()
        if active.numel() == 0:
            break
        whole = active.numel() == batch
        rows = x if whole else matrices(x, active)
        rows = without_vanished(rows, width, numbers)
        rows, cosine, tangent = _sweep(rows, width, limit, numbers)
        x = (
            rows
            if whole
            else tuple(c.index_copy(0, active, r) for c, r in zip(x, rows, strict=True))
        )
        limits = torch.full_like(cosine, limit)
        done[active] = _plain(spec.converged)(cosine, tangent, float(n), limits)
    return without_vanished(each(lambda c: c[:, :n], x), width, numbers), done


def _rotations(x: Components, numbers: Real) -> rotation.Rotations:
    return rotation.rotations(len(x) // numbers.parts, numbers.parts)


def without_vanished(x: Components, width: int, numbers: Real = REAL) -> Components:
    """Return x with zeros for rows whose first `width` elements are below 2^-250."""
    gone = numbers.magnitude(x)[..., :width].amax(2, keepdim=True) < rotation.VANISHED
    gone = gone & (torch.arange(x[0].shape[2], device=gone.device) < width)
    return each(lambda c: torch.where(gone, 0.0, c), x)


@functools.cache
def _next_order(n: int, device: torch.device) -> Tensor:
    """Return the position of each row of the next round; the first stays."""
    return torch.tensor(rotation.next_order(n), device=device)


@functools.cache
def _plain(algorithm: Algorithm) -> Callable[..., Any]:
    """Return an algorithm as a function of float64 tensors."""
    numbers = {"ZERO": torch.zeros((), dtype=torch.float64, device="cpu")}
    numbers["ONE"] = torch.ones_like(numbers["ZERO"])
    table = primitives(FP64, FP64, {"rc": FP64}) | numbers
    return Binder(lambda f: f, table)(algorithm)  # type: ignore[no-any-return]


def _sweep(
    x: Components, width: int, limit: float, numbers: Real
) -> tuple[Components, Tensor, Tensor]:
    """Perform n - 1 rounds; return the rows, the largest |cos| of two rows and the largest |t|."""
    n = x[0].shape[1]
    half, spec = n // 2, _rotations(x, numbers)
    order = _next_order(n, x[0].device)
    cosines, tangents = [], []
    for _ in range(n - 1):
        top, bottom = each(lambda c: c[:, :half], x), each(lambda c: c[:, half:], x)
        a, b, g = _products(part(top, slice(width)), part(bottom, slice(width)), numbers)
        limits = torch.full_like(g[0], limit)
        c, s, cosine, tangent = _plain(spec.rotation)(a, b, g, limits)
        cosines.append(cosine.amax((1, 2)))
        tangents.append(tangent.amax((1, 2)))
        first, second = _plain(spec.rotated)(c, s, top, bottom)
        x = tuple(torch.cat(p, 1).index_select(1, order) for p in zip(first, second, strict=True))
    return x, torch.stack(cosines).amax(0), torch.stack(tangents).amax(0)


def _products(
    x: Components, y: Components, numbers: Real
) -> tuple[Components, Components, Components]:
    """Return x x^H, y y^H and x y^H of each pair of rows [batch, n, width], as [batch, n, 1]."""
    if len(x) > numbers.parts:
        pairs = tuple(torch.stack(p, 2) for p in zip(x, y, strict=True))
        gram = numbers.matmul(pairs, numbers.adjoint(pairs))
        return (
            numbers.real(part(gram, slice(0, 1), 0)),
            numbers.real(part(gram, slice(1, 2), 1)),
            part(gram, slice(0, 1), 1),
        )
    products = [x[0] * x[0], y[0] * y[0], x[0] * y[0]]
    if numbers.parts == 2:
        other = x[1] * x[1], y[1] * y[1], x[1] * y[1]
        products = [p + q for p, q in zip(products, other, strict=True)]
        products.append(x[1] * y[0] - x[0] * y[1])
    terms = torch.stack(products)
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        total = terms[..., :half] + terms[..., half : 2 * half]
        if terms.shape[-1] % 2:
            total = torch.cat([total, terms[..., -1:]], -1)
        terms = total
    return (terms[0],), (terms[1],), tuple(terms[2:])


# Limits after rotations, each of which leaves an error on the diagonal of W W^H - I. V^H A V off
# its diagonal was observed up to 45 next to multiples of the identity, and about 3 elsewhere.
LIMITS = Limits(own=32, off=64, cosine=64, drift=8, mixed=96)


def lacking(w: Components, numbers: Real) -> Components:
    """Return I - W W^H."""
    product = numbers.matmul(w, numbers.adjoint(w))
    return numbers.hermitian(numbers.minus(identity(w, w[0].shape[-2]), product))


def held(m: Components, w: Components, x: Components, numbers: Real = REAL) -> Tensor:
    """Return for which matrices W is orthogonal, W M = X and X has orthogonal rows, within LIMITS.

    Successive rotations lose a little of all three, and no other check would notice.
    """
    rows, unit = w[0].shape[1], 2.0 ** (-53 * (len(w) // numbers.parts))
    eye = torch.eye(rows, dtype=torch.bool, device=w[0].device)
    size = numbers.magnitude(lacking(w, numbers))
    good = torch.where(eye, size <= LIMITS.own * rows * unit, size <= LIMITS.off * unit)
    good = good.flatten(1).all(1)
    product = numbers.hermitian(numbers.matmul(x, numbers.adjoint(x)))
    size, own = numbers.magnitude(product), product[0].diagonal(dim1=-2, dim2=-1)
    norms = operations.sqrt((own.contiguous(),))[0]
    limit = LIMITS.cosine * unit * norms[..., None] * norms[..., None, :]
    good &= (eye | (size <= limit)).flatten(1).all(1)
    return good & below(
        numbers.minus(numbers.matmul(w, m), x), LIMITS.drift * rows * unit, m, numbers
    )


# Limits for Y after a QR factorisation or a completed basis: BASIS for each element of Y Y^H - I;
# LOST times rows plus MORE for W M - diag(s) Y. For rows longer than LONG they grow with the root
# of the length.
BASIS, LOST, MORE, LONG = 32, 8, 24, 2**14


def factored(
    m: Components,
    w: Components,
    sizes: Components,
    y: Components,
    numbers: Real = REAL,
    rotated: Tensor | None = None,
) -> Tensor:
    """Return for which matrices Y has orthonormal rows, and W M = diag(s) Y for its first rows.

    No other check bounds the loss of reflections of long columns. `rotated` [batch, rows] marks
    rows that come unchanged from rotations (none by default), whose stopping test has proved
    orthogonality: small rows may be less orthogonal among themselves.
    """
    rows, length = w[0].shape[1], m[0].shape[2]
    unit = 2.0 ** (-53 * len(sizes)) * max(1.0, math.sqrt(length / LONG))
    near = numbers.magnitude(lacking(y, numbers)) <= BASIS * unit
    if rotated is not None:
        near[:, :rows, :rows] |= rotated[:, :, None] & rotated[:, None, :]
    good = near.flatten(1).all(1)
    first = each(lambda c: c[:, :rows].contiguous(), y)
    along = each(lambda c: c[..., None], sizes)
    scaled = numbers.by_parts(lambda p: operations.mul(p, along), first)
    lost = numbers.minus(numbers.matmul(w, m), scaled)
    return good & below(lost, (LOST * rows + MORE) * unit, m, numbers)


def unmixed(product: Components, a: Components, numbers: Real = REAL) -> Tensor:
    """Return for which matrices V^H A V is diagonal, judged by its upper triangle."""
    off = each(lambda c: c.triu(1) * math.sqrt(2.0), product)
    limit = LIMITS.mixed * a[0].shape[-1] * 2.0 ** (-53 * (len(a) // numbers.parts))
    return below(off, limit, a, numbers)


def below(x: Components, factor: float, m: Components, numbers: Real) -> Tensor:
    """Return whether |X| <= factor |M| (Frobenius), as `Limits` defines; False for NaN."""
    leading = numbers.leading(m)
    all_of = _square(leading, m[0].new_full(m[0].shape[:1], 2.0**-10), 0)
    half = torch.div(torch.frexp(all_of)[1] - 1, 2, rounding_mode="floor")
    least = factor / (64 * max(1, m[0].shape[-1]))
    step = torch.ldexp(torch.full_like(all_of, least), half)
    return _square(numbers.leading(x), step, 1) <= factor * factor * all_of


def _square(parts: Components, step: Tensor, more: int) -> Tensor:
    """Return sums of squares of elements rounded down (with more=1 up) to multiples of a step."""
    size = torch.stack(parts, -1).abs()
    count = (size / step.reshape(-1, 1, 1, 1)).clamp(max=float(MOST)).floor() + (size > 0) * more
    return (count * count).sum((1, 2, 3)) * (step * step)

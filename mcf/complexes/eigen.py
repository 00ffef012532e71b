"""Eigenvalues and eigenvectors of general matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.factors import solve
from mcf.complexes.tensor import MCFComplexTensor, pair
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels import operations
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import refuse_float32
from mcf.linalg.unitary import Expansions, Floats, triangular

# Corrections larger than this do not belong to a nearby decomposition.
LARGE = 0.125
# Eigenvalues closer than this, whose vectors mix by less than that, count as equal.
EQUAL, MIXED = 2.0**-26, 2.0**-40
ROUNDS = 8


def decompose(a: MCFComplexTensor, real: bool) -> tuple[MCFComplexTensor, MCFComplexTensor] | None:
    """Return w and V with A V = V diag(w), |v| = 1, each vector's largest element positive.

    The start is the Schur form in float64, by the rotations of `mcf.linalg.unitary`. Then W = V^-1
    A V is formed in expansions, and V <- V + V F with F_ij = W_ij / (w_j - w_i), which squares the
    error (Bauer, Fike 1960, doi:10.1007/BF01386217, have the perturbation series). If F does not
    become small, or the residual stays large, as for defective matrices and clusters, the Schur
    form is computed in expansions.

    Args:
        a: [n, n] of float64 components, the largest element in [1/2, 1).
        real: whether the imaginary part is 0. Then simple real eigenvalues are real, and other
            simple ones come in conjugate pairs.

    Returns:
        None if neither converges. Otherwise each |A v - w v| <= 16 n u^terms |A| (Frobenius).
    """
    unit = 2.0 ** (-53 * a.terms)
    n = a.shape[0]
    size = float((a.real.square() + a.imag.square()).sum().sqrt())
    limit = 16 * n * unit * size
    vectors = _refined(a, _schur_vectors(a, exact=False), unit)
    if vectors is not None:
        values = _quotients(a, vectors)
        if real:
            values, vectors = _paired(a, values, vectors, limit)
        if bool((_residuals(a, values, vectors) <= limit).all()):
            return values, vectors
    vectors = _schur_vectors(a, exact=True)
    if vectors is None:
        return None
    vectors = _normalised(vectors)
    values = _quotients(a, vectors)
    return _paired(a, values, vectors, limit) if real else (values, vectors)


def _schur_vectors(a: MCFComplexTensor, exact: bool) -> Any:
    """Return Z X with A Z = Z T and T X = X diag(T), in float64 or in expansions."""
    n = a.shape[0]
    device = a.device
    both = [torch.stack(p, 1) for p in zip(a.real.components, a.imag.components, strict=True)]
    eye = torch.zeros(n, 2, n, dtype=torch.float64, device=device)
    eye[:, 0].fill_diagonal_(1.0)
    if exact:
        rest = [torch.zeros_like(eye)] * (a.terms - 1)
        form: Any = Expansions(tuple(both), (eye, *rest))
    else:
        form = Floats(both[0].cpu().numpy(), eye.cpu().numpy())
    unit = 2.0 ** (-53 * a.terms) if exact else 2.0**-53
    if not triangular(form, unit):
        return None
    if exact:
        found = form.both
    else:
        plain = torch.from_numpy(form.both).to(device)
        found = (plain, *[torch.zeros_like(plain)] * (a.terms - 1))
    t, z = (
        MCFComplexTensor(*(wrap([c[rows, k].contiguous() for c in found]) for k in (0, 1)))
        for rows in (slice(0, n), slice(n, 2 * n))
    )
    return z @ _triangular_vectors(t, unit)


def _triangular_vectors(t: Any, unit: float) -> Any:
    """Return X, upper triangular with ones on the diagonal, with T X = X diag(T).

    Divisors below the rounding error of T are replaced by it, and growing columns are scaled down.
    """
    n = t.shape[0]
    values = t.diagonal()
    floor = unit * float(torch.abs(t.real).max() + torch.abs(t.imag).max() or 1.0)
    x = pair(torch.eye(n, dtype=torch.float64, device=t.device), torch.zeros_like(t.imag))
    for i in range(n - 2, -1, -1):
        over = t[i, i + 1 :] @ x[i + 1 :, i + 1 :]
        gap = values[i + 1 :] - values[i]
        gap = torch.where((torch.abs(gap) < floor), floor, gap)
        x[i, i + 1 :] = over / gap
        top = _leading(x).amax(0)
        if bool((top > 2.0**200).any()):
            x = x * _power(-torch.frexp(top)[1])
    return x


def _normalised(v: Any) -> Any:
    """Return unit columns whose largest element (the first if equal) is real and positive."""
    size = v.real.components[0].square() + v.imag.components[0].square()
    # Scale by powers of two, so that all squares stay in range.
    v = v * _power(-(torch.frexp(size.amax(0))[1] // 2))
    largest = size.argmax(0, keepdim=True)
    phase = v.gather(0, largest)
    v = v * (torch.conj(phase) / torch.abs(phase))
    return v / (v.real.square() + v.imag.square()).sum(0).sqrt()


def _power(exponent: Tensor) -> Tensor:
    """Return 2**exponent in float64, exactly (`torch.ldexp` multiplies by a `pow`)."""
    one = torch.ones(exponent.shape, dtype=torch.float64, device=exponent.device)
    return operations.ldexp((one,), exponent)[0]


def _refined(a: MCFComplexTensor, v: Any, unit: float) -> Any:
    """Refine eigenvectors to all components; return None without convergence."""
    if v is None:
        return None
    n = a.shape[0]
    eye = torch.eye(n, dtype=torch.bool, device=a.device)
    for _ in range(ROUNDS):
        v = _normalised(v)
        if not bool(torch.isfinite(v).all()):
            return None
        try:
            w = solve(v, a @ v)
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return None
        values = w.diagonal()
        gap = values[None, :] - values[:, None]
        near, small = _leading(gap) < EQUAL, _leading(w) < MIXED
        still = eye | (near & small)
        f = torch.where(still, 0.0, w / torch.where(still, 1.0, gap))
        worst = float(_leading(f).max())
        if not worst <= LARGE:
            return None
        v = v + v @ f
        if worst * worst * n <= unit:
            return _normalised(v)
    return None


def _leading(z: Any) -> Tensor:
    """Return about |z| in float64, by operations with a fixed rounding."""
    size: Tensor = z.real.components[0].abs() + z.imag.components[0].abs()
    return size


def _quotients(a: Any, v: Any) -> Any:
    """Return v^H A v of each unit column, the value with the least residual."""
    product = torch.conj(v).mT[:, None, :] @ (a @ v).mT[:, :, None]
    return product[:, 0, 0]


def _residuals(a: Any, values: Any, v: Any) -> Tensor:
    """Return |A v - w v| of each column."""
    error = a @ v - v * values
    found: Tensor = (error.real.square() + error.imag.square()).sum(0).sqrt().components[0]
    return found


def _paired(a: Any, values: Any, v: Any, limit: float) -> Any:
    """Pair the eigenvalues of a real matrix: real values with real vectors, and conjugate pairs.

    Each value's partner is the one nearest to its conjugate. If two do not choose each other, or
    the residual would grow, the result stays unchanged.
    """
    distance = _leading(values[:, None] - torch.conj(values)[None, :])
    partner = distance.argmin(1)
    place = torch.arange(len(partner), device=partner.device)
    mutual = partner[partner] == place
    alone = mutual & (partner == place)
    below = mutual & ~alone & (values.imag.components[0] < 0)
    zero = torch.zeros_like(values.imag)
    w = MCFComplexTensor(
        torch.where(below, values.real[partner], values.real),  # type: ignore[arg-type]
        torch.where(alone, zero, torch.where(below, -values.imag[partner], values.imag)),  # type: ignore[arg-type]
    )
    other = v[:, partner]
    x = MCFComplexTensor(
        torch.where(below, other.real, v.real),  # type: ignore[arg-type]
        torch.where(alone, torch.zeros_like(v.imag), torch.where(below, -other.imag, v.imag)),  # type: ignore[arg-type]
    )
    x = x / (x.real.square() + x.imag.square()).sum(0).sqrt()
    good = (_residuals(a, w, x) <= limit) & mutual
    good = good & good[partner]
    return torch.where(good, w, values), torch.where(good, x, v)  # type: ignore[call-overload]


def scaled(a: MCFComplexTensor) -> tuple[MCFComplexTensor, Tensor]:
    """Return A 2^-k with at least two float64 components, the largest part in [1/2, 1), and k."""
    refuse_float32("eig", format_of(a.dtype), a.device)
    terms = max(2, a.terms)
    wide = [p.to(torch.float64, terms=terms) for p in (a.real, a.imag)]
    largest = torch.maximum(*(p.components[0].abs() for p in wide)).max()
    exponent = torch.frexp(largest)[1].long()
    return MCFComplexTensor(
        *(wrap(operations.ldexp(p.components, -exponent)) for p in wide)
    ), exponent


def unscaled(z: MCFComplexTensor, exponent: Tensor | int, like: MCFTensor) -> MCFComplexTensor:
    """Return z 2^k rounded to another tensor's format."""
    found = (wrap(operations.ldexp(p.components, exponent)) for p in (z.real, z.imag))
    return MCFComplexTensor(*(p.to(like.dtype, terms=like.terms) for p in found))

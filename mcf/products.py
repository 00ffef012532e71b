"""The matrix product of plain tensors and of expansion tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mcf import accurate
from mcf.expansions.tensor import MCFTensor
from mcf.reductions import products


def matmul(x: Tensor, y: Tensor, *, terms: int | None = None, reproducible: bool = False) -> Tensor:
    """x @ y, with shapes and broadcasting of `torch.matmul`.

    Each element is computed like Dot2, or DotK for three components and more (Ogita, Rump, Oishi
    2005, doi:10.1137/030601818), in a fixed order: `mcf.bound("matmul", terms, dtype, count=k)`.

    With `reproducible=True` it is the correctly rounded product: with s the exact sum of the exact
    products, x0 = RN(s), x1 = RN(s - x0), ..., ties to even, whatever the order of rows, columns
    and inner dimension, the device and the number of threads. That is what
    `mcf.dot(..., reproducible=True)` gives for each row and column, infinities, NaN, overflow,
    subnormal results and zeros (+0 where s is 0) included. It works by residues (Ozaki, Uchino,
    Imamura 2025, "Ozaki Scheme II", arXiv:2504.08009): rows and columns are scaled by powers of two
    and cut to integers, which are multiplied modulo coprime numbers up to 256 in int8; the Chinese
    remainder theorem gives the product of integers, and a bound of what was cut off says which
    elements are rounded with certainty. The others, where terms cancel or differ widely in size,
    are computed again by exact sums, which is slower by orders of magnitude.

    Args:
        x: plain or of expansions, [..., m, k] or [k].
        y: plain or of expansions of the same dtype, [..., k, n] or [k].
        terms: components of the result; by default the most that an argument has. 1 on plain
            tensors gives a plain tensor, anything else an `MCFTensor`.
        reproducible: round the exact products once. Temporary memory is about 256 MiB and copies
            of x and y in float64.

    The gradients are products of the same kind, with as many components as the argument has.

    Raises:
        TypeError: for other or mixed dtypes, or mixed devices.
        ValueError: for shapes that do not match or other numbers of terms.
    """
    accurate.check_terms("matmul", terms)
    a, b = accurate.components_of("matmul", "x", x), accurate.components_of("matmul", "y", y)

    def gradients(grad: Tensor, result: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return _gradients(grad, x, y, reproducible)

    return accurate.Reduction.apply(  # type: ignore[no-any-return, no-untyped-call]
        lambda: products.matmul(a, b, terms, reproducible=reproducible), gradients, x, y
    )


def _gradients(grad: Tensor, x: Tensor, y: Tensor, reproducible: bool) -> tuple[Tensor, Tensor]:
    """Return grad @ y^T and x^T @ grad, summed over broadcast dimensions."""
    left = x if x.dim() > 1 else x[None, :]
    right = y if y.dim() > 1 else y[:, None]
    if x.dim() == 1:
        grad = grad.unsqueeze(-1 if y.dim() == 1 else -2)
    if y.dim() == 1:
        grad = grad.unsqueeze(-1)

    def product(a: Tensor, b: Tensor, like: Tensor) -> Tensor:
        return matmul(a, b, terms=_terms(like), reproducible=reproducible)

    of_x = product(grad, right.mT, x)
    if y.dim() <= 2 < x.dim():
        # One product sums over all batches.
        tall, rows = left.reshape(-1, left.shape[-1]), grad.reshape(-1, grad.shape[-1])
        of_y = product(tall.mT, rows, y)
    else:
        of_y = product(left.mT, grad, y)
    return _summed(of_x, left, reproducible).reshape(x.shape), _summed(
        of_y, right, reproducible
    ).reshape(y.shape)


def _terms(x: Tensor) -> int:
    return x.terms if isinstance(x, MCFTensor) else 1


def _summed(value: Tensor, like: Tensor, reproducible: bool) -> Tensor:
    """Sum a gradient over the dimensions along which an argument was broadcast."""
    more = value.dim() - like.dim()
    dims = [
        d
        for d in range(value.dim() - 2)
        if d < more or (like.shape[d - more] == 1 and value.shape[d] != 1)
    ]
    if not dims:
        return value
    options: dict[str, Any] = {"terms": _terms(like), "reproducible": reproducible}
    return accurate.sum(value, tuple(dims), True, **options)

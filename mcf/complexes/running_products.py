"""Running products of complex expansions, variances and standard deviations."""

from __future__ import annotations

from typing import Any

import torch

from mcf.complexes.tensor import MCFComplexTensor, implements, pair
from mcf.kernels.row_tasks import along


@implements("cumprod")
def cumprod(input: Any, dim: int, *, dtype: torch.dtype | None = None) -> MCFComplexTensor:
    """Return running products along a dimension, by the tree of `mcf.kernels.row_tasks`.

    With the error bound b of a product (`mcf.bound("complex_mul", ...)`) the error of the k-th is
    at most (1 + b)**(k - 1) - 1 relative to its modulus, without overflow and underflow in between.

    Args:
        input: of any shape; a zero-dimensional tensor has one element.
        dim: the dimension.
        dtype: of the components, to which the input is converted first.

    Raises:
        IndexError: if there is no such dimension.
    """
    z = input if dtype is None or dtype is input.dtype else input.to(dtype)
    count, _ = along(z.shape or (1,), dim)
    if not z.shape or count < 2:
        return z.clone()  # type: ignore[no-any-return]
    return _tree(z.movedim(dim, 0)).movedim(0, dim).contiguous()  # type: ignore[no-any-return]


def _tree(z: Any) -> Any:
    """Scan along the first dimension: multiply pairs, scan these, then fill in the odd elements."""
    count = z.shape[0]
    if count == 1:
        return z
    pairs, between = count // 2, (count - 1) // 2
    running = _tree(z[0 : 2 * pairs : 2] * z[1 : 2 * pairs : 2])
    found = [z[:1]]
    if between:
        odd = running[:between] * z[2::2]
        found.append(torch.stack((running[:between], odd), 1).flatten(0, 1))
    return torch.cat([*found, running[between:]])


@implements("var")
def var(input: Any, *args: Any, **options: Any) -> Any:
    """Return the sum of the variances of the real and imaginary parts, as `torch.var`: real."""
    return torch.var(input.real, *args, **options) + torch.var(input.imag, *args, **options)


@implements("std")
def std(input: Any, *args: Any, **options: Any) -> Any:
    """Return the root of `var` as the hypotenuse of both parts' deviations, without overflow."""
    x, y = (torch.std(part, *args, **options) for part in (input.real, input.imag))
    return torch.hypot(x, y)


def _with_mean(name: str) -> Any:
    combined: Any = {"var_mean": torch.add, "std_mean": torch.hypot}[name]

    def both(input: Any, *args: Any, **options: Any) -> tuple[Any, MCFComplexTensor]:
        (x, a), (y, b) = (
            getattr(torch, name)(part, *args, **options) for part in (input.real, input.imag)
        )
        return combined(x, y), pair(a, b)

    return both


implements("var_mean")(_with_mean("var_mean"))
implements("std_mean")(_with_mean("std_mean"))

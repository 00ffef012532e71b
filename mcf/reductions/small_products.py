"""Matrix products of small float64 matrices, prepared once per signature.

They are the fold and the finalization of `mcf.reductions.folds`, in one native call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.convert.few import visible
from mcf.kernels import registry
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import FP64
from mcf.kernels.operators import settle_kernel
from mcf.kernels.program import Launch, Program

# For larger matrices the overhead that this saves is smaller than the loop itself.
_FEW = 4096


def small_products(x: Sequence[Tensor], y: Sequence[Tensor], terms: int) -> list[Tensor] | None:
    """Return products of contiguous [B, M, K] and [B, K, N] as `terms` components, or None."""
    first, second = x[0], y[0]
    if first.dtype is not torch.float64 or not visible(first):
        return None
    batch, rows, inner = first.shape
    size = (batch, rows, second.shape[-1])
    count = batch * rows * size[2]
    if not 0 < max(first.numel(), second.numel(), count) <= _FEW or not count * inner:
        return None
    if torch.is_grad_enabled() and any(c.requires_grad for c in (*x, *y)):
        return None
    shape = (batch, rows, inner, size[2])
    program = _program(registry.get_executor(), len(x), len(y), terms, shape)
    if program is None:
        return None
    out = [torch.empty(size, dtype=torch.float64, device="cpu") for _ in range(terms)]
    program([c.data_ptr() for c in (*x, *y, *out)])
    return out


@functools.lru_cache(256)
def _program(
    executor: str, left: int, right: int, terms: int, shape: tuple[int, int, int, int]
) -> Program | None:
    """Return a program on the addresses of both operands and the result; None if unsupported."""
    spec = product_fold(FP64, left, right, terms)
    cpu = torch.device("cpu")
    call = registry.prepare_product(spec, shape, cpu)
    like = torch.empty((shape[0], shape[1], shape[3]), dtype=torch.float64, device=cpu)
    state, kernel = spec.state, settle_kernel(spec.state)
    settle = registry.prepare(kernel, [[like] * len(kernel.fields)])
    if call is None or settle is None:
        return None
    read = left + right
    given = read + terms
    # Surplus components are written to workspaces that nothing reads.
    rest = [*range(given, given + state - terms)]
    partial = [*range(given + state - terms, given + 2 * state - terms)]
    steps = [
        Launch(call, [*range(read)], partial[0]),
        Launch(settle.row(np.ones((1, 0))), [*range(read, given), *rest, *partial]),
    ]
    return Program.of(steps, given, [8 * like.numel()] * (2 * state - terms))

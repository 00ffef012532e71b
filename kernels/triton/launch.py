"""Launch Triton kernels: one per row of tensors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.triton.build import BLOCK, build, options
from mcf.kernels.triton.primitives import Dialect

# The interpreter replaces parts of `triton.language` while it runs: one thread at a time.
_interpreter = threading.Lock()


def run(spec: Elementwise, rows: Sequence[Sequence[Tensor]], scalars: Tensor) -> Tensor | None:
    """Apply a kernel to each row of tensors; see `mcf.kernels.numba.launch.run`.

    CPU tensors run in Triton's interpreter. On a GPU nothing here waits for the device.
    """
    device = rows[0][0].device
    if device.type == "cpu":
        # NumPy warns where IEEE arithmetic just goes on to infinity or NaN.
        with _interpreter, np.errstate(all="ignore"):
            return _launch(build(spec, Dialect.INTERPRETER), {}, spec, rows, scalars)
    with torch.cuda.device(device):
        target = _target(torch.cuda.current_device())
        # Pinned, so that the copy needs no synchronisation, whatever its size.
        table = scalars
        if scalars.numel() and not scalars.is_cuda:
            table = scalars.pin_memory().to(device, non_blocking=True)
        return _launch(build(spec, Dialect.of(target)), options(target), spec, rows, table)


@functools.cache
def _target(index: int) -> Any:
    """What Triton compiles for on a device, which is the current one."""
    return triton.runtime.driver.active.get_current_target()


def _launch(
    kernel: Any,
    settings: dict[str, Any],
    spec: Elementwise,
    rows: Sequence[Sequence[Tensor]],
    scalars: Tensor,
) -> Tensor | None:
    device = rows[0][0].device
    # Stands in for tables that the kernel does not read or write.
    nothing = torch.empty(0, dtype=torch.float64, device=device)
    totals = []
    for k, row in enumerate(rows):
        n = row[0].numel()
        blocks = -(-n // BLOCK)
        sums = nothing
        if spec.sums is not None:
            sums = torch.empty(blocks, spec.sum_count, dtype=torch.float64, device=device)
        if blocks:
            table = scalars[k] if spec.scalars else nothing
            arguments = [*(t.detach() for t in row), table, sums, n]
            kernel[(blocks,)](*arguments, BLOCK=BLOCK, **settings)
        if spec.sums is not None:
            totals.append(sums.sum(0))
    return torch.stack(totals) if totals else None

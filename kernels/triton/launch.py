"""Launch Triton kernels: one per row of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.triton.build import BLOCK, OPTIONS, build


def run(spec: Elementwise, rows: Sequence[Sequence[Tensor]], scalars: Tensor) -> Tensor | None:
    """Apply a kernel to each row of tensors; see `mcf.kernels.numba.launch.run`.

    CPU tensors run in Triton's interpreter.
    """
    device = rows[0][0].device
    interpret = device.type == "cpu"
    kernel = build(spec, interpret)
    # One copy to the device for all rows; it does not wait for the device.
    table = scalars.to(device, torch.float64, non_blocking=True)
    sums = []
    for k, row in enumerate(rows):
        n = row[0].numel()
        blocks = -(-n // BLOCK)
        part = torch.zeros(blocks, spec.sum_count, dtype=torch.float64, device=device)
        if blocks:
            _start(kernel, blocks, row, table[k], part, n, interpret)
        sums.append(part.sum(0))
    return torch.stack(sums) if spec.sums is not None else None


def _start(
    kernel: object, blocks: int, row: Sequence[Tensor], scalars: Tensor, sums: Tensor, n: int,
    interpret: bool,
) -> None:
    arguments = [*(t.detach() for t in row), scalars, sums, n]
    if interpret:
        # NumPy warns where IEEE arithmetic just goes on to infinity or NaN.
        with np.errstate(all="ignore"):
            kernel[(blocks,)](*arguments, BLOCK=BLOCK, **OPTIONS)  # type: ignore[index]
    else:
        with torch.cuda.device(row[0].device):
            kernel[(blocks,)](*arguments, BLOCK=BLOCK, **OPTIONS)  # type: ignore[index]

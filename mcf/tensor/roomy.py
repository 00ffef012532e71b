"""Float16 where squares and sums leave its range and results do not.

A square of a float16 overflows from 2^8 on and has no bits below 2^-12, a sum of four numbers may
overflow from 2^14 on, and the usual eps of norms, 1e-5, has 8 bits. So norms, means of windows and
attention of float16 components compute with components of float32, as many of them, and round their
results once. Torch does so of plain tensors of float16.
"""

from __future__ import annotations

from typing import Any

import torch

from mcf.tensor.promotion import result_format


def roomy(x: Any) -> Any:
    """x, with components of float32 in the place of float16."""
    return x.to(torch.float32) if x.dtype is torch.float16 else x


def fitted(result: Any, *given: Any) -> Any:
    """A result in the format that belongs to what was given, of which None counts nothing."""
    dtype, _ = result_format(*(x for x in given if x is not None))
    return result if result.dtype is dtype else result.to(dtype)

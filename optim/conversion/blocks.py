"""Moments that versions before stored in blocks of 128 numbers of 8 bits, read once more.

A state was one or two tensors of `torch.float8_e4m3fn` or `torch.float8_e5m2` and an int8 exponent
for each block; of second moments it was the root. A number was (hi + 2**-p lo) 2**exponent, with p
the bits of the format.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

BLOCK = 128
EXPONENT = "_exponent"

_BITS = {torch.float8_e4m3fn: 4, torch.float8_e5m2: 3}
_ROOTS = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")


def parts(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a state that stored a moment so: one or two of codes, and the exponents."""
    return {n: state[n] for n in (name, f"{name}_lo", f"{name}{EXPONENT}") if n in state}


def read(name: str, state: Mapping[str, Tensor]) -> Tensor:
    """The numbers of a moment, float32 of its shape, as the steps of then read them."""
    codes, *low = (t for n, t in parts(name, state).items() if not n.endswith(EXPONENT))
    number = codes.float()
    if low:
        number = number + low[0].float() * 2.0 ** -_BITS[codes.dtype]
    exponents = state[f"{name}{EXPONENT}"].to(torch.int32)
    count = codes.numel()
    scale = ((exponents + 127) << 23).view(torch.float32).repeat_interleave(BLOCK)[:count]
    number = number * scale.view(codes.shape)
    return number * number if name in _ROOTS else number

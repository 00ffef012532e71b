"""Words on int32 tensors beside float32 registers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Word = Tensor | int


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.int32)


def _from_bits(w: Tensor) -> Tensor:
    return w.view(torch.float32)


def _shift_right(a: Tensor, count: int) -> Tensor:
    return (a >> count) & ((1 << (32 - count)) - 1) if count else a


WORDS: dict[str, Any] = {
    "bits": _bits,
    "from_bits": _from_bits,
    "word": lambda x: x.to(torch.int32),
    "number": lambda w: w.to(torch.float32),
    "wadd": torch.add,
    "wsub": torch.sub,
    "wmul": torch.mul,
    "wand": torch.bitwise_and,
    "wor": torch.bitwise_or,
    "wxor": torch.bitwise_xor,
    "wshl": torch.bitwise_left_shift,
    "wshr": _shift_right,
    "wsar": torch.bitwise_right_shift,
}

"""Float32 storage: a master copy next to a 16-bit parameter, or a moment in float32."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mcf.kernels.formats import FP32, Format
from mcf.optim.storage import values
from mcf.optim.storage.base import Stale
from mcf.optim.storage.single import Single
from mcf.optim.storage.values import Value


class Float32(Single):
    """A number in float32; the visible parameter is its rounding."""

    name = "float32"
    parameter_bytes = 4
    first_bytes = 4
    second_bytes = 4
    hidden = "master_param"
    wide = True
    visible = False
    roundings = ()

    def format(self, component: Format) -> Format:
        return FP32

    def hidden_format(self, component: Format) -> Format:
        return FP32

    def value(self, tensors: Sequence[Tensor]) -> Value:
        return values.exact(tensors[-1])

    def register(self, tensors: Sequence[Tensor], wide: torch.dtype) -> Tensor:
        found: Tensor = tensors[-1].detach().to(wide)
        return found

    def components(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (tensors[-1],)

    def keep(self, value: Value, tensors: Sequence[Tensor]) -> Tensor:
        *visible, wide = tensors
        wide.copy_(values.rounded(value, wide.dtype))
        for p in visible:
            p.copy_(values.rounded(values.exact(wide), p.dtype))
        return values.less(value, wide)[0]

    def start(self, p: Tensor, like: Tensor, component: Format) -> Tensor:
        return super().start(p, like, component).copy_(p)

    def stale(self, p: Tensor, hidden: Tensor, component: Format, strict: bool) -> Stale:
        visible = hidden.to(p.dtype)
        same = (visible == p) | (visible.isnan() & p.isnan())
        return ~same, p.to(hidden.dtype)


FLOAT32 = Float32()

"""Differentiate `lerp` with a float weight: PyTorch rounds 1 - w to a double."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import differentiated
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.ops.arithmetic.arithmetic import lerp
from mcf.expansions.tensor import MCFTensor

_duals = torch.autograd.forward_ad


class _Lerp(torch.autograd.Function):
    """Linear interpolation x + w (end - x) with exact derivatives 1 - w and w."""

    @staticmethod
    def forward(ctx: Any, x: Any, end: Any, weight: float) -> Any:
        ctx.weight, ctx.shapes = weight, (x.shape, end.shape)
        return lerp(x.detach(), end.detach(), weight)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        first, second = ctx.shapes
        rest = tensor(1 - Fraction(ctx.weight), grad.terms, grad.dtype, grad.device)
        return (
            (grad * rest).sum_to_size(first),
            (grad * ctx.weight).sum_to_size(second),
            None,
        )


@implements(torch.lerp, Tensor.lerp)
def lerp_by(input: Any, end: Any, weight: Any) -> Any:
    """Return x + w (end - x)."""
    own = type(weight) is float and type(input) is type(end) is MCFTensor and weight - weight == 0
    if own and not torch.compiler.is_compiling() and _duals._current_level < 0:
        alike = input.terms == end.terms and input.dtype is end.dtype
        if alike and differentiated((input, end)):
            return _Lerp.apply(input, end, weight)  # type: ignore[no-untyped-call]
    return forward(torch.lerp, (input, end, weight), {})

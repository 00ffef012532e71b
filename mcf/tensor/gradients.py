"""Functions whose derivative in torch has constants in double precision: with all their digits.

Each is composed so that it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf import elementary
from mcf.tensor.creation import tensor
from mcf.tensor.functions import replaces
from mcf.tensor.tensor import MCFTensor, wrap

# 70 digits; four components of float64 hold 64.
CONSTANTS = {
    "ln 2": "0.6931471805599453094172321214581765680755001343602552541206800094933936",
    "ln 10": "2.3025850929940456840179914546843642076011014886287729760333279009675726",
    "2 / sqrt(pi)": "1.1283791670955125738961589031215451716881012586579977136881714434212849",
    "sqrt(1/2)": "0.7071067811865475244008443621048490392848359376884740365883398689953662",
    "1 / sqrt(2 pi)": "0.3989422804014326779399460599343818684758586311649346576659258296706579",
    "sqrt(2 / pi)": "0.7978845608028653558798921198687637369517172623298693153318516593413158",
}


def constant(name: str, like: MCFTensor) -> MCFTensor:
    """The nearest expansion of a constant in the format and on the device of a tensor."""
    return tensor(CONSTANTS[name], like.terms, like.dtype, like.device)


def _normal_density(x: MCFTensor) -> Tensor:
    return torch.exp(-(x * x) / 2) * constant("1 / sqrt(2 pi)", x)


def _gelu_slope(x: MCFTensor, y: MCFTensor) -> Tensor:
    cdf = torch.erfc(-x * constant("sqrt(1/2)", x)) / 2
    return cdf + x * _normal_density(x)


def _gelu_tanh_slope(x: MCFTensor, y: MCFTensor) -> Tensor:
    k, c = constant("sqrt(2 / pi)", x), tensor("0.044715", x.terms, x.dtype, x.device)
    t = torch.tanh(k * (x + c * x * x * x))
    return (1 + t) / 2 + x / 2 * ((1 - t) * (1 + t)) * k * (1 + 3 * c * x * x)


# The derivative by the argument x and the value y.
SLOPES: dict[str, Callable[[MCFTensor, MCFTensor], Any]] = {
    "log2": lambda x, y: 1 / (x * constant("ln 2", x)),
    "log10": lambda x, y: 1 / (x * constant("ln 10", x)),
    "erf": lambda x, y: constant("2 / sqrt(pi)", x) * torch.exp(-(x * x)),
    "erfc": lambda x, y: -constant("2 / sqrt(pi)", x) * torch.exp(-(x * x)),
    "gelu": _gelu_slope,
    "gelu_tanh": _gelu_tanh_slope,
}


class _Elementary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: MCFTensor, name: str) -> Tensor:
        y = wrap(getattr(elementary, name)(x.components))
        ctx.name = name
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, y = ctx.saved_tensors
        return grad * SLOPES[ctx.name](x, y), None


def _register(name: str, *functions: Any) -> None:
    def function(x: MCFTensor, *, out: Tensor | None = None) -> Tensor:
        y: Tensor = _Elementary.apply(x, name)  # type: ignore[no-untyped-call]
        return y if out is None else out.copy_(y)

    replaces(*functions)(function)
    in_place = getattr(Tensor, f"{name}_", None)
    if in_place is not None:
        replaces(in_place)(lambda x: x.copy_(function(x)))


_register("log2", torch.log2, Tensor.log2)
_register("log10", torch.log10, Tensor.log10)
_register("erf", torch.erf, Tensor.erf, torch.special.erf)
_register("erfc", torch.erfc, Tensor.erfc, torch.special.erfc)


@replaces(torch.nn.functional.gelu)
def gelu(x: MCFTensor, approximate: str = "none") -> Tensor:
    """x Phi(x), Phi the normal distribution; or its approximation with tanh."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate must be 'none' or 'tanh', got {approximate!r}")
    name = "gelu" if approximate == "none" else "gelu_tanh"
    return _Elementary.apply(x, name)  # type: ignore[no-any-return, no-untyped-call]

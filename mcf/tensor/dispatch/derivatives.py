"""Functions whose derivative in torch has a constant or a step in double precision: ours instead.

Each is differentiable as often as wanted: its derivative is written in functions that have one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf import elementary
from mcf.elementary import exact
from mcf.reductions.norms import absolute
from mcf.tensor.functions import forward, replaces
from mcf.tensor.tensor import Components, MCFTensor, wrap

Unary = Callable[[Components], Components]


def constant(value: int, like: MCFTensor) -> MCFTensor:
    """A fixed-point number of `mcf.elementary.exact` with the components of a tensor."""
    from mcf.tensor.creation import tensor

    return tensor(exact.to_fraction(value), like.terms, like.dtype, like.device)


def _differentiable(name: str, function: Unary, derivative: Callable[[Any], Any]) -> Any:
    """x -> function(x), whose derivative is the given function of x."""

    def run(ctx: Any, x: MCFTensor) -> MCFTensor:
        ctx.save_for_backward(x)
        value: Any = x.detach()
        return wrap(function(value.components))

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad * derivative(x)

    members = {"forward": staticmethod(run), "backward": staticmethod(backward)}
    node = type(name, (torch.autograd.Function,), members)
    return node.apply  # type: ignore[attr-defined]


# A name and the functions of torch that it stands for; the derivative.
_RULES: dict[str, tuple[Unary, tuple[Any, ...], Callable[[Any], Any]]] = {
    "log2": (
        elementary.log2,
        (torch.log2, Tensor.log2),
        lambda x: 1 / (x * constant(exact.ln2(), x)),
    ),
    "log10": (
        elementary.log10,
        (torch.log10, Tensor.log10),
        lambda x: 1 / (x * constant(exact.ln10(), x)),
    ),
    # 1 - x^2 would lose what is left of it near 1.
    "asin": (
        elementary.asin,
        (torch.asin, Tensor.asin, torch.arcsin, Tensor.arcsin),
        lambda x: 1 / ((1 - x) * (1 + x)).sqrt(),
    ),
    "acos": (
        elementary.acos,
        (torch.acos, Tensor.acos, torch.arccos, Tensor.arccos),
        lambda x: -1 / ((1 - x) * (1 + x)).sqrt(),
    ),
    "acosh": (
        elementary.acosh,
        (torch.acosh, Tensor.acosh, torch.arccosh, Tensor.arccosh),
        lambda x: 1 / ((x - 1) * (x + 1)).sqrt(),
    ),
    "atanh": (
        elementary.atanh,
        (torch.atanh, Tensor.atanh, torch.arctanh, Tensor.arctanh),
        lambda x: 1 / ((1 - x) * (1 + x)),
    ),
    # 1 - tanh^2 and 1 - sigmoid would be rounded away for large arguments.
    "tanh": (elementary.tanh, (torch.tanh, Tensor.tanh, F.tanh), lambda x: x.cosh() ** -2),
    "sigmoid": (
        elementary.sigmoid,
        (torch.sigmoid, Tensor.sigmoid, torch.special.expit, F.sigmoid),
        lambda x: torch.sigmoid(x) * torch.sigmoid(-x),
    ),
    "erf": (
        elementary.erf,
        (torch.erf, Tensor.erf, torch.special.erf),
        lambda x: constant(exact.two_over_root_pi(), x) * torch.exp(-x * x),
    ),
    "erfc": (
        elementary.erfc,
        (torch.erfc, Tensor.erfc, torch.special.erfc),
        lambda x: -constant(exact.two_over_root_pi(), x) * torch.exp(-x * x),
    ),
}

for _name, (_function, _torch_functions, _derivative) in _RULES.items():
    replaces(*_torch_functions)(_differentiable(_name, _function, _derivative))

# torch's derivatives of these are plain zeros.
replaces(torch.sign, Tensor.sign, torch.sgn, Tensor.sgn)(
    _differentiable("sign", lambda x: _sign(x), lambda x: torch.zeros_like(x))
)
replaces(torch.abs, Tensor.abs, Tensor.__abs__, torch.absolute, Tensor.absolute)(
    _differentiable("abs", absolute, torch.sign)
)


def _sign(x: Components) -> Components:
    first = x[0].sgn()
    return first, *(torch.zeros_like(first) for _ in x[1:])


@replaces(torch.copysign, Tensor.copysign)
def copysign(x: Any, y: Any) -> Any:
    """|x| with the sign of y; the sign has no derivative."""
    return forward(torch.copysign, (x, y.detach() if isinstance(y, Tensor) else y), {})


_pdf: Any = _differentiable("normal_pdf", elementary.normal_pdf, lambda x: -x * _pdf(x))
_cdf = _differentiable("normal_cdf", elementary.normal_cdf, lambda x: _pdf(x))
replaces(torch.special.ndtr)(_cdf)

_gelu = _differentiable("gelu", elementary.gelu, lambda x: _cdf(x) + x * _pdf(x))


def _gelu_tanh_slope(x: Any) -> Any:
    """s + x s (1 - s) z' with s = sigmoid(z), z = 2 sqrt(2/pi) (x + a x^3), z' its derivative."""
    from fractions import Fraction

    root = constant(exact.root(exact.quotient(8 * exact.ONE, exact.pi())), x)
    a = Fraction(44715, 1000000)
    z = root * (x + a * (x * x * x))
    s, t = torch.sigmoid(z), torch.sigmoid(-z)
    return s + x * (s * t) * (root * (1 + 3 * a * (x * x)))


_gelu_tanh = _differentiable("gelu_tanh", elementary.gelu_tanh, _gelu_tanh_slope)


@replaces(F.gelu)
def gelu(input: Any, *, approximate: str = "none") -> Any:
    """x Phi(x), or its form with tanh; the constants have all components."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return _gelu(input) if approximate == "none" else _gelu_tanh(input)


@replaces(torch.pow, Tensor.pow, Tensor.__pow__)
def _power(x: Any, y: Any) -> Any:
    """x**y; a number as base becomes an expansion, whose logarithm has all components.

    So does a number as exponent that is no integer, where a derivative takes 1 from it.
    """
    from mcf.tensor.creation import tensor

    if not isinstance(x, Tensor):
        x = tensor(x, y.terms, y.dtype, y.device)
    recorded = torch.is_grad_enabled() and x.requires_grad
    if recorded and isinstance(y, float) and not y.is_integer():
        y = tensor(y, x.terms, x.dtype, x.device)
    return forward(torch.pow, (x, y), {})


@replaces(torch.float_power, Tensor.float_power)
def float_power(x: Any, y: Any) -> Any:
    """x**y in components of float64."""
    x, y = (v.to(torch.float64) if isinstance(v, Tensor) else v for v in (x, y))
    return _power(x, y)


@replaces(Tensor.__rpow__)
def rpow(y: Any, x: Any) -> Any:
    """x**y with the base on the left."""
    return _power(x, y)


@replaces(torch.exp2, Tensor.exp2, torch.special.exp2)
def exp2(x: Any) -> Any:
    """2**x."""
    return _power(2.0, x)

"""Implement PyTorch's operators for functions that are replaced above autograd.

A transform of torch.func wraps tensors in its own, so our functions above autograd are not called;
PyTorch's operators and those of their derivatives arrive instead. They compute the values and the
derivatives of our functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch

from mcf.expansions.dispatch.recorded import (
    DERIVATIVES,
    FORWARD,
    MAPPED,
    PULLED,
    outside,
    transformed,
)
from mcf.expansions.dispatch.registry import UnsupportedError, implements, readable
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import format_of

aten = torch.ops.aten
nn = torch._C._nn

# A function of tensors or None only.
Function = Callable[..., Any]


def above(function: Function, *values: Any, **named: Any) -> Any:
    """Return a function's value as computed above autograd, with gradients disabled."""
    with torch._C._EnableTorchFunction(), torch.no_grad():
        return outside(function, values, named)


def pulled(
    function: Function, inputs: Sequence[Any], grad: Tensor, wanted: Sequence[bool]
) -> tuple[Any, ...]:
    """Return the gradients of the wanted inputs, by our derivative; None for the others."""

    def back() -> tuple[Any, ...]:
        given = [
            x.detach().requires_grad_() if w and x is not None else x
            for x, w in zip(inputs, wanted, strict=True)
        ]
        leaves = [x for x, w in zip(given, wanted, strict=True) if w and x is not None]
        # The grid has no gradient if the nearest element is sampled: materialize zeros.
        found = iter(torch.autograd.grad(function(*given), leaves, grad, materialize_grads=True))
        return tuple(
            next(found) if w and x is not None else None for x, w in zip(given, wanted, strict=True)
        )

    with (
        enable_reentrant_dispatch(),
        torch._C._EnableTorchFunction(),
        torch.enable_grad(),
    ):
        return tuple(outside(back, (), {}))


def wide(*values: Any) -> bool:
    """Return whether an expansion has more than 53 bits, the precision of PyTorch's constants."""
    found = (x for x in values if isinstance(x, MCFTensor))
    return any(x.terms * format_of(x.dtype).p > 53 for x in found)


def of_first(forward: Any, backward: Any, function: Function, by_element: bool = False) -> None:
    """Register an operator and the operator of its derivative by the first argument.

    Args:
        forward: the operator.
        backward: operator of the gradient and the same arguments. For elementwise functions the
        gradient may have extra leading dimensions, for several derivatives at a time.
        function: computes the operator above autograd.
        by_element: whether the function is elementwise in the first argument.
    """

    @implements(forward)
    def value(*args: Any, **kwargs: Any) -> Any:
        return above(function, *args, **kwargs)

    @implements(backward)
    def slope(grad: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        x = x.expand(grad.shape) if by_element else x
        return pulled(lambda x: function(x, *args, **kwargs), (x,), grad, (True,))[0]


def valued(operator: Any, function: Any, refused: frozenset[str] = frozenset()) -> None:
    """Register an operator whose derivative PyTorch composes of other operators, or lacks.

    Args:
        operator: the operator.
        function: computes it above autograd.
        refused: the transforms under which PyTorch's derivative differs from ours.
    """

    @implements(operator)
    def value(*args: Any, **kwargs: Any) -> Any:
        if refused and transformed(refused):
            kinds = "jvp" if refused is FORWARD else "grad, vjp or jvp"
            raise UnsupportedError(
                f"{readable(operator)} under torch.func.{kinds}: torch's derivative differs from "
                "ours; use backward or torch.autograd.grad"
            )
        return above(function, *args, **kwargs)


def _convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    dims = w.dim() - 2
    if transposed:
        function: Any = getattr(torch, f"conv_transpose{dims}d")
        return function(x, w, b, stride, padding, output_padding, groups, dilation)
    return getattr(torch, f"conv{dims}d")(x, w, b, stride, padding, dilation, groups)


# `conv1d` to `conv3d` and their transposes.
valued(aten.convolution.default, _convolution)


@implements(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor, x: Tensor, w: Tensor, bias_sizes: Any, *options: Any
) -> tuple[Any, ...]:
    """Return the gradients of input, weight and bias."""
    *rest, wanted = options
    # Without a bias PyTorch passes bias_sizes = [0].
    bias = x.new_zeros(bias_sizes) if wanted[2] else None
    return pulled(lambda x, w, b: _convolution(x, w, b, *rest), (x, w, bias), grad, wanted)


def _pooled(dims: int) -> None:
    average: Any = getattr(F, f"avg_pool{dims}d")
    largest: Any = getattr(nn, f"max_pool{dims}d_with_indices")
    adapted: Any = getattr(nn, f"adaptive_avg_pool{dims}d")

    def of_windows(function: Any) -> Function:
        return lambda x, size, stride=(), *rest: function(x, size, list(stride) or None, *rest)

    name = f"avg_pool{dims}d"
    of_first(
        getattr(aten, name).default, getattr(aten, f"{name}_backward").default, of_windows(average)
    )
    valued(getattr(aten, f"max_pool{dims}d_with_indices").default, of_windows(largest))
    name = f"adaptive_max_pool{dims}d"
    valued(getattr(aten, name).default, getattr(nn, name))
    name = f"_adaptive_avg_pool{dims}d"
    valued(getattr(aten, name).default, adapted)

    @implements(
        getattr(aten, f"max_pool{dims}d_with_indices_backward").default,
        getattr(aten, f"adaptive_max_pool{dims}d_backward").default,
    )
    def max_pool_backward(grad: Tensor, x: Tensor, *rest: Any) -> Any:
        indices = rest[-1]
        kept = x.shape[:-dims]

        def taken(x: Any) -> Any:
            flat = x.reshape(*kept, -1).gather(-1, indices.reshape(*kept, -1))
            return flat.reshape(indices.shape)

        return pulled(taken, (x,), grad, (True,))[0]

    @implements(getattr(aten, f"{name}_backward").default)
    def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Any:
        return pulled(lambda x: adapted(x, grad.shape[-dims:]), (x,), grad, (True,))[0]


for _dims in (2, 3):
    _pooled(_dims)


for _mode, _function in (("reflection", "reflect"), ("replication", "replicate")):
    for _dims in (1, 2, 3):
        _name = f"{_mode}_pad{_dims}d"
        of_first(
            getattr(aten, _name).default,
            getattr(aten, f"{_name}_backward").default,
            lambda x, padding, mode=_function: F.pad(x, list(padding), mode),
        )


def _upsampled(name: str) -> None:
    function: Any = getattr(nn, name)

    def resized(x: Any, size: Any, corners: bool, scales: Sequence[Any]) -> Any:
        given = None if None in scales else list(scales)
        return function(x, list(size), corners, given)

    @implements(getattr(aten, name).default)
    def value(x: Tensor, size: Any, corners: bool, *scales: Any, **named: Any) -> Any:
        return above(resized, x, size, corners, [*scales, *named.values()] or [None])

    @implements(getattr(aten, f"{name}_backward").default)
    def slope(
        grad: Tensor, size: Any, input_size: Any, corners: bool, *scales: Any, **named: Any
    ) -> Any:
        factors = [*scales, *named.values()] or [None]
        x = grad.new_zeros(input_size)
        return pulled(lambda x: resized(x, size, corners, factors), (x,), grad, (True,))[0]


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d",
              "upsample_trilinear3d"):  # fmt: skip
    _upsampled(_name)


def _sampled(name: str) -> None:
    function: Any = getattr(torch, name)

    valued(getattr(aten, name).default, function)

    @implements(getattr(aten, f"{name}_backward").default)
    def slope(grad: Tensor, x: Tensor, grid: Tensor, *options: Any) -> Any:
        *rest, wanted = options
        return pulled(lambda x, grid: function(x, grid, *rest), (x, grid), grad, wanted)


for _name in ("grid_sampler_2d", "grid_sampler_3d"):
    _sampled(_name)


# The names of PyTorch's reductions 0, 1 and 2.
REDUCTIONS = ("none", "mean", "sum")
_MEAN = 1


def _loss(name: str, function: Any, *names: str) -> None:
    """Register an elementwise loss of input and target, and its derivative by the input.

    Args:
        name: the operator's name.
        function: PyTorch's function, which takes a reduction by name.
        *names: the operator's parameters after input and target.
    """

    def given(rest: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
        return {"reduction": _MEAN, **dict(zip(names, rest, strict=False)), **named}

    @implements(getattr(aten, name).default)
    def value(x: Tensor, target: Tensor, *rest: Any, **named: Any) -> Any:
        options = given(rest, named)
        _check_loss(name, x, target)
        options["reduction"] = REDUCTIONS[options["reduction"]]
        return above(function, x, target, **options)

    @implements(getattr(aten, f"{name}_backward").default)
    def slope(grad: Tensor, x: Tensor, target: Tensor, *rest: Any, **named: Any) -> Any:
        options = given(rest, named)
        mean, options["reduction"] = options["reduction"] == _MEAN, "none"
        # In a second derivative, gradients are per element for any reduction.
        grad, wide_x, target = torch.broadcast_tensors(grad, x, target)  # type: ignore[no-untyped-call]
        (found,) = pulled(lambda x: function(x, target, **options), (wide_x,), grad, (True,))
        return found / x.numel() if mean else found


def _check_loss(name: str, x: Any, target: Any) -> None:
    """Refuse transforms for which PyTorch uses constants of double precision."""
    if not wide(x, target):
        return
    if name in ("huber_loss", "smooth_l1_loss"):
        # The mean's factor is a double where the derivative is mapped.
        if transformed(PULLED) or (transformed() and transformed(MAPPED)):
            raise UnsupportedError(
                f"torch.nn.functional.{name} under torch.func.vjp and vmap, jacrev: torch's "
                "derivative has constants of double precision; use torch.func.grad without vmap, "
                "torch.autograd.grad, or write the loss in torch.where"
            )
    if name == "binary_cross_entropy" and transformed(times=2):
        raise UnsupportedError(
            "torch.nn.functional.binary_cross_entropy under two derivatives of torch.func: torch "
            "adds 1e-12 in the second; use torch.autograd.grad, which does not"
        )


_loss("huber_loss", F.huber_loss, "reduction", "delta")
_loss("smooth_l1_loss", F.smooth_l1_loss, "reduction", "beta")
_loss("soft_margin_loss", F.soft_margin_loss, "reduction")
_loss("binary_cross_entropy", F.binary_cross_entropy, "weight", "reduction")


def _margin(
    x: Any, target: Any, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = _MEAN
) -> Any:
    kind = REDUCTIONS[reduction]
    return F.multi_margin_loss(x, target, p, margin, weight, reduction=kind)


of_first(aten.multi_margin_loss.default, aten.multi_margin_loss_backward.default, _margin)
of_first(aten.glu.default, aten.glu_backward.default, F.glu)
for _name in ("hardsigmoid", "hardswish", "softshrink", "hardshrink"):
    _forward, _backward = (getattr(aten, f"{_name}{s}").default for s in ("", "_backward"))
    of_first(_forward, _backward, getattr(F, _name), by_element=True)


@implements(aten.glu_jvp.default)
def glu_tangent(value: Tensor, x: Tensor, tangent: Tensor, dim: int) -> Any:
    """Return the derivative along (da, db): logistic(b) da + value logistic(-b) db."""
    _, gate = x.chunk(2, dim)
    first, second = tangent.chunk(2, dim)
    return first * torch.sigmoid(gate) + second * (value * torch.sigmoid(-gate))


@implements(aten._prelu_kernel_backward.default)
def prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Any, ...]:
    """Return the gradients of input and weight; weight has the input's dimensions."""
    zero = torch.zeros_like(grad)
    return torch.where(x > 0, grad, grad * weight), torch.where(x > 0, zero, grad * x)


# Computed from differences for any mode.
valued(aten._cdist_forward.default, lambda x, y, p, mode: torch.cdist(x, y, p))


@implements(aten._euclidean_dist.default)
def euclidean(x: Tensor, y: Tensor) -> Any:
    """Return `torch.cdist` for p = 2; refuse transforms, whose derivative by products cancels."""
    if wide(x, y) and transformed():
        raise UnsupportedError(
            "torch.cdist of more than 25 rows under torch.func.grad, vjp or jvp: torch's "
            'derivative cancels; pass compute_mode="donot_use_mm_for_euclid_dist"'
        )
    return above(torch.cdist, x, y)


@implements(aten._cdist_backward.default)
def cdist_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Any:
    """Return the gradient of the first argument of `cdist`."""
    if grad.dim() != distances.dim():
        # PyTorch would misread them as one gradient, for plain tensors too.
        raise UnsupportedError(
            "torch.cdist: several gradients at a time, as torch.func.jacrev has them; use "
            "jacrev of (x[..., :, None, :] - y[..., None, :, :]).norm(dim=-1)"
        )
    return pulled(lambda x: torch.cdist(x, y, p), (x,), grad, (True,))[0]


valued(aten._pdist_forward.default, F.pdist)


@implements(aten._pdist_backward.default)
def pdist_backward(grad: Tensor, x: Tensor, p: float, distances: Tensor) -> Any:
    """Return the gradient of the input of `pdist`."""
    return pulled(lambda x: F.pdist(x, p), (x,), grad, (True,))[0]


for _name in ("cholesky", "ormqr", "mvlgamma", "index_reduce", "histc", "renorm"):
    # PyTorch 2.14 has no operator for `torch.cholesky` any more.
    if hasattr(aten, _name):
        valued(getattr(aten, _name).default, getattr(torch, _name))
valued(aten.linalg_householder_product.default, torch.linalg.householder_product)
valued(aten.nanmedian.dim, torch.nanmedian)
# PyTorch's derivatives read one triangle only, or use double powers of two or products.
valued(aten.cholesky_inverse.default, torch.cholesky_inverse, DERIVATIVES)
valued(aten.cholesky_solve.default, torch.cholesky_solve, DERIVATIVES)
valued(aten.ldexp.Tensor, torch.ldexp, DERIVATIVES)
valued(aten.scatter_reduce.two, torch.scatter_reduce, FORWARD)

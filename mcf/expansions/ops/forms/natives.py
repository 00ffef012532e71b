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

from mcf.expansions.dispatch.recorded import outside
from mcf.expansions.dispatch.registry import implements
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


def _convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    dims = w.dim() - 2
    if transposed:
        function: Any = getattr(torch, f"conv_transpose{dims}d")
        return function(x, w, b, stride, padding, output_padding, groups, dilation)
    return getattr(torch, f"conv{dims}d")(x, w, b, stride, padding, dilation, groups)


@implements(aten.convolution.default)
def convolution(*args: Any) -> Any:
    """Implement `conv1d` to `conv3d` and their transposes."""
    return above(_convolution, *args)


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

    def averaged(x: Any, size: Any, stride: Any = (), *rest: Any, **named: Any) -> Any:
        return average(x, size, list(stride) or None, *rest, **named)

    name = f"avg_pool{dims}d"
    of_first(getattr(aten, name).default, getattr(aten, f"{name}_backward").default, averaged)

    largest: Any = getattr(nn, f"max_pool{dims}d_with_indices")
    adaptive: Any = getattr(nn, f"adaptive_max_pool{dims}d")

    @implements(getattr(aten, f"max_pool{dims}d_with_indices").default)
    def max_pool(x: Tensor, size: Any, stride: Any = (), *rest: Any) -> Any:
        return above(largest, x, size, list(stride) or None, *rest)

    @implements(getattr(aten, f"adaptive_max_pool{dims}d").default)
    def adaptive_max_pool(x: Tensor, size: Any) -> Any:
        return above(adaptive, x, size)

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

    adapted: Any = getattr(nn, f"adaptive_avg_pool{dims}d")

    @implements(getattr(aten, f"_adaptive_avg_pool{dims}d").default)
    def adaptive_avg_pool(x: Tensor, size: Any) -> Any:
        return above(adapted, x, size)

    @implements(getattr(aten, f"_adaptive_avg_pool{dims}d_backward").default)
    def adaptive_avg_pool_backward(grad: Tensor, x: Tensor) -> Any:
        return pulled(lambda x: adapted(x, grad.shape[-dims:]), (x,), grad, (True,))[0]


for _dims in (2, 3):
    _pooled(_dims)


def _padded(mode: str) -> Function:
    return lambda x, padding: F.pad(x, list(padding), mode)


for _mode, _function in (("reflection", "reflect"), ("replication", "replicate")):
    for _dims in (1, 2, 3):
        _name = f"{_mode}_pad{_dims}d"
        of_first(
            getattr(aten, _name).default,
            getattr(aten, f"{_name}_backward").default,
            _padded(_function),
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

    @implements(getattr(aten, name).default)
    def value(x: Tensor, grid: Tensor, *options: Any) -> Any:
        return above(function, x, grid, *options)

    @implements(getattr(aten, f"{name}_backward").default)
    def slope(grad: Tensor, x: Tensor, grid: Tensor, *options: Any) -> Any:
        *rest, wanted = options
        return pulled(lambda x, grid: function(x, grid, *rest), (x, grid), grad, wanted)


for _name in ("grid_sampler_2d", "grid_sampler_3d"):
    _sampled(_name)

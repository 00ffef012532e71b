"""Run PyTorch's backward passes with the tensor type's functions switched on.

PyTorch disables `__torch_function__` while it runs a function of the type. In a backward pass that
would include hooks and users' derivatives: `torch.where(g > 0, g, 0.1)` in one of them would round
0.1 to the components' dtype.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.expansions.conversion import reformat
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import implements
from mcf.expansions.dispatch.torch_functions import forward, unasked
from mcf.expansions.tensor import MCFTensor, wrap


def _made(outputs: Any, grads: Any, *args: Any, **kwargs: Any) -> Any:
    """Return the initial gradients, as PyTorch's `_make_grads`, without `__torch_function__`."""
    with torch._C.DisableTorchFunctionSubclass():
        if len(outputs) == 1 and grads[0] is None and type(outputs[0]) is MCFTensor:
            one = _one(outputs[0])
            if one is not None:
                return (one,)
        return torch.autograd._make_grads(outputs, grads, *args, **kwargs)


def _one(output: MCFTensor) -> MCFTensor | None:
    """Return ones like a one-element output; None if modes are active or it needs no gradient."""
    if watched() or not output.requires_grad or output.numel() != 1:
        return None
    first, *rest = output.components
    if type(first) is not Tensor:
        return None
    return wrap([torch.ones_like(first), *map(torch.zeros_like, rest)])


_BACKWARD = unasked(torch.autograd.backward, _make_grads=_made)
_GRAD = unasked(torch.autograd.grad, _make_grads=_made)


def _formatted(outputs: Any, grads: Any) -> Any:
    """Convert the gradients of expansions to the format of their outputs."""
    if grads is None:
        return None
    # Fast path: the common case.
    if type(grads) is MCFTensor and type(outputs) is MCFTensor:
        first, other = grads.__dict__["_c0"], outputs.__dict__["_c0"]
        if first.dtype is other.dtype and grads.terms == outputs.terms:
            return grads
    if isinstance(grads, Tensor):
        output = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
        fits = isinstance(output, MCFTensor) and grads.is_floating_point()
        return reformat(grads, output.dtype, output.terms) if fits else grads
    several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    if len(several) != len(grads):
        # PyTorch reports the error.
        return grads
    return tuple(_formatted(y, g) for y, g in zip(several, grads, strict=True))


@implements(torch.autograd.backward, Tensor.backward)
def backward(
    tensors: Any, grad_tensors: Any = None, *args: Any, inputs: Any = None, **options: Any
) -> None:
    """Implement `torch.autograd.backward` and `Tensor.backward`."""
    options["inputs"] = inputs
    if torch.compiler.is_compiling():
        forward(torch.autograd.backward, (tensors, grad_tensors, *args), options)
    else:
        _BACKWARD(tensors, _formatted(tensors, grad_tensors), *args, **options)


@implements(torch.autograd.grad)
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    *args: Any,
    is_grads_batched: bool = False,
    **options: Any,
) -> Any:
    """Implement `torch.autograd.grad`."""
    options["is_grads_batched"] = is_grads_batched
    if torch.compiler.is_compiling():
        return forward(torch.autograd.grad, (outputs, inputs, grad_outputs, *args), options)
    if not is_grads_batched:
        grad_outputs = _formatted(outputs, grad_outputs)
    return _GRAD(outputs, inputs, grad_outputs, *args, **options)

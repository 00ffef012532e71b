"""Functions of complex expansion tensors whose derivative is a formula of their results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.complexes.tensor import MCFComplexTensor, gradient
from mcf.expansions.tensor import MCFTensor, wrap
from mcf.kernels.formats import format_of
from mcf.kernels.register_choice import refuse_float32


def halves(out: Any) -> tuple[Any, Any]:
    """Return both parts of a result's components."""
    half = len(out) // 2
    return wrap(out[:half]), wrap(out[half:])


def node(name: str, computed: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return a function of parts of one shape as a `torch.autograd.Function`.

    Args:
        name: of the type.
        computed: returns both parts of the result from parts that are expansion tensors.
        backward: maps the saved parts and the gradients (None for 0) to the gradients of all
            parts.
    """

    def forward(*given: Any) -> Any:
        return computed(*(v.detach() for v in given))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    def back(ctx: Any, *grads: Any) -> Any:
        return backward(ctx.saved_tensors, grads)

    def vmap(info: Any, dims: Any, *given: Any) -> Any:
        lanes = (
            v.movedim(d, 0) if d is not None else v.expand(info.batch_size, *v.shape)
            for v, d in zip(given, dims, strict=True)
        )
        return made.apply(*lanes), (0, 0)

    members = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(back),
        "vmap": staticmethod(vmap),
    }
    made: Any = type(name, (torch.autograd.Function,), members)
    return made


# A function from the arguments, the results and their gradients (None for 0) to the gradients of
# the arguments.
Derivative = Callable[[Any, Any, Any], Sequence[Any]]


def _flat(values: Sequence[Any]) -> list[Any]:
    return [p for v in values for p in ((v.real, v.imag) if _is_complex(v) else (v,))]


def _is_complex(v: Any) -> bool:
    return isinstance(v, MCFComplexTensor)


def _joined(flat: Sequence[Any], kinds: Sequence[bool], make: Callable[..., Any]) -> list[Any]:
    """Rebuild values, some of them complex, from a list of parts."""
    rest = list(flat)
    return [make(rest.pop(0), rest.pop(0)) if k else rest.pop(0) for k in kinds]


def _gradient(x: Any, y: Any) -> Any:
    return None if x is None and y is None else gradient((x, y))


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Any, derivative: Any, kinds: Any, *flat: Any) -> Any:
        ctx.derivative, ctx.given = derivative, kinds
        ctx.set_materialize_grads(False)
        out = function(*_joined([v.detach() for v in flat], kinds, MCFComplexTensor))
        ctx.kinds = [_is_complex(v) for v in out]
        found = _flat(out)
        ctx.mark_non_differentiable(*(v for v in found if not isinstance(v, MCFTensor)))
        ctx.count = len(flat)
        ctx.save_for_backward(*flat, *found)
        function.kinds.append(ctx.kinds)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        given = _joined(saved[: ctx.count], ctx.given, MCFComplexTensor)
        out = _joined(saved[ctx.count :], ctx.kinds, MCFComplexTensor)
        found = ctx.derivative(given, out, _joined(grads, ctx.kinds, _gradient))
        return (None, None, None, *_flat(found))


class _Kept:
    """Wrap a function and record which of its results were complex."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.kinds = function, list[list[bool]]()

    def __call__(self, *given: Any) -> Any:
        return self.function(*given)


def differentiable(
    function: Callable[..., Sequence[Any]],
    derivative: Derivative,
    *given: Any,
    widen: bool = True,
) -> list[Any]:
    """Compute a function in float64 components, rounded once, with a derivative.

    Args:
        function: takes complex expansion tensors of float64 components (at least two for narrower
            formats) and returns complex, real and plain tensors.
        derivative: see `Derivative`.
        given: complex expansion tensors of one format.
        widen: False to compute in the format itself.
    """
    first = given[0]
    run: Callable[..., Sequence[Any]] = function
    if widen:
        refuse_float32("a complex factorisation", format_of(first.dtype), first.device)
        run = functools.partial(_widened, function)
    if not (torch.is_grad_enabled() and any(z.requires_grad for z in given)):
        return list(run(*given))
    kept = _Kept(run)
    apply: Any = _Node.apply
    flat = apply(kept, derivative, [True] * len(given), *_flat(given))
    return _joined(flat, kept.kinds[-1], MCFComplexTensor)


def _widened(function: Callable[..., Sequence[Any]], *given: Any) -> Sequence[Any]:
    first = given[0]
    if first.dtype is torch.float64:
        return function(*given)
    terms = max(2, first.terms)
    found = function(*(z.to(torch.float64, terms=terms) for z in given))
    return [v if type(v) is Tensor else v.to(first.dtype, terms=first.terms) for v in found]

"""Intercept functions that PyTorch decomposes, inside a transform of torch.func.

Outside of transforms `__torch_function__` sees the function itself. A transform wraps expansions in
plain tensors, so only PyTorch's decomposition would arrive, with double constants that look like a
user's numbers. A transform sends each function to a dispatch key of its own before decomposition;
at this key calls with expansions run our function. All other calls go on to the transform
unchanged: autocast, batching rules and randomness checks come after it. The key is never active
outside of transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.autograd import forward_ad

from mcf.expansions.ops.forms.natives import above
from mcf.expansions.promotion import result_format
from mcf.expansions.tensor import MCFTensor, wrap

_library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
_own: torch.library.Library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_KEY = "FuncTorchDynamicLayerFrontMode"

_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_batched = torch._C._functorch.is_batchedtensor
_inside = torch._C._functorch.get_unwrapped


def held(x: Any) -> Any:
    """Unwrap a transform's tensor completely; a mapped one includes the mapped dimension."""
    while isinstance(x, Tensor) and _is_wrapped(x):
        x = _inside(x)
    return x


def batched(x: Any) -> bool:
    """Return whether a transform maps (vmap) a tensor."""
    while isinstance(x, Tensor) and _is_wrapped(x):
        if _is_batched(x):
            return True
        x = _inside(x)
    return False


def example(*values: Any) -> MCFTensor:
    """Return a zero-dimensional expansion of the format to which the tensors promote."""
    found = [held(x) for x in values if isinstance(x, Tensor)]
    dtype, terms = result_format(*(x for x in found if x.is_floating_point()))
    device = found[0].device
    return wrap([torch.zeros((), dtype=dtype, device=device) for _ in range(terms)])


def formatted(x: Any, like: MCFTensor) -> Any:
    """Convert a tensor to the format of `like`, which is at least as large as its own."""
    own = held(x)
    if type(own) is MCFTensor and own.terms == like.terms and own.dtype == like.dtype:
        return x
    return x * torch.ones_like(like)


# Keys of a transform's own kernels, which a new operator would not reach.
_MAPPED = ("FuncTorchBatched", "FuncTorchBatchedDecomposition")


def _through(operator: Any) -> Any:
    """Define an operator that forwards to one that has a kernel of ours at the key.

    At the key transforms have only a fallback, which our kernel hides. The fallback still runs for
    the new operator. The new operator then calls the original as the transform's first step: with
    the same arguments and the dispatch keys that the transform has set.
    """
    schema = operator._schema
    parts = "inside", schema.name.removeprefix("aten::"), schema.overload_name
    name, arguments = "_".join(filter(None, parts)), str(schema).partition("(")[2]
    _own.define(f"{name}({arguments}")  # type: ignore[no-untyped-call]
    for key in ("CompositeImplicitAutograd", *_MAPPED):
        _own.impl(name, operator, key)  # type: ignore[no-untyped-call]
    return getattr(torch.ops.mcf, name).default


def implements_inside(
    name: str, *overloads: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function in place of one that PyTorch decomposes, inside transforms.

    Args:
        name: the operator's name.
        *overloads: its overloads; the default overload if none is named.

    The function gets the operator's arguments. It must be written in functions that transforms
    support, so that they can map and differentiate it.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads or ("default",):
            operator: Any = getattr(getattr(torch.ops.aten, name), overload)

            plain = _through(operator)

            def call(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
                if any(isinstance(held(x), MCFTensor) for x in (*args, *kwargs.values())):
                    return function(*args, **kwargs)
                return _plain(*args, **kwargs)

            full = name if overload == "default" else f"{name}.{overload}"
            _library.impl(full, call, _KEY)  # type: ignore[no-untyped-call]
        return function

    return register


def _promoted(name: str) -> None:
    """Convert operands of a function to the format of its result before it is decomposed.

    Steps of the decomposition with plain operands only would compute plain tensors.
    """
    operator: Any = getattr(torch.ops.aten, name).default

    @implements_inside(name)
    def promoted(*args: Any, **kwargs: Any) -> Any:
        like = example(*args, *kwargs.values())
        args = tuple(_as_expansion(x, like) for x in args)
        kwargs = {k: _as_expansion(x, like) for k, x in kwargs.items()}
        return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _as_expansion(x: Any, like: MCFTensor) -> Any:
    return formatted(x, like) if isinstance(x, Tensor) and x.is_floating_point() else x


for _name in ("cov", "corrcoef"):
    _promoted(_name)


def by_element(name: str, function: Any, derivative: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return an elementwise function with our derivative, in the form that transforms support.

    Args:
        name: the function's name.
        function: computes it above autograd.
        derivative: function of the same argument, written in functions that transforms support.
    """

    def run(x: Any) -> Any:
        return above(function, x)

    def setup(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    def times(ctx: Any, grad: Any) -> Any:
        return grad * derivative(ctx.saved_tensors[0])

    def mapped(info: Any, dims: Sequence[Any], x: Any) -> tuple[Any, Any]:
        return node.apply(x), dims[0]

    def along(ctx: Any, tangent: Any) -> Any:
        # PyTorch disables all tangents here, including those of outer transforms.
        saved: Any = ctx.saved_tensors[0]
        x = forward_ad.unpack_dual(saved, level=0).primal  # type: ignore[no-untyped-call]
        with forward_ad._set_fwd_grad_enabled(True):
            return tangent * derivative(x)

    members: dict[str, Any] = {
        "forward": run,
        "setup_context": setup,
        "backward": times,
        "jvp": along,
        "vmap": mapped,
    }
    node: Any = type(
        name, (torch.autograd.Function,), {k: staticmethod(f) for k, f in members.items()}
    )
    return lambda x: node.apply(x)

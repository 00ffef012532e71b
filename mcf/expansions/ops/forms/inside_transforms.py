"""Functions that PyTorch takes apart above its operators, inside a transform of torch.func.

Outside, an expansion is asked about the function itself. A transform's tensors have torch's type,
so nobody is asked, and what arrives are the operators that PyTorch makes of it, with constants of
double precision that cannot be told from a user's numbers. A transform hands each function to a key
of its own before anything is taken apart; there a function of expansions is ours. Any other goes on
to the transform as if nobody had asked: autocast, batching rules and checks of randomness come
after it. Outside of transforms nothing comes that way.
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
    """What a transform's tensor holds, in the end: of what is mapped the elements of all calls."""
    while isinstance(x, Tensor) and _is_wrapped(x):
        x = _inside(x)
    return x


def batched(x: Any) -> bool:
    """Whether a transform maps a tensor."""
    while isinstance(x, Tensor) and _is_wrapped(x):
        if _is_batched(x):
            return True
        x = _inside(x)
    return False


def example(*values: Any) -> MCFTensor:
    """An expansion without dimensions in the format of what is computed of tensors."""
    found = [held(x) for x in values if isinstance(x, Tensor)]
    dtype, terms = result_format(*(x for x in found if x.is_floating_point()))
    device = found[0].device
    return wrap([torch.zeros((), dtype=dtype, device=device) for _ in range(terms)])


def formatted(x: Any, like: MCFTensor) -> Any:
    """A tensor as an expansion of a format at least as large as its own."""
    own = held(x)
    if type(own) is MCFTensor and own.terms == like.terms and own.dtype == like.dtype:
        return x
    return x * torch.ones_like(like)


# Where a transform's own kernels are that an operator without them would not get to.
_MAPPED = ("FuncTorchBatched", "FuncTorchBatchedDecomposition")


def _through(operator: Any) -> Any:
    """An operator that is called in the place of one that has a kernel of ours at the key.

    Transforms have no kernel there but one for all operators, which cannot be called any more for
    the one. It is called for this operator of the same arguments, which then calls that one as the
    transform's first step: on the same tensors, with the keys that the transform has set.
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
    """Register a function in place of one that torch takes apart, inside transforms.

    Args:
        name: the operator's.
        *overloads: of it, by default the one without a name.

    The function gets the operator's arguments. It is written in functions that transforms know, so
    that they map it and have its derivatives.
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
    """Have operands of a function in the format of its result, before torch takes it apart.

    Among plain operands alone torch would compute plain tensors.
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
    """A function of each element with a derivative of ours, as transforms take it.

    Args:
        name: of it.
        function: what computes it above autograd.
        derivative: a function of the same argument, in functions that transforms know.
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
        # Torch switches all tangents off here, those of outer transforms too.
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

"""What happens above autograd: torch functions with rules of their own for expansion tensors.

Most torch functions need nothing here: they reach the table of operators in `dispatch`, and their
derivatives are torch's, computed by those operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor

from mcf.tensor.widening import WIDENED, widened

Function = TypeVar("Function", bound=Callable[..., Any])

# Torch function -> what is called in its place; above autograd.
REPLACED: dict[Any, Callable[..., Any]] = {}


def replaces(*functions: Any) -> Callable[[Function], Function]:
    """Register a differentiable function in place of torch functions and methods.

    For functions whose derivative in torch has constants in double precision, or needs a backward
    operator that expansion tensors do not have. It gets the torch function's own arguments.
    """

    def register(function: Function) -> Function:
        for torch_function in functions:
            REPLACED[torch_function] = function
        return function

    return register


def composed(*functions: Any, operators: tuple[Any, ...] = ()) -> Callable[[Function], Function]:
    """Register a function written in differentiable ones, above autograd and below it.

    Args:
        *functions: torch functions and methods, as in `replaces`.
        operators: operators with the same arguments, by way of which torch's own functions come.
    """
    from mcf.tensor.dispatch.registry import implements

    def register(function: Function) -> Function:
        replaces(*functions)(function)
        implements(*operators)(function)
        return function

    return register


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function, some argument of which is an expansion tensor.

    Autocast, which would round to fewer components, has no say in it.
    """
    for device in ("cpu", "cuda"):
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return call(func, args, kwargs)
    if kwargs:
        args, kwargs = _multiplied(func, args, kwargs)
        kwargs = {k: _number(func, k, v) if k in _NUMBERS else v for k, v in kwargs.items()}
    if func in WIDENED:
        args, kwargs = widened(func, args, kwargs)
    replacement = REPLACED.get(func)
    # With out= there is no derivative: the operator does it.
    if replacement is not None and kwargs.get("out") is None:
        kwargs.pop("out", None)
        return replacement(*args, **kwargs)
    if torch.is_grad_enabled() or type(func) is FunctionType:
        return forward(func, args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


# Functions of x, y, ... that add alpha or value times what y, ... are.
_MULTIPLES = {"add", "add_", "sub", "sub_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"}


def _multiplied(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """x + alpha y with an expansion alpha as the sum of x and a product."""
    from mcf.tensor.tensor import MCFTensor

    name = "value" if "value" in kwargs else "alpha"
    factor = kwargs.get(name)
    if not isinstance(factor, MCFTensor) or getattr(func, "__name__", "") not in _MULTIPLES:
        return args, kwargs
    if factor.dim() != 0 or len(args) < 2:
        return args, kwargs
    rest = {k: v for k, v in kwargs.items() if k != name}
    return (args[0], args[1] * factor, *args[2:]), rest


# Arguments that torch takes as Python numbers.
_NUMBERS = {"alpha", "beta", "eps", "value"}


def _number(func: Any, name: str, value: Any) -> Any:
    """An argument that is an expansion as the Python number that it is, exactly."""
    from mcf.tensor.dispatch.registry import UnsupportedError
    from mcf.tensor.numbers import one
    from mcf.tensor.tensor import MCFTensor

    if not isinstance(value, MCFTensor) or value.numel() != 1 or value.requires_grad:
        return value
    number = value.item()
    if one(value, name) != number and number == number:
        raise UnsupportedError(
            f"torch.{getattr(func, '__name__', func)}: {name} is an expansion that no Python "
            "number holds; write it as an operation, x + a * y for torch.add(x, y, alpha=a)"
        )
    return number


@functools.cache
def unasked(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """A Python function of torch's without its question whether an argument's type has another.

    So what it calls meets expansions as elsewhere, while torch switches a tensor type's functions
    off as long as it runs one of them.

    Args:
        function: torch's.
        **names: what some of its global names stand for.
    """
    code: Any = function
    asked = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    told = {name: lambda *arguments: False for name in asked}
    made = FunctionType(
        code.__code__,
        {**code.__globals__, **told, **names},
        code.__name__,
        code.__defaults__,
        code.__closure__,
    )
    made.__kwdefaults__ = code.__kwdefaults__
    return made


# They speak of the very tensors they are given.
_KEEP = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}


def forward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The torch function itself, with plain tensors that require grad promoted."""
    if func not in _KEEP and torch.is_grad_enabled() and _has_plain_leaf(args):
        args = _promoted(func, args)
    if isinstance(func, FunctionType) and func.__globals__ is vars(torch.nn.functional):
        if not torch.compiler.is_compiling():
            return unasked(func)(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _is_plain(x: Any) -> bool:
    from mcf.tensor.tensor import MCFTensor

    return isinstance(x, Tensor) and not isinstance(x, MCFTensor) and x.requires_grad


def _has_plain_leaf(args: Sequence[Any]) -> bool:
    from mcf.tensor.tensor import MCFTensor

    for x in args:
        if isinstance(x, Tensor):
            if not isinstance(x, MCFTensor) and x.requires_grad:
                return True
        elif isinstance(x, (list, tuple)) and any(map(_is_plain, x)):
            return True
    return False


def _promoted(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with plain tensors that require grad as expansions.

    So their gradient, which is an expansion, is rounded to nearest when it reaches them. An
    argument that is written to stays what it is.
    """
    from mcf.tensor.conversion import promote

    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") or name.startswith("__set") or name.startswith("__i")
    if name == "__set__":
        return args
    out = list(args)
    for k, x in enumerate(args):
        if k == 0 and in_place:
            continue
        if isinstance(x, (list, tuple)):
            out[k] = type(x)(promote(y) if _is_plain(y) else y for y in x)
        elif _is_plain(x):
            out[k] = promote(x)
    return tuple(out)


def _setitem(x: Any, index: Any, value: Any) -> None:
    """x[index] = value; a number is rounded to x's format, not first to its dtype."""
    from mcf.tensor.conversion import promote, to_plain
    from mcf.tensor.creation import tensor
    from mcf.tensor.tensor import MCFTensor

    if not isinstance(x, MCFTensor):
        value = to_plain(value, x.dtype) if isinstance(value, MCFTensor) else value
    elif not isinstance(value, Tensor):
        value = tensor(value, x.terms, x.dtype, x.device)
    elif _is_plain(value) and torch.is_grad_enabled():
        value = promote(value)
    with torch._C.DisableTorchFunctionSubclass():
        Tensor.__setitem__(x, index, value)


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """target.copy_(source), rounded to nearest; the gradient reaches a plain source rounded."""
    from mcf.tensor.conversion import promote, to_plain
    from mcf.tensor.tensor import MCFTensor

    if not isinstance(target, MCFTensor):
        source = to_plain(source, target.dtype)
    elif _is_plain(source) and torch.is_grad_enabled():
        source = promote(source)
    with torch._C.DisableTorchFunctionSubclass():
        return target.copy_(source, non_blocking)


def _set_data(x: Any, value: Any) -> None:
    """x.data = value: the components are exchanged."""
    from mcf.tensor.components import NAMES
    from mcf.tensor.tensor import MCFTensor

    if not isinstance(x, MCFTensor) or not isinstance(value, MCFTensor):
        raise TypeError("x.data of an expansion tensor can only be set to an expansion tensor")
    if (x.dtype, x.shape, x.terms) == (value.dtype, value.shape, value.terms):
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.data.__set__(x, value)  # type: ignore[attr-defined]
        x.__dict__.update(zip(NAMES, value.components, strict=False))
        return
    raise RuntimeError(
        f"x.data: terms, dtype and shape must stay {x.terms}, {x.dtype}, {list(x.shape)}, "
        f"got {value.terms}, {value.dtype}, {list(value.shape)}"
    )


def _where(condition: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.where with numbers rounded to the tensor's format, not first to its dtype."""
    from mcf.tensor.creation import tensor
    from mcf.tensor.tensor import MCFTensor

    like = next((x for x in args if isinstance(x, MCFTensor)), None)
    if like is not None:
        args = tuple(
            x if isinstance(x, Tensor) else tensor(x, like.terms, like.dtype, like.device)
            for x in args
        )
    return forward(torch.where, (condition, *args), kwargs)


def _where_method(x: Any, condition: Tensor, other: Any) -> Any:
    return _where(condition, x, other)


def _new_tensor(x: Any, data: Any, **options: Any) -> Any:
    """x.new_tensor(data), in x's format."""
    from mcf.tensor.creation import tensor

    return tensor(data, x.terms, **{"dtype": x.dtype, "device": x.device, **options})


def _full_like(x: Any, fill_value: Any, **options: Any) -> Any:
    """torch.full_like; the number may be an expansion."""
    if not isinstance(fill_value, Tensor):
        return forward(torch.full_like, (x, fill_value), options)
    out = forward(torch.empty_like, (x,), options)
    with torch.no_grad():
        return out.fill_(fill_value)


def _new_full(x: Any, size: Any, fill_value: Any, **options: Any) -> Any:
    """x.new_full(size, fill_value); the number may be an expansion."""
    if not isinstance(fill_value, Tensor):
        return forward(Tensor.new_full, (x, size, fill_value), options)
    out = forward(Tensor.new_empty, (x, size), options)
    with torch.no_grad():
        return out.fill_(fill_value)


REPLACED[Tensor.item] = lambda x: x.item()
REPLACED[Tensor.__float__] = lambda x: float(x)
REPLACED[torch.is_nonzero] = REPLACED[Tensor.is_nonzero] = lambda x: bool(x)


def _refused(name: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        from mcf.tensor.dispatch.registry import UnsupportedError

        raise UnsupportedError(f"{name} is not supported on mcf.MCFTensor; {instead}")

    return refuse


# torch writes into a plain tensor of its own, which rounds.
REPLACED[torch.vander] = _refused("torch.vander", "use x[:, None] ** torch.arange(n)")
REPLACED[torch._C._nn.pad_sequence] = _refused(
    "torch.nn.utils.rnn.pad_sequence", "pad each tensor with torch.nn.functional.pad, then stack"
)
# It writes to the memory of the tensor, which has none.
REPLACED[Tensor.apply_] = _refused("torch.Tensor.apply_", "use x.to_fractions() and mcf.tensor")
REPLACED[Tensor.new] = _refused("torch.Tensor.new", "use x.new_empty or x.new_tensor")
REPLACED[Tensor.new_tensor] = _new_tensor
REPLACED[Tensor.new_full] = _new_full
REPLACED[torch.full_like] = _full_like
REPLACED[torch.where] = _where
REPLACED[Tensor.where] = _where_method
REPLACED[Tensor.__setitem__] = _setitem
REPLACED[Tensor.copy_] = _copy
REPLACED[Tensor.data.__set__] = _set_data  # type: ignore[attr-defined]

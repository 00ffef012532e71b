"""Above autograd: how a function of torch is called on expansion tensors.

Most functions need nothing here but their own arguments: they reach the operators that expansion
tensors have, and their derivatives are torch's, computed by those operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_default_nowrap_functions

from mcf.expansions.conversion import promote
from mcf.expansions.dispatch.argument_names import by_place
from mcf.expansions.dispatch.recorded import functorch, mapped, unmapped
from mcf.expansions.dispatch.registry import FUNCTIONS, INTO, VIEWS, UnsupportedError
from mcf.expansions.dispatch.roomy import ROOMY_DERIVATIVES, needs_room, with_room
from mcf.expansions.dispatch.scalars import one
from mcf.expansions.dispatch.traced import check_exported, skipped
from mcf.expansions.dispatch.widening import BOUNDED, WIDENED, bounded, widened
from mcf.expansions.tensor import MCFTensor

# Whether any device's autocast is on.
_autocast = torch._C._is_any_autocast_enabled


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A torch function, some argument of which is an expansion tensor.

    Autocast, which would round to fewer components, has no say in it.
    """
    if _autocast():
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                with torch.autocast(device, enabled=False):
                    return call(func, args, kwargs)
    if kwargs:
        for value in kwargs.values():
            if isinstance(value, MCFTensor):
                args, kwargs = _multiplied(func, args, kwargs)
                kwargs = {k: _number(func, k, v) if k in _NUMBERS else v for k, v in kwargs.items()}
                break
        if not kwargs.keys().isdisjoint(_ALIASES) and not _has_own_names(func):
            kwargs = {_ALIASES.get(k, k): v for k, v in kwargs.items()}
    if functorch() is not None:
        return _among_transforms(func, args, kwargs)
    if func in WIDENED:
        args, kwargs = widened(func, args, kwargs)
    elif func in BOUNDED:
        args, kwargs = bounded(args, kwargs)
    if func in ROOMY_DERIVATIVES and needs_room(func, args):
        return with_room(call, func, args, kwargs)
    replacement = FUNCTIONS.get(func)
    # With out= there is no derivative: the operator does it.
    try:
        if replacement is not None and kwargs.get("out") is None:
            kwargs.pop("out", None)
            if kwargs:
                args, kwargs = by_place(func, replacement, args, kwargs)
            return replacement(*args, **kwargs)
        if func in INTO and kwargs.get("out") is not None:
            return INTO[func](args, kwargs)
        if type(func) is FunctionType or (torch.is_grad_enabled() and _has_plain_leaf(args)):
            return forward(func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)
    except (TypeError, RuntimeError) as error:
        # Only now is it asked for: complex numbers are no operands of the operators.
        for other in COMPLEX:
            found = other(func, args, kwargs)
            if found is not NotImplemented:
                return found
        check_exported(func, error)
        raise


def _among_transforms(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function inside a transform of torch.func.

    Of what no transform maps it is what it is outside. Beside tensors that one maps, which look
    like plain ones, it is torch's, as where all are such.
    """
    if torch.compiler.is_compiling() and _differentiating():
        # A graph has no callers, by which operators know what a derivative of torch's would round.
        raise UnsupportedError(
            "torch.compile of a function that applies torch.func.grad, vjp, jvp or what is made of "
            "them to expansion tensors is not supported; call it without torch.compile, or compile "
            "what backward and torch.autograd.grad differentiate"
        )
    if mapped((args, kwargs)) or getattr(func, "__name__", "") in _MAPPING:
        return forward(func, args, kwargs)
    if torch.compiler.is_compiling():
        # torch.compile asks a tensor's layout while the transform runs that it traces; `unmapped`
        # leaves transforms alone then, so what comes out would come in here again.
        return forward(func, args, kwargs)
    return unmapped(call)(func, args, kwargs)


def _differentiating() -> bool:
    """Whether one of the transforms that run is a derivative."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in _DERIVATIVES for level in stack)


_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)

# What makes tensors of a transform.
_MAPPING = frozenset({"_make_dual", "_unpack_dual"})

# What computes a function of expansions and complex numbers, or returns NotImplemented.
COMPLEX: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = []

# NumPy's names of arguments, which torch's own functions take, but for those written in Python.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def _has_own_names(func: Any) -> bool:
    """Whether a function calls its arguments what NumPy does, or would not take both names."""
    return type(func) is FunctionType or func is torch.segment_reduce


# Functions of x, y, ... that add alpha or value times what y, ... are.
_MULTIPLES = {"add", "add_", "sub", "sub_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"}


def _multiplied(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """x + alpha y with an expansion alpha as the sum of x and a product."""
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


def is_plain_leaf(x: Any) -> bool:
    """Whether something is a plain tensor that requires grad."""
    return isinstance(x, Tensor) and not isinstance(x, MCFTensor) and x.requires_grad


# What is seen at once to be none.
_NO_LEAF = frozenset({MCFTensor, int, float, bool, type(None)})


def _has_plain_leaf(args: Sequence[Any]) -> bool:
    """Whether a plain tensor requires grad, which inside torch.func an expansion may look like."""
    for x in args:
        if type(x) in _NO_LEAF:
            continue
        if isinstance(x, Tensor):
            if not isinstance(x, MCFTensor) and x.requires_grad:
                return functorch() is None
        elif isinstance(x, (list, tuple)) and any(map(is_plain_leaf, x)):
            return functorch() is None
    return False


def _promoted(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments with plain tensors that require grad as expansions.

    So their gradient, which is an expansion, is rounded to nearest when it reaches them. An
    argument that is written to stays what it is.
    """
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") or name.startswith("__set") or name.startswith("__i")
    if name == "__set__":
        return args
    out = list(args)
    for k, x in enumerate(args):
        if k == 0 and in_place:
            continue
        if isinstance(x, (list, tuple)):
            out[k] = type(x)(promote(y) if is_plain_leaf(y) else y for y in x)
        elif is_plain_leaf(x):
            out[k] = promote(x)
    return tuple(out)


_unasked = torch._C.DisableTorchFunctionSubclass


# They give what somebody has stored.
_STORED = get_default_nowrap_functions()


def _of_type(cls: type[MCFTensor], func: Any, found: Any, given: Sequence[Any]) -> Any:
    """A result as the type of its own that an argument has, as functions of torch's tensors do."""
    if func in _STORED:
        return found
    if isinstance(found, (tuple, list)) and type(found) is not torch.Size:
        return type(found)([_of_type(cls, func, x, given) for x in found])
    if type(found) is not MCFTensor:
        return found
    flat = [y for x in given for y in (x if isinstance(x, (tuple, list)) else (x,))]
    if any(found is x for x in flat):
        # What was written to, or is given back, keeps its type.
        with _unasked():
            found = found.view(found.shape)
    found.__class__ = cls
    return found


# Questions about a tensor that read no element and that autograd does not record.
_METADATA = frozenset(
    [getattr(Tensor, name) for name in (
        "dim", "ndimension", "size", "stride", "numel", "nelement", "is_floating_point",
        "is_complex", "is_contiguous", "element_size", "storage_offset", "get_device",
    )]
    + [getattr(Tensor, name).__get__ for name in (
        "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cpu",
        "is_cuda", "itemsize",
    )]
)  # fmt: skip


def _torch_function(
    cls: type,
    func: Any,
    types: Sequence[type],
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
) -> Any:
    if func in _METADATA:
        with _unasked():
            return func(*args, **kwargs or {})
    view = VIEWS.get(func)
    if view is not None:
        with _unasked():
            found = view(*args, **kwargs) if kwargs else view(*args)
        if found is not NotImplemented:
            return found if cls is MCFTensor else _of_type(cls, func, found, args)
    # A type of two of these, such as complex numbers, which knows what to do.
    if len(types) > 1 and any(getattr(t, "takes_precedence", False) for t in types):
        return NotImplemented
    if cls is MCFTensor:
        return call(func, args, kwargs or {})
    given = (*args, *kwargs.values()) if kwargs else args
    return _of_type(cls, func, call(func, args, kwargs or {}), given)


skipped(_torch_function)
MCFTensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[method-assign, assignment]

"""Call torch functions on expansion tensors, above autograd.

Most functions pass through unchanged: they reach the registered operators, and torch computes their
derivatives with these operators.

Implementations name their parameters as their formulas do. When a call has an unknown keyword, its
position in torch's own function is read from torch's schemas and cached.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import get_default_nowrap_functions

from mcf.expansions.conversion import promote
from mcf.expansions.dispatch.recorded import functorch, mapped, unmapped
from mcf.expansions.dispatch.registry import FUNCTIONS, INTO, VIEWS, UnsupportedError
from mcf.expansions.dispatch.scalars import one
from mcf.expansions.dispatch.traced import check_exported, skipped
from mcf.expansions.dispatch.widening import (
    BOUNDED,
    ROOMY_DERIVATIVES,
    WIDENED,
    bounded,
    needs_room,
    widened,
    with_room,
)
from mcf.expansions.tensor import MCFTensor

# NumPy's aliases of torch's argument names.
_ALSO = {"input": ("x", "a", "x1"), "other": ("x2",)}


def by_place(
    func: Any, implementation: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with keywords renamed to the implementation's parameters.

    A keyword that only torch knows is renamed to the parameter at the same position. The
    implementation refuses keywords that neither knows.
    """
    names, known = _parameters(implementation)
    if kwargs.keys() <= known:
        return args, kwargs
    places = _places(func)
    found: dict[str, Any] = {}
    for name, value in kwargs.items():
        at = places.get(name, -1)
        own = names[at] if name not in known and len(args) <= at < len(names) else name
        if own in found or (own != name and own in kwargs):
            return args, kwargs
        found[own] = value
    return args, found


@functools.cache
def _parameters(implementation: Callable[..., Any]) -> tuple[list[str], frozenset[str]]:
    """Return the names of positional parameters in order, and all names."""
    found = inspect.signature(implementation).parameters.values()
    names = [p.name for p in found if p.kind is p.POSITIONAL_OR_KEYWORD]
    return names, frozenset([*names, *(p.name for p in found if p.kind is p.KEYWORD_ONLY)])


@functools.cache
def _places(func: Any) -> dict[str, int]:
    """Return the position of each argument name of a torch function."""
    if isinstance(func, FunctionType):
        return {name: at for at, name in enumerate(inspect.signature(func).parameters)}
    name = getattr(func, "__name__", "")
    # A method has no name for its first argument, `self`.
    first = "" if hasattr(func, "__objclass__") else "input"
    found: dict[str, int] = {}
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        for at, argument in enumerate(schema.arguments):
            if not argument.kwarg_only:
                tensor = argument.name == "self" and str(argument.type) == "Tensor"
                given = first if tensor else argument.name
                for also in (given, *_ALSO.get(given, ())):
                    found.setdefault(also, at)
    return found


# Returns whether autocast is on for any device.
_autocast = torch._C._is_any_autocast_enabled


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function with an expansion tensor among its arguments.

    Autocast is disabled, since it would round to fewer components.
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
    # `out=` has no derivative, so the operator below autograd serves.
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
        # Complex operands are looked for only here: the operators refuse them.
        for other in COMPLEX:
            found = other(func, args, kwargs)
            if found is not NotImplemented:
                return found
        check_exported(func, error)
        raise


def _among_transforms(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a torch function inside a transform of torch.func.

    If no argument belongs to a transform, the function runs as outside of it. Otherwise torch's own
    function runs, since tensors of a transform look like plain ones.
    """
    if torch.compiler.is_compiling() and _differentiating():
        # Operators detect rounding derivatives by the call stack, which a graph does not have.
        raise UnsupportedError(
            "torch.compile of a function that applies torch.func.grad, vjp, jvp or functions based "
            "on them to expansion tensors is not supported; call it without torch.compile, or use "
            "backward or torch.autograd.grad on a compiled function"
        )
    if mapped((args, kwargs)) or getattr(func, "__name__", "") in _MAPPING:
        return forward(func, args, kwargs)
    if torch.compiler.is_compiling():
        # torch.compile reads a tensor's layout while it traces the transform. `unmapped` keeps
        # transforms active then, so the call would recurse.
        return forward(func, args, kwargs)
    return unmapped(call)(func, args, kwargs)


def _differentiating() -> bool:
    """Return whether one of the active transforms is a derivative."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() in _DERIVATIVES for level in stack)


_DERIVATIVES = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)

# Functions that create or unpack tensors of a transform.
_MAPPING = frozenset({"_make_dual", "_unpack_dual"})

# Functions that call a torch function on complex operands, or return NotImplemented.
COMPLEX: list[Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]] = []

# NumPy's argument names, which torch functions take unless they are written in Python.
_ALIASES = {"axis": "dim", "keepdims": "keepdim"}


def _has_own_names(func: Any) -> bool:
    """Return whether a function does not take NumPy's argument names as aliases."""
    return type(func) is FunctionType or func is torch.segment_reduce


# Functions of x, y, ... that add alpha or value times a function of y, ...
_MULTIPLES = {"add", "add_", "sub", "sub_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"}


def _multiplied(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace an expansion alpha in x + alpha y: multiply y by it and drop the argument."""
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
    """Return the Python number that equals an expansion argument, or the argument unchanged."""
    if not isinstance(value, MCFTensor) or value.numel() != 1 or value.requires_grad:
        return value
    number = value.item()
    if one(value, name) != number and number == number:
        raise UnsupportedError(
            f"torch.{getattr(func, '__name__', func)}: {name} must equal a Python number, got an "
            "expansion that does not; write it as an operation, x + a * y for "
            "torch.add(x, y, alpha=a)"
        )
    return number


@functools.cache
def unasked(function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Return a copy of a Python function of torch that skips its own `__torch_function__` check.

    The functions that it calls then dispatch on expansions as usual. Torch would disable
    `__torch_function__` while one of its functions runs.

    Args:
        function: torch's function.
        **names: replacements of some of its global names.
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


# Functions that depend on the identity of their arguments.
_KEEP = {torch.autograd.grad, torch.autograd.backward, Tensor.backward}


def forward(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the torch function itself after promoting plain tensors that require grad."""
    if func not in _KEEP and torch.is_grad_enabled() and _has_plain_leaf(args):
        args = _promoted(func, args)
    if isinstance(func, FunctionType) and func.__globals__ is vars(torch.nn.functional):
        if not torch.compiler.is_compiling():
            return unasked(func)(*args, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def is_plain_leaf(x: Any) -> bool:
    """Return whether x is a plain tensor that requires grad."""
    return isinstance(x, Tensor) and not isinstance(x, MCFTensor) and x.requires_grad


# Types that are no plain tensors.
_NO_LEAF = frozenset({MCFTensor, int, float, bool, type(None)})


def _has_plain_leaf(args: Sequence[Any]) -> bool:
    """Return whether a plain tensor requires grad; inside torch.func it may wrap an expansion."""
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
    """Promote plain tensors that require grad among the arguments to expansions.

    Their gradient, an expansion, is then rounded to nearest when it reaches them. An argument that
    is written to is not promoted.
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


# Functions that return stored objects, such as `grad`.
_STORED = get_default_nowrap_functions()


def _of_type(cls: type[MCFTensor], func: Any, found: Any, given: Sequence[Any]) -> Any:
    """Give a result the subclass of an argument, as torch functions do for tensor subclasses."""
    if func in _STORED:
        return found
    if isinstance(found, (tuple, list)) and type(found) is not torch.Size:
        return type(found)([_of_type(cls, func, x, given) for x in found])
    if type(found) is not MCFTensor:
        return found
    flat = [y for x in given for y in (x if isinstance(x, (tuple, list)) else (x,))]
    if any(found is x for x in flat):
        # An argument that is returned keeps its type: return a view of it.
        with _unasked():
            found = found.view(found.shape)
    found.__class__ = cls
    return found


# Queries of a tensor that read no element and that autograd does not record.
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
    # A type composed of expansions, such as complex tensors, handles the call.
    if len(types) > 1 and any(getattr(t, "takes_precedence", False) for t in types):
        return NotImplemented
    if cls is MCFTensor:
        return call(func, args, kwargs or {})
    given = (*args, *kwargs.values()) if kwargs else args
    return _of_type(cls, func, call(func, args, kwargs or {}), given)


skipped(_torch_function)
MCFTensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[method-assign, assignment]

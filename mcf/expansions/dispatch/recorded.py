"""Detect autograd, dispatch modes and transforms that observe operations on tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from mcf.expansions.tensor import MCFTensor

Function = TypeVar("Function", bound=Callable[..., Any])

# The innermost level of torch.func's transforms, or None. Their tensors have the type of plain
# ones.
functorch = torch._C._functorch.maybe_current_level
modes = torch._C._len_torch_dispatch_stack
_duals = torch.autograd.forward_ad


def watched() -> bool:
    """Return whether a mode or a transform is active: then values must not decide control flow."""
    return bool(modes()) or functorch() is not None


def unseen(x: Tensor) -> bool:
    """Return whether values of a tensor must not decide control flow, or it has none (meta)."""
    return watched() or x.device.type == "meta"


# The functions of torch.func that run a user's function under grad, vjp or jvp.
FORWARD = frozenset({"_jvp_with_argnums"})
PULLED = frozenset({"_vjp_with_argnums"})
DERIVATIVES = FORWARD | PULLED | {"grad_and_value_impl"}
# The function that runs a user's function under torch.func.vmap.
MAPPED = frozenset({"_flat_vmap"})
_ROOMS = ("eager_transforms.py", "vmap.py")


def transformed(names: frozenset[str] = DERIVATIVES, times: int = 1) -> bool:
    """Return whether the call stack contains functions of torch.func.

    An operator below the transform cannot tell otherwise: its tensors have been unwrapped, and the
    stack of transforms is that of their contents. Walking the call stack takes microseconds.

    Args:
        names: names of functions in torch.func; by default those that run derivatives.
        times: how many of them the stack must contain.
    """
    for frame, code in _callers():
        if code.co_name in names and code.co_filename.endswith(_ROOMS):
            times -= 1
        elif entered := _of_graph(frame):
            times -= len([1 for each in entered if not names.isdisjoint(_ENTRIES[each])])
        if times <= 0:
            return True
    return False


def _callers() -> Iterator[tuple[Any, Any]]:
    """Yield frames and code of the call stack, from the innermost to one that left transforms."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code is not outside.__code__:
        yield frame, frame.f_code
        frame = frame.f_back


# Functions by which a graph of torch.compile enters a transform -> functions that run it in eager
# mode.
_ENTRIES = {
    "_grad_increment_nesting": PULLED | {"grad_and_value_impl"},
    "_jvp_increment_nesting": FORWARD,
    "_vmap_increment_nesting": MAPPED,
}


def _of_graph(frame: Any) -> list[str]:
    """Return the transforms that a graph enters, if a frame runs one: generated or interpreted."""
    code = frame.f_code
    if code.co_filename.startswith("<eval_with_key>"):
        return [name for name in code.co_names if name in _ENTRIES]
    if code.co_name == "run" and code.co_filename.endswith("interpreter.py"):
        graph = getattr(frame.f_locals.get("self"), "graph", None)
        targets = (getattr(n.target, "__name__", "") for n in getattr(graph, "nodes", ()))
        return [name for name in targets if name in _ENTRIES]
    return []


def pulling() -> bool:
    """Return whether the innermost transform has run its function and now computes its derivative.

    Only enclosing transforms differentiate operations that run then.
    """
    for _, code in _callers():
        if code.co_filename.endswith(_ROOMS):
            if code.co_name == "_autograd_grad":
                return True
            if code.co_name in DERIVATIVES:
                return False
    return False


def recorded(x: Any, asked: bool = True) -> bool:
    """Return whether autograd, a mode, a transform or torch.compile observes a tensor.

    Args:
        x: the tensor.
        asked: whether `__torch_function__` is active, so that reading `x.requires_grad` has to
            disable it first (slower).
    """
    if torch.compiler.is_compiling() or type(x) is not MCFTensor:
        return True
    if watched() or _duals._current_level >= 0:
        return True
    if asked:
        return differentiated((x,))
    return torch.is_grad_enabled() and x.requires_grad


def unmapped(function: Function) -> Function:
    """Run a function outside the active transforms if none of them maps an argument."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or functorch() is None or mapped((*args, kwargs)):
            return function(*args, **kwargs)
        return outside(function, args, kwargs)

    return call  # type: ignore[return-value]


def outside(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with the stack of transforms cleared."""
    with temporarily_clear_interpreter_stack():
        return function(*args, **kwargs)


def mapped(values: Any) -> bool:
    """Return whether a value is, or contains, a tensor of a torch.func transform."""
    if isinstance(values, Tensor):
        return _is_mapped(values)
    if isinstance(values, dict):
        return any(map(mapped, values.values()))
    return isinstance(values, (list, tuple)) and any(map(mapped, values))


_is_mapped = torch._C._functorch.is_functorch_wrapped_tensor


# Disables `__torch_function__`, which otherwise runs for every attribute of a tensor.
_unasked = torch._C.DisableTorchFunctionSubclass


def differentiated(values: Iterable[Any]) -> bool:
    """Return whether autograd records operations on one of the values."""
    if not torch.is_grad_enabled():
        return False
    with _unasked():
        for x in values:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def pulled_back(values: Iterable[Any]) -> bool:
    """Return whether autograd records one of the values, in reverse mode only."""
    return _duals._current_level < 0 and differentiated(values)


def kept(x: Any, written: bool) -> Any:
    """Return x for a derivative to save: a copy if it is recorded and will be overwritten."""
    return x.clone() if written and differentiated((x,)) else x


def writable(target: Tensor) -> bool:
    """Return whether a tensor can be written to above autograd, followed by a call of `written`."""
    if torch.compiler.is_compiling() or _duals._current_level >= 0:
        return False
    with _unasked():
        return not target.is_inference()


def written(target: Tensor) -> None:
    """Increment the version of a tensor, which autograd may have saved."""
    _increment([target])


_increment: Any = torch._C._increment_version

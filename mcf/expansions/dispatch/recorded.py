"""Whether anybody but the caller sees what is done with tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from mcf.expansions.tensor import MCFTensor

Function = TypeVar("Function", bound=Callable[..., Any])

# Whether a transform of torch.func runs: its tensors have the type of plain ones.
functorch = torch._C._functorch.maybe_current_level
modes = torch._C._len_torch_dispatch_stack
_duals = torch.autograd.forward_ad


def watched() -> bool:
    """Whether a mode or a transform looks at what is done, for which no number may decide it."""
    return bool(modes()) or functorch() is not None


def unseen(x: Tensor) -> bool:
    """Whether no number of a tensor may decide what is done, or there is none to look at."""
    return watched() or x.device.type == "meta"


# What runs a function under torch.func.grad, vjp, jvp and what is made of these.
FORWARD = frozenset({"_jvp_with_argnums"})
PULLED = frozenset({"_vjp_with_argnums"})
DERIVATIVES = FORWARD | PULLED | {"grad_and_value_impl"}
# And under torch.func.vmap.
MAPPED = frozenset({"_flat_vmap"})
_ROOMS = ("eager_transforms.py", "vmap.py")


def transformed(names: frozenset[str] = DERIVATIVES, times: int = 1) -> bool:
    """Whether a caller is torch.func's derivative of a function, or one of those by name.

    An operator is told nothing of it: its tensors have been unwrapped, the stack of transforms is
    that of what they hold. So the callers are looked at, which takes microseconds.

    Args:
        names: what runs functions in torch.func.
        times: how many of them there have to be.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        code = frame.f_code
        if code is outside.__code__:
            return False
        if code.co_name in names and code.co_filename.endswith(_ROOMS):
            times -= 1
        elif entered := _of_graph(frame):
            times -= len([1 for each in entered if not names.isdisjoint(_ENTRIES[each])])
        if times <= 0:
            return True
        frame = frame.f_back
    return False


# What a graph of torch.compile calls where it enters a transform, and what runs that elsewhere.
_ENTRIES = {
    "_grad_increment_nesting": PULLED | {"grad_and_value_impl"},
    "_jvp_increment_nesting": FORWARD,
    "_vmap_increment_nesting": MAPPED,
}


def _of_graph(frame: Any) -> list[str]:
    """The transforms that a graph enters, where a frame runs one: its code, or node by node."""
    code = frame.f_code
    if code.co_filename.startswith("<eval_with_key>"):
        return [name for name in code.co_names if name in _ENTRIES]
    if code.co_name == "run" and code.co_filename.endswith("interpreter.py"):
        graph = getattr(frame.f_locals.get("self"), "graph", None)
        targets = (getattr(n.target, "__name__", "") for n in getattr(graph, "nodes", ()))
        return [name for name in targets if name in _ENTRIES]
    return []


def pulling() -> bool:
    """Whether the innermost transform's function is done and its derivative is being made.

    What is computed then has derivatives for transforms around it alone.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        code = frame.f_code
        if code is outside.__code__:
            return False
        if code.co_filename.endswith(_ROOMS):
            if code.co_name == "_autograd_grad":
                return True
            if code.co_name in DERIVATIVES:
                return False
        frame = frame.f_back
    return False


def recorded(x: Any, asked: bool = True) -> bool:
    """Whether autograd, a mode, a transform or torch.compile sees what is done with a tensor.

    Args:
        x: the tensor.
        asked: whether its type is asked about functions of torch, which takes time.
    """
    if torch.compiler.is_compiling() or type(x) is not MCFTensor:
        return True
    if watched() or _duals._current_level >= 0:
        return True
    if asked:
        return differentiated((x,))
    return torch.is_grad_enabled() and x.requires_grad


def unmapped(function: Function) -> Function:
    """A function that inside a transform computes what no transform maps as outside of it."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or functorch() is None or mapped((*args, kwargs)):
            return function(*args, **kwargs)
        return outside(function, args, kwargs)

    return call  # type: ignore[return-value]


def outside(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function's result with the stack of transforms put aside."""
    with temporarily_clear_interpreter_stack():
        return function(*args, **kwargs)


def mapped(values: Any) -> bool:
    """Whether some value is a tensor of a transform of torch.func, or holds one."""
    if isinstance(values, Tensor):
        return _is_mapped(values)
    if isinstance(values, dict):
        return any(map(mapped, values.values()))
    return isinstance(values, (list, tuple)) and any(map(mapped, values))


_is_mapped = torch._C._functorch.is_functorch_wrapped_tensor


# Without it a tensor's every attribute is a function of torch that its type is asked about.
_unasked = torch._C.DisableTorchFunctionSubclass


def differentiated(values: Iterable[Any]) -> bool:
    """Whether autograd records what is done with one of some values."""
    if not torch.is_grad_enabled():
        return False
    with _unasked():
        for x in values:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def pulled_back(values: Iterable[Any]) -> bool:
    """Return whether reverse-mode derivatives alone are recorded of one of some values."""
    return _duals._current_level < 0 and differentiated(values)


def kept(x: Any, written: bool) -> Any:
    """What derivatives of a function of x may keep: a copy where it is recorded and written to."""
    return x.clone() if written and differentiated((x,)) else x


def writable(target: Tensor) -> bool:
    """Whether a tensor can be written to above autograd, but for what `written` has to say."""
    if torch.compiler.is_compiling() or _duals._current_level >= 0:
        return False
    with _unasked():
        return not target.is_inference()


def written(target: Tensor) -> None:
    """Count a change of a tensor, which autograd may have kept."""
    _increment([target])


_increment: Any = torch._C._increment_version

"""Make components visible to torch.compile and make_fx, by an operator that returns one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame

from mcf.expansions.dispatch.registry import OPERATORS

if TYPE_CHECKING:
    from mcf.kernels.components import Components

# A graph records operators on a tensor, but neither its attributes nor its `__dict__`.
_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("component(Tensor x, int number) -> Tensor")  # type: ignore[no-untyped-call]


def _component(x: Any, number: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.alias.default(x.components[number])
    return found


OPERATORS[torch.ops.mcf.component.default] = _component


def traced_components(x: Any) -> Components:
    """Return the components as nodes of a graph, detached from autograd."""
    with torch.no_grad():
        return tuple([torch.ops.mcf.component(x, k) for k in range(x._terms)])


_zeros = torch.ops.aten._new_zeros_with_same_feature_meta.default


def followed(tensors: Sequence[Any]) -> bool:
    """Return whether `make_fx` is tracing and has one of the tensors in its graph."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = None if proxies is None else proxies.get_proxy_mode()
    if proxies is None or mode is None:
        return False
    return any(proxies.has_proxy_slot(x, mode.tracer) for x in tensors)


def check_followed(func: Any, arguments: Any) -> None:
    """Refuse a result that make_fx would record as a constant though it depends on an argument.

    make_fx records an operator only if all its tensors are in the graph; it runs other operators.
    """
    if func is _zeros or all("Tensor" not in str(each.type) for each in func._schema.returns):
        # The result contains no value of the argument.
        return
    tensors = [x for x in torch.utils._pytree.tree_leaves(arguments) if hasattr(x, "_terms")]
    if followed(tensors):
        raise RuntimeError(
            f"{func} of an expansion tensor that make_fx traces and one that it does not: the "
            "result would be a constant of the graph; pass all expansion tensors as arguments of "
            "the function"
        )


def check_exported(func: Any, error: Exception) -> None:
    """Explain torch's error about an expansion tensor that torch.export does not trace.

    Below autograd such a tensor meets one that is an input of the program. Torch then fails to cast
    NotImplemented to Tensor.
    """
    if "NotImplemented" in str(error) and torch.compiler.is_exporting():
        name = getattr(func, "__name__", func)
        raise RuntimeError(
            f"{name} of an expansion tensor that torch.export does not trace; make it a parameter "
            "or a buffer of the module or an argument of the program, or export with strict=True"
        ) from error


def skipped(function: Callable[..., Any]) -> None:
    """Exclude the frame of a function, and its callees, from compilation by torch.compile.

    torch.compile would compile every frame between two graphs, ours included, and cannot trace code
    that reads a tensor's components. Within a graph this has no effect.
    """
    # `torch._dynamo.disable` would import torch._dynamo (about 1 s) and check at each call.
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))

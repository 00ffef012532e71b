"""What torch.compile and make_fx can follow: the components of a tensor as an operator of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._C._dynamo import eval_frame

from mcf.expansions.dispatch.registry import OPERATORS

if TYPE_CHECKING:
    from mcf.kernels.components import Components

# A graph knows a tensor's operators, and neither its attributes nor the dict that holds them.
_library = torch.library.Library("mcf", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("component(Tensor x, int number) -> Tensor")  # type: ignore[no-untyped-call]


def _component(x: Any, number: int) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten.alias.default(x.components[number])
    return found


OPERATORS[torch.ops.mcf.component.default] = _component


def traced_components(x: Any) -> Components:
    """The components in a graph, cut off from that of derivatives."""
    with torch.no_grad():
        return tuple([torch.ops.mcf.component(x, k) for k in range(x._terms)])


_zeros = torch.ops.aten._new_zeros_with_same_feature_meta.default


def followed(tensors: Sequence[Any]) -> bool:
    """Whether `make_fx` is at work and has a tensor among these in its graph."""
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = None if proxies is None else proxies.get_proxy_mode()
    if proxies is None or mode is None:
        return False
    return any(proxies.has_proxy_slot(x, mode.tracer) for x in tensors)


def check_followed(func: Any, arguments: Any) -> None:
    """Refuse what make_fx would keep as a constant, though it is computed from an argument.

    It follows operators whose tensors are all in its graph, and hands down the others, of whose
    components it has none.
    """
    if func is _zeros or all("Tensor" not in str(each.type) for each in func._schema.returns):
        # No number of the argument is in the result.
        return
    tensors = [x for x in torch.utils._pytree.tree_leaves(arguments) if hasattr(x, "_terms")]
    if followed(tensors):
        raise RuntimeError(
            f"{func} of an expansion tensor that make_fx follows and another tensor that it does "
            "not: its result would be a constant of the graph. Give all expansion tensors as "
            "arguments of the function"
        )


def check_exported(func: Any, error: Exception) -> None:
    """Say of a function that torch could not do what torch.export does not follow.

    Below autograd an expansion that is no input of the program meets one that is, of which it
    knows nothing; torch says that it cannot cast NotImplemented to Tensor.
    """
    if "NotImplemented" in str(error) and torch.compiler.is_exporting():
        name = getattr(func, "__name__", func)
        raise RuntimeError(
            f"{name} of an expansion tensor that torch.export does not follow. Make it a parameter "
            "or a buffer of the module or an argument of the program, or export with strict=True"
        ) from error


def skipped(function: Callable[..., Any]) -> None:
    """Have torch.compile run a function, and what that calls, as it is where it meets its frame.

    It compiles every frame between two graphs, ours too where a function of torch runs in there,
    and cannot follow what looks into a tensor. Within a graph it asks for no frame.
    """
    # `torch._dynamo.disable` would import torch._dynamo, a second of work, and ask at each call.
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))

"""The backend of `torch.compile` that makes one kernel of operations on expansions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from mcf.fusion import component_access
from mcf.fusion.graphs import Graph, Step
from mcf.fusion.stage_recording import computes, recordable
from mcf.fusion.stages import stages
from mcf.kernels.formats import FORMATS, FP64, Format


def fused(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A backend of `torch.compile`: operations on expansions as few kernels.

        fast = torch.compile(step, backend=mcf.fused)   # "mcf" where the package is installed

    Operations on expansions, sums and products along dimensions of at most 256 numbers, views,
    copies and constants become statements on the numbers of one system, and those one kernel. If
    nothing that is computed of x[k, ...] depends on x[j, ...], k counts systems, which are the
    lanes of the kernel, as it is for `torch.func.vmap`; so for several leading dimensions. What has
    no statements, or more than a kernel should have, runs as it is, between kernels; the logger
    "mcf.fusion" says which. The torch executor makes no kernels.

    The bits are those of the function as it is, derivatives have kernels too, and shapes may be
    dynamic: each combination has a kernel.

    Args:
        graph: of Dynamo.
        inputs: what it is called with.
        options: those of `torch.compile`, of which there are none.

    Raises:
        TypeError: for options.
    """
    if options:
        raise TypeError(f"backend mcf has no options, got {', '.join(map(repr, options))}")
    from torch._dynamo.backends.common import aot_autograd

    found: list[component_access.Run] = []

    def inference(module: GraphModule, components: Sequence[Any]) -> Callable[..., Any]:
        program = compile_graph(module, components)
        found.extend(component_access.runs(graph, inputs, module, program))
        return program

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compile_graph, inference_compiler=inference
    )(graph, inputs)
    return found[0] if found else compiled


def _format(graph: torch.fx.Graph) -> Format:
    """The format of a graph's arithmetic."""
    for node in graph.nodes:
        if computes(node):
            for x in node.all_input_nodes:
                value = x.meta.get("val")
                if isinstance(value, Tensor) and value.dtype in FORMATS:
                    return FORMATS[value.dtype]
    return FP64


def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Graph:
    """A graph of operators on components as kernels, and what is no part of one as it is."""
    fmt = _format(graph.graph)
    found = stages(graph.graph, lambda n: recordable(n, fmt), computes)
    return Graph(graph, [Step(s, fmt) if s.nodes else None for s in found], found)

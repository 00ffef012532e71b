"""The backend of `torch.compile` that fuses operations on expansions into kernels."""

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
    """Compile operations on expansions to few kernels, as a backend of `torch.compile`.

        fast = torch.compile(step, backend=mcf.fused)   # "mcf" where the package is installed

    Operations on expansions, sums and products along dimensions of at most 256 numbers, views,
    copies and constants become statements on the numbers of one system, and these become one
    kernel. If no result of x[k, ...] depends on x[j, ...], then k counts systems, which are the
    lanes of the kernel, as for `torch.func.vmap`; likewise for several leading dimensions.
    Operations without statements, or beyond the limit of a kernel, run unchanged between kernels;
    the logger "mcf.fusion" reports them. The torch executor has no kernels.

    The bits are those of the uncompiled function. Derivatives have kernels too, and shapes may be
    dynamic: each combination has a kernel.

    Args:
        graph: the graph from Dynamo.
        inputs: the arguments of the first call.
        options: the options of `torch.compile`; must be empty.

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
    """Return the format of a graph's arithmetic."""
    for node in graph.nodes:
        if computes(node):
            for x in node.all_input_nodes:
                value = x.meta.get("val")
                if isinstance(value, Tensor) and value.dtype in FORMATS:
                    return FORMATS[value.dtype]
    return FP64


def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Graph:
    """Compile a graph of operators on components to kernels; other nodes run unchanged."""
    fmt = _format(graph.graph)
    found = stages(graph.graph, lambda n: recordable(n, fmt), computes)
    return Graph(graph, [Step(s, fmt) if s.nodes else None for s in found], found)

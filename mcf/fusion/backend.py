"""The backend of `torch.compile` that makes one kernel of operations on expansions."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from mcf.fusion.kernels import Run, kernel_of
from mcf.fusion.recording import computes, recordable
from mcf.fusion.stages import Stage, stages
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP64, Format
from mcf.kernels.register_choice import get_registers


def fused(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile a function on expansions to as few kernels as there can be.

    `torch.compile(step, backend=mcf.fused)`, or `backend="mcf"` where the package is installed.
    """
    from torch._dynamo.backends.common import aot_autograd

    compiled: Callable[..., Any] = aot_autograd(fw_compiler=compile_graph)(graph, inputs)
    return compiled


def _format(graph: torch.fx.Graph) -> Format:
    """The format of a graph's arithmetic."""
    for node in graph.nodes:
        if computes(node):
            for x in node.all_input_nodes:
                value = x.meta.get("val")
                if isinstance(value, Tensor) and value.dtype in FORMATS:
                    return FORMATS[value.dtype]
    return FP64


def compile_graph(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A graph of operators on components as kernels, and what is no part of one as it is."""
    fmt = _format(graph.graph)
    found = stages(graph.graph, lambda n: recordable(n, fmt), computes)
    program = Graph(graph, [_Step(graph, s, fmt) if s.nodes else None for s in found], found)
    program._boxed_call = True  # type: ignore[attr-defined]
    return program


class _Step:
    """A stage, and its kernels for operands of several kinds."""

    def __init__(self, graph: GraphModule, stage: Stage, fmt: Format) -> None:
        self.stage, self._format = stage, fmt
        self._graph = graph
        self._kernels: dict[tuple[Any, ...], Run | None] = {}

    def __call__(self, given: list[Any]) -> list[Any]:
        key: list[Any] = [registry.get_executor(), get_registers()]
        for x in given:
            key += (x.shape, x.stride(), x.device) if isinstance(x, Tensor) else (x,)
        kind = tuple(key)
        try:
            run = self._kernels[kind]
        except KeyError:
            run = self._kernels[kind] = kernel_of(self.stage, given, self._format)
        if run is None:
            known = dict(zip(self.stage.inputs, given, strict=True))
            for node in self.stage.nodes:
                known[node] = _run(node, known)
            return [known[n] for n in self.stage.outputs]
        return run(given)


def _run(node: Node, known: dict[Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


class Graph:
    """A graph that runs stage after stage."""

    def __init__(self, graph: GraphModule, steps: list[_Step | None], found: list[Stage]) -> None:
        self._module, self._steps, self._stages = graph, steps, found
        nodes = graph.graph.nodes
        self._arguments = [n for n in nodes if n.op == "placeholder"]
        [self._output] = (n.args[0] for n in nodes if n.op == "output")

    def __call__(self, given: list[Any]) -> Any:
        """The outputs; `given` is emptied."""
        known = dict(zip(self._arguments, given, strict=True))
        given.clear()
        for step, stage in zip(self._steps, self._stages, strict=True):
            if step is not None:
                made = step([known[n] for n in stage.inputs])
                known.update(zip(stage.outputs, made, strict=True))
            for node in stage.others:
                known[node] = self._one(node, known)
        return torch.fx.map_arg(self._output, known.__getitem__)

    def _one(self, node: Node, known: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._module)
        if node.op == "call_module":
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        return _run(node, known)

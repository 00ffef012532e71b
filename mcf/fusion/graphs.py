"""A graph that runs in stages; each stage is a kernel followed by unfused nodes."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from mcf.fusion.kernels import Run, kernel_of, longest_on
from mcf.fusion.stage_recording import computes
from mcf.fusion.stages import Stage, halves
from mcf.kernels import registry
from mcf.kernels.formats import Format
from mcf.kernels.register_choice import get_registers


class Step:
    """A stage, and its kernels by signature of the operands.

    Args:
        stage: with nodes.
        fmt: the format of its numbers.
    """

    def __init__(self, stage: Stage, fmt: Format) -> None:
        self.stage, self._format = stage, fmt
        self._kernels: dict[tuple[Any, ...], Run | None] = {}
        # If no size is symbolic, the operands always have one signature.
        self._fixed = all(_fixed(n.meta.get("val")) for n in stage.inputs)

    @functools.cached_property
    def _halves(self) -> list[Step]:
        """The steps that run if the stage has no kernel: its two halves, which may have kernels."""
        found = halves(self.stage, computes)
        return [self] if len(found) == 1 else [Step(s, self._format) for s in found]

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        """Return the outputs of the stage."""
        kind: tuple[Any, ...] = (registry.get_executor(), get_registers())
        if not self._fixed:
            for x in given:
                kind += (x.shape, x.stride(), x.device) if isinstance(x, Tensor) else (x,)
        try:
            run = self._kernels[kind]
        except KeyError:
            run = self._kernels[kind] = kernel_of(self.stage, given, self._format)
        found = None if run is None else run(given)
        if found is not None:
            return found
        known = dict(zip(self.stage.inputs, given, strict=True))
        if run is not None or not longest_on(given) or len(self._halves) == 1:
            for node in self.stage.nodes:
                known[node] = _run(node, known)
        else:
            for half in self._halves:
                stage = half.stage
                made = half([known[n] for n in stage.inputs])
                known.update(zip(stage.outputs, made, strict=True))
        return [known[n] for n in self.stage.outputs]


def _fixed(value: Any) -> bool:
    return isinstance(value, Tensor) and all(
        type(n) is int for n in (*value.shape, *value.stride())
    )


def _run(node: Node, known: dict[Node, Any]) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
    return node.target(*args, **kwargs)  # type: ignore[operator]


class Graph:
    """A graph on components.

    Args:
        graph: of operators.
        steps: of its stages, None for stages without nodes.
        stages: of the graph.
    """

    def __init__(
        self, graph: GraphModule, steps: Sequence[Step | None], stages: Sequence[Stage]
    ) -> None:
        # AOTAutograd passes a list, which the call may empty.
        self._boxed_call = True
        self._module, self._steps, self._stages = graph, steps, stages
        nodes = graph.graph.nodes
        self.arguments = [n for n in nodes if n.op == "placeholder"]
        [self._output] = (n.args[0] for n in nodes if n.op == "output")
        self._one = self._single()

    def _single(self) -> tuple[Step, Any] | None:
        """Return the only step and a getter of its inputs, if its outputs are the graph's."""
        if len(self._steps) != 1 or self._stages[0].others or self._steps[0] is None:
            return None
        stage = self._stages[0]
        if [*self._output] != stage.outputs or len(stage.inputs) < 2:
            return None
        places = [self.arguments.index(n) for n in stage.inputs]
        return self._steps[0], operator.itemgetter(*places)

    def __call__(self, given: list[Any]) -> Any:
        """Return the outputs; `given` is emptied."""
        if self._one is not None:
            step, pick = self._one
            return step(pick(given))
        known = dict(zip(self.arguments, given, strict=True))
        given.clear()
        for each, stage in zip(self._steps, self._stages, strict=True):
            if each is not None:
                made = each([known[n] for n in stage.inputs])
                known.update(zip(stage.outputs, made, strict=True))
            for node in stage.others:
                known[node] = self._as_it_is(node, known)
        return torch.fx.map_arg(self._output, known.__getitem__)

    def _as_it_is(self, node: Node, known: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return operator.attrgetter(str(node.target))(self._module)
        if node.op == "call_module":
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), known.__getitem__)
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        return _run(node, known)

"""The backend of `torch.compile` that fuses operations on expansions into kernels."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from mcf.expansions.tensor import COMPONENTS, MCFTensor, made
from mcf.fusion.kernels import Run, kernel_of, longest_on
from mcf.fusion.operators import computes, recordable
from mcf.fusion.stages import Stage, halves, stages
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, FP64, Format
from mcf.kernels.register_choice import get_registers


def fused(graph: GraphModule, inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Compile operations on expansions to few kernels, as a backend of `torch.compile`.

        fast = torch.compile(step, backend=mcf.fused)   # "mcf" where the package is installed

    Operations on expansions, sums and products along dimensions of at most 256 numbers, views,
    copies and constants become the statements of one kernel. Where no result of x[k, ...] depends
    on x[j, ...], each k is a lane of the kernel, as a sample is in `torch.func.vmap`; likewise for
    several leading dimensions.
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

    found: list[Callable[..., Any] | None] = []

    def inference(module: GraphModule, components: Sequence[Any]) -> Callable[..., Any]:
        program = compile_graph(module, components)
        found.append(_direct(graph, inputs, module, program))
        return program

    compiled: Callable[..., Any] = aot_autograd(
        fw_compiler=compile_graph, inference_compiler=inference
    )(graph, inputs)
    return next(filter(None, found), compiled)


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


def _direct(
    graph: GraphModule, inputs: Sequence[Any], module: GraphModule, program: Graph
) -> Callable[..., Any] | None:
    """Return a replacement of PyTorch's wrappers, unless these are needed.

    The wrappers of a compiled graph (recreated views of inputs, mutations, checked construction of
    tensors) take longer than a small kernel. A graph without derivatives that neither changes nor
    returns its inputs only needs its tensors split into components.

    Args:
        graph: of Dynamo, on expansions.
        inputs: its inputs.
        module: the graph on components, without derivatives.
        program: runs the graph on components.
    """
    terms_in = [_terms(x) for x in inputs]
    [output] = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    if not isinstance(output, list | tuple):
        return None
    values = [n.meta.get("example_value") if isinstance(n, torch.fx.Node) else n for n in output]
    terms_out = [_terms(x) for x in values]
    if None in terms_in or None in terms_out or not _independent():
        return None
    given = sum(terms or 1 for terms in terms_in)
    found = next(n for n in module.graph.nodes if n.op == "output").args[0]
    if given != len(program.arguments) or sum(terms or 1 for terms in terms_out) != len(found):
        return None

    def run(*given: Any) -> Any:
        flat: list[Tensor] = []
        for x, terms in zip(given, terms_in, strict=True):
            flat += COMPONENTS[terms](x.__dict__) if terms else (x,)
        out, start = program(flat), 0
        found = []
        for terms in terms_out:
            found.append(made(out[start : start + terms]) if terms else out[start])
            start += terms or 1
        return found

    return run


def _terms(x: Any) -> int | None:
    """Return the components of an expansion, 0 for a plain tensor, None for anything else."""
    if isinstance(x, MCFTensor) and not any(isinstance(n, torch.SymInt) for n in x.shape):
        return x.terms
    plain = isinstance(x, Tensor) and not any(isinstance(n, torch.SymInt) for n in x.shape)
    return 0 if plain and type(x).__name__ in ("Tensor", "FakeTensor") else None


def _independent() -> bool:
    """Return whether the graph being compiled neither changes nor returns its inputs."""
    context = torch._guards.TracingContext.try_get()
    metadata: Any = getattr(context, "fw_metadata", None)
    try:
        return (
            all(x.output_type.name == "non_alias" for x in metadata.output_info)
            and not any(x.mutates_data or x.mutates_metadata for x in metadata.input_info)
            and not metadata.num_intermediate_bases
            and not metadata.tokens
        )
    except AttributeError:
        return False

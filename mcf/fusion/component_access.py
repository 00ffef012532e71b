"""Call compiled graphs directly: from expansions to components and back.

PyTorch's wrappers of a compiled graph (recreated views of inputs, mutations, checked construction
of tensors) take longer than a small kernel. A graph without derivatives that neither changes nor
returns its inputs only needs its tensors split into components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from mcf.expansions.tensor import COMPONENTS, MCFTensor, made
from mcf.fusion.graphs import Graph

Run = Callable[..., Any]


def runs(
    graph: GraphModule, inputs: Sequence[Any], module: GraphModule, program: Graph
) -> Iterator[Run]:
    """Yield a replacement of PyTorch's wrappers, unless these are needed.

    Args:
        graph: of Dynamo, on expansions.
        inputs: its inputs.
        module: the graph on components, without derivatives.
        program: runs the graph on components.
    """
    terms_in = [_terms(x) for x in inputs]
    [output] = (n.args[0] for n in graph.graph.nodes if n.op == "output")
    if not isinstance(output, list | tuple):
        return
    values = [n.meta.get("example_value") if isinstance(n, torch.fx.Node) else n for n in output]
    terms_out = [_terms(x) for x in values]
    if None in terms_in or None in terms_out or not _independent():
        return
    given = sum(terms or 1 for terms in terms_in)
    found = next(n for n in module.graph.nodes if n.op == "output").args[0]
    if given != len(program.arguments) or sum(terms or 1 for terms in terms_out) != len(found):
        return
    yield _run(program, [t or 0 for t in terms_in], [t or 0 for t in terms_out])


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


def _run(program: Graph, terms_in: list[int], terms_out: list[int]) -> Run:
    def run(*given: Any) -> Any:
        flat: list[Tensor] = []
        for x, terms in zip(given, terms_in, strict=True):
            if terms:
                flat += COMPONENTS[terms](x.__dict__)
            else:
                flat.append(x)
        out = program(flat)
        found, start = [], 0
        for terms in terms_out:
            if terms:
                found.append(made(out[start : start + terms]))
                start += terms
            else:
                found.append(out[start])
                start += 1
        return found

    return run

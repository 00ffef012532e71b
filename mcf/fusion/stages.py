"""Partition the nodes of a graph into kernels, and order them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Node


class Stage(NamedTuple):
    """Nodes that are recorded together, and nodes that run unchanged after them.

    Args:
        nodes: recorded, in order; none for no kernel.
        inputs: nodes outside that they read.
        outputs: nodes of them that are needed elsewhere.
        others: the nodes that run one by one.
    """

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]
    others: list[Node]


def _fence(node: Node) -> bool:
    """Return whether a node has side effects, so that no node may be moved across it."""
    target: Any = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
        return node.op not in ("placeholder", "output", "get_attr") and node.is_impure()
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def stages(
    graph: torch.fx.Graph, recorded: Callable[[Node], bool], computes: Callable[[Node], bool]
) -> list[Stage]:
    """Return the fewest stages that a graph can be cut into.

    A node is in stage s if s unrecordable nodes must run before it, one after the other. So no path
    leaves a stage and comes back.

    Args:
        graph: of operators.
        recorded: which nodes can be recorded.
        computes: which of them are worth a kernel; others move elements.
    """
    level: dict[Node, int] = {}
    last, least = 0, 0
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "output")]
    for node in nodes:
        own = recorded(node)
        level[node] = least
        for x in node.all_input_nodes:
            if x in level:
                level[node] = max(level[node], level[x] + (own and not recorded(x)))
        if _fence(node):
            level[node], least = last, last + 1
        last = max(last, level[node])
    found = []
    for stage in range(last + 1):
        here = [n for n in nodes if level[n] == stage]
        found.append(_stage(here, [n for n in here if recorded(n)], computes))
    return _needed(graph, found)


def halves(stage: Stage, computes: Callable[[Node], bool]) -> list[Stage]:
    """Split a stage into two consecutive ones; return it unsplit if only one node computes."""
    # A getitem node belongs to the node that returns the list.
    nodes = [n for n in stage.nodes if n.target is not operator.getitem]
    working = [n for n in nodes if computes(n)]
    if len(working) < 2:
        return [stage]
    cut = nodes.index(working[len(working) // 2])
    known = set[Node]()
    for n in stage.nodes:
        if not computes(n) and known.issuperset(n.all_input_nodes):
            known.add(n)
    return [_part(stage, set(half), known) for half in (nodes[:cut], nodes[cut:])]


def _part(stage: Stage, inside: set[Node], known: set[Node]) -> Stage:
    """Return a part of a stage; it repeats the nodes `known`, which need no inputs."""
    own = [n for n in stage.nodes if (n.args[0] if n.target is operator.getitem else n) in inside]
    inside = {*own, *known}
    nodes = [n for n in stage.nodes if n in inside]
    later = {n for n in stage.nodes if n not in inside}
    outputs = [
        n for n in own if n in stage.outputs or (n not in known and not later.isdisjoint(n.users))
    ]
    inputs = list(dict.fromkeys(x for n in nodes for x in n.all_input_nodes if x not in inside))
    return Stage(nodes, inputs, outputs, [])


def _needed(graph: torch.fx.Graph, found: list[Stage]) -> list[Stage]:
    """Remove unfused nodes that nothing uses."""
    [output] = (n for n in graph.nodes if n.op == "output")
    wanted = {*output.all_input_nodes, *(n for s in found for n in s.inputs)}
    kept = []
    for stage in reversed(found):
        others = []
        for n in reversed(stage.others):
            if n in wanted or _fence(n):
                wanted.update(n.all_input_nodes)
                others.append(n)
        kept.append(stage._replace(others=others[::-1]))
    return kept[::-1]


def _stage(here: list[Node], fused: list[Node], computes: Callable[[Node], bool]) -> Stage:
    inside, made = set(fused), set[Node]()
    for n in fused:
        if computes(n) or not made.isdisjoint(n.all_input_nodes):
            made.add(n)
    if not made:
        return Stage([], [], [], here)
    outputs = [n for n in fused if n in made and any(u not in inside for u in n.users)]
    # A getitem node runs with the node that returns the list.
    wanted = set(outputs)
    kept = []
    for n in reversed(fused):
        if n in wanted:
            kept.append(n)
            wanted |= {x for x in n.all_input_nodes if x in inside}
    kept.reverse()
    inputs = list(dict.fromkeys(x for n in kept for x in n.all_input_nodes if x not in wanted))
    # Nodes that only move elements of outside tensors run unchanged, where they are needed.
    return Stage(kept, inputs, outputs, [n for n in here if n not in made])

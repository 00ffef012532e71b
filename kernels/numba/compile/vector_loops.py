"""Loops that LLVM vectorises and interleaves.

A network is a long chain of dependent additions: the processor's window holds little more than one
such chain, and half of its pipes are idle. Interleaving the chains of two vectors fills the gaps.
LLVM does so only if loop metadata demands it, which Numba's loops cannot express.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

# More vectors per iteration exceed the registers, with four components.
INTERLEAVED = 2


def step(name: str, index: str, arguments: Sequence[str], body: Sequence[str]) -> list[str]:
    """Return the source of a function that runs one step of a loop, see `over`."""
    return [
        "@jit",
        f"def {name}({', '.join([index, *arguments])}):",
        *("    " + b for b in body),
        "",
    ]


def call(
    name: str, first: str, last: str, arguments: Sequence[str], interleaved: bool = True
) -> str:
    """Return the statement that runs a `step` for first, ..., last - 1 on one or two vectors."""
    loop = "over" if interleaved else "over_one"
    return f"{loop}({first}, {last}, {name}, ({', '.join(arguments)},))"


def _interleaved(module: Any, count: int) -> Any:
    """Return a loop's metadata, whose first operand is the node itself."""
    from llvmlite import ir

    hint = module.add_metadata(["llvm.loop.interleave.count", ir.IntType(32)(count)])
    node = ir.MDValue(module, [hint], name=str(len(module.metadata)))
    node.operands = (node, hint)
    return node


@functools.cache
def over(count: int = INTERLEAVED) -> Any:
    """Return the intrinsic (first, last, step, arguments) that loops over step(i, *arguments)."""
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def loop(typing, first, last, step, arguments):
        called = typing.resolve_function_type(step, (types.int64, *arguments.types), {})

        def generate(c, b, signature, args):
            begin, end, _, values = args
            function = c.get_function(step, called)
            before = b.block
            body, after = b.append_basic_block("over"), b.append_basic_block("over.end")
            b.cbranch(b.icmp_signed("<", begin, end), body, after)
            b.position_at_end(body)
            i = b.phi(begin.type)
            i.add_incoming(begin, before)
            function(b, [i, *(b.extract_value(values, k) for k in range(len(arguments.types)))])
            following = b.add(i, begin.type(1), flags=("nsw",))
            i.add_incoming(following, b.block)
            branch = b.cbranch(b.icmp_signed("<", following, end), body, after)
            branch.set_metadata("llvm.loop", _interleaved(b.module, count))
            b.position_at_end(after)
            return c.get_dummy_value()

        return types.void(types.int64, types.int64, step, arguments), generate

    return loop

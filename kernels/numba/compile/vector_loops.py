"""Loops that LLVM vectorises and interleaves.

A network is a long chain of additions, each of which waits for the one before: the processor's
window holds little more than one such chain, and half of its pipes have nothing to do. Where two
vectors' chains are interleaved, one fills the gaps of the other. LLVM does that only where a loop
says so, which one of Python cannot.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

# More vectors at a time need more registers than there are, for four components.
INTERLEAVED = 2


def step(name: str, index: str, arguments: Sequence[str], body: Sequence[str]) -> list[str]:
    """The text of a function that is one step of a loop, see `over`; `jit` is its decorator."""
    return [
        "@jit",
        f"def {name}({', '.join([index, *arguments])}):",
        *("    " + b for b in body),
        "",
    ]


def call(
    name: str, first: str, last: str, arguments: Sequence[str], interleaved: bool = True
) -> str:
    """The statement that runs a `step` for first, ..., last - 1; two vectors at a time, or one."""
    loop = "over" if interleaved else "over_one"
    return f"{loop}({first}, {last}, {name}, ({', '.join(arguments)},))"


def _interleaved(module: Any, count: int) -> Any:
    """A loop's metadata, whose first operand is itself."""
    from llvmlite import ir

    hint = module.add_metadata(["llvm.loop.interleave.count", ir.IntType(32)(count)])
    node = ir.MDValue(module, [hint], name=str(len(module.metadata)))
    node.operands = (node, hint)
    return node


@functools.cache
def over(count: int = INTERLEAVED) -> Any:
    """Intrinsic (first, last, step, arguments): step(i, *arguments) for first <= i < last."""
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

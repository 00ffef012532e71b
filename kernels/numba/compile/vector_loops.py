"""Loops that LLVM vectorises and interleaves.

A network is a long chain of dependent additions: the processor's window holds little more than one
such chain, and half of its pipes are idle. Interleaving the chains of two vectors fills the gaps.
LLVM does so only if loop metadata demands it, which Numba's loops cannot express.
"""

from __future__ import annotations

import functools
from typing import Any

from mcf.kernels.numba.runtime import processor

# More vectors per iteration exceed the registers, with four components.
INTERLEAVED = 2


def width(size: int = 8) -> int:
    """Return the numbers of `size` bytes per iteration: a row no longer than this is one step."""
    return INTERLEAVED * processor.vector_bytes() // size


def interleaved(module: Any, count: int) -> Any:
    """Return a loop's metadata, whose first operand is the node itself."""
    from llvmlite import ir

    hint = module.add_metadata(["llvm.loop.interleave.count", ir.IntType(32)(count)])
    if count == 0:
        hint = module.add_metadata(["llvm.loop.vectorize.enable", ir.IntType(1)(0)])
    node = ir.MDValue(module, [hint], name=str(len(module.metadata)))
    node.operands = (node, hint)
    return node


@functools.cache
def over(count: int = INTERLEAVED, pad: int = 1) -> Any:
    """Return the intrinsic (first, last, step, arguments) that loops over step(i, *arguments).

    Args:
        count: the number of vectors per iteration; 0 for single elements.
        pad: the number of steps is rounded up to a multiple of this.
    """
    from numba.core import types
    from numba.extending import intrinsic

    @intrinsic
    def loop(typing, first, last, step, arguments):
        called = typing.resolve_function_type(step, (types.int64, *arguments.types), {})

        def generate(c, b, signature, args):
            begin, end, _, values = args
            if pad > 1:
                steps = b.add(b.sub(end, begin), begin.type(pad - 1))
                end = b.add(begin, b.mul(b.sdiv(steps, begin.type(pad)), begin.type(pad)))
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
            branch.set_metadata("llvm.loop", interleaved(b.module, count))
            b.position_at_end(after)
            return c.get_dummy_value()

        return types.void(types.int64, types.int64, step, arguments), generate

    return loop

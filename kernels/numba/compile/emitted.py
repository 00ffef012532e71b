"""Emit a loop as object code outside Numba's engine, with constants next to the code.

Numba's engine addresses constants by 64 bits, since their memory may lie anywhere. Each constant
takes a scalar instruction and a vector register, and LLVM spills constants to the stack inside the
loop when registers run out. A separate object file places code and constants next to each other: an
instruction addresses a constant by its offset and broadcasts it, without a register. The step of
`precision="4bit"` spills 15 vectors for each 64 elements instead of 47.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.runtime import processor


@functools.cache
def machine(name: str, features: str) -> Any:
    """Return the target machine that emits object code for a processor."""
    return objects.target().create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="small"
    )


def emit(text: str) -> bytes:
    """Emit the object code of a module."""
    module = llvm.parse_assembly(text)
    module.verify()
    code: bytes = machine(processor.name(), processor.features()).emit_object(module)
    return code


class Emitted:
    """Subset of a Numba library's interface that `stored` and tests need, for rewritten IR.

    Args:
        text: the module's optimised IR.
        library: the Numba library of the loop before rewriting.
        name: of the loop in the library.
    """

    def __init__(self, text: str, library: Any, name: str) -> None:
        self._text, self._library, self._name = text, library, name
        self.has_dynamic_globals = library.has_dynamic_globals

    def get_llvm_str(self) -> str:
        """Return the module's IR."""
        return self._text

    def get_pointer_to_function(self, name: str) -> int:
        """Return the loop's address, or the original loop's if the rewritten one needs Python."""
        self.native = objects.load(objects.Code(name, emit(self._text)))
        if self.native is not None:
            return self.native.address
        found: int = self._library.get_pointer_to_function(self._name)
        return found

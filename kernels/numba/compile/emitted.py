"""A loop as object code, made without Numba's engine, with its constants at hand.

Numba's engine addresses constants by 64 bits, since it does not know where their memory will lie:
each takes a scalar instruction and one of a vector's registers, and where those run out LLVM puts
constants on the stack inside the loop. An object file of its own has code and constants next to
each other: an instruction names a constant by its distance and broadcasts it, so that it needs no
register. The step of `precision="4bit"` moves 47 vectors to the stack for each 64 elements
otherwise, and 15 so.
"""

from __future__ import annotations

import functools
from typing import Any

import llvmlite.binding as llvm

from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.runtime import processor


@functools.cache
def machine(name: str, features: str) -> Any:
    """What emits object code for a processor."""
    return objects.target().create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="small"
    )


def emit(text: str) -> bytes:
    """The object code of a module."""
    module = llvm.parse_assembly(text)
    module.verify()
    code: bytes = machine(processor.name(), processor.features()).emit_object(module)
    return code


class Emitted:
    """What `stored` and tests need of one of Numba's libraries, for a module's text.

    Args:
        text: of the module, optimised.
        library: of Numba's, whose loop was rewritten.
        name: of the loop there.
    """

    def __init__(self, text: str, library: Any, name: str) -> None:
        self._text, self._library, self._name = text, library, name
        self.has_dynamic_globals = library.has_dynamic_globals

    def get_llvm_str(self) -> str:
        """The module's text."""
        return self._text

    def get_pointer_to_function(self, name: str) -> int:
        """The address of the loop; of the one that was not rewritten where this needs Python."""
        self.native = objects.load(objects.Code(name, emit(self._text)))
        if self.native is not None:
            return self.native.address
        found: int = self._library.get_pointer_to_function(self._name)
        return found

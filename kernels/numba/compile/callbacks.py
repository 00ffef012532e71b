"""Callbacks void(uint64) that Numba compiles to LLVM IR, without machine code.

`numba.cfunc` emits machine code immediately, which would be unused: the code that runs is a
separate object file (`stored`), emitted after its IR has been rewritten. Emitting the unused code
took a quarter of LLVM's time. Delete this when Numba compiles a function to IR alone.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

from numba.core import compiler, registry, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock


class Library(JITCodeLibrary):
    """Numba's library of one callback, or of a function that it calls.

    It emits machine code only when an address is queried.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        # The passes over the whole module repeat all of that after inlining.
        ll_module.data_layout = self._codegen._data_layout

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._verify_declare_only_symbols()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Return the address of a function, which may call Python's interpreter."""
        self._ensure_finalized()
        self._add()
        address: int = super().get_pointer_to_function(name)
        return address

    @functools.cache  # noqa: B019
    def _add(self) -> None:
        self._codegen._add_module(self._final_module)
        self._finalize_specific()


class Callback(NamedTuple):
    """A compiled function.

    Args:
        library: Numba's library.
        name: of the function in the library.
    """

    library: Any
    name: str


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Disable garbage collection during a compilation, whose objects are nearly all live."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@global_compiler_lock
@_uncollected()
def compiled(function: Callable[[int], None]) -> Callback:
    """Compile a function void(uint64) as a callback with IEEE division by zero."""
    target = registry.cpu_target
    flags = compiler.Flags()
    target.options.parse_as_flags(flags, {"error_model": "numpy"})
    flags.no_cpython_wrapper, flags.no_cfunc_wrapper, flags.no_compile = True, False, True
    flags.enable_pyobject = False
    codegen = target.target_context.codegen()
    library = Library(codegen, function.__name__)
    with mock.patch.object(codegen, "_library_class", Library):
        result = compiler.compile_extra(
            target.typing_context, target.target_context, function, args=(types.uint64,),
            return_type=types.void, flags=flags, locals={}, library=library,
        )  # fmt: skip
        library._ensure_finalized()
    return Callback(library, result.fndesc.llvm_cfunc_wrapper_name)

"""Build all Triton kernels of the library from their source text, and launch them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from mcf.kernels.statements import listed
from mcf.kernels.triton.dialect import Dialect, current

THREADS = 128
# The maximum of NVIDIA GPUs. Without a limit the assembler sets one by its own rules and spills to
# keep it (seen at 128 for AdamW on master weights).
MAX_REGISTERS = 255


def options(target: Any, few: bool = False) -> dict[str, Any]:
    """Return the options of every launch and compilation for a `GPUTarget`.

    Fusion is off: by default Triton contracts multiplications and additions into FMA. The
    interpreter, whose target is None, has no options.

    Args:
        target: a `triton.backends.compiler.GPUTarget`, or None.
        few: whether a program computes so few elements that one warp takes them.
    """
    if target is None:
        return {}
    warps = 1 if few else THREADS // target.warp_size
    chosen = {"num_warps": warps, "enable_fp_fusion": False}
    return chosen | {"maxnreg": MAX_REGISTERS} if target.backend == "cuda" else chosen


def kernel_of(
    text: str,
    name: str,
    namespace: Mapping[str, Any],
    constants: Mapping[str, int],
    dialect: Dialect,
    function: str = "kernel",
    aligned: Collection[str] = (),
) -> Any:
    """Return the kernel that a text defines, interpreted or compiled on its first launch.

    Triton would compile a kernel again for integers that are 1 or a multiple of 16, and for
    pointers at multiples of 16 bytes. An integer that becomes the constant 1 changes the types of
    what is computed from it, so that some kernels do not compile; and each shape of a matrix would
    be a compilation. So only `aligned` is specialised.

    Args:
        text: the source.
        name: distinguishes the text in tracebacks.
        namespace: the functions that the text calls.
        constants: integers that are known when the kernel is compiled.
        dialect: the dialect of the functions that the text calls.
        function: the name of the function that the text defines.
        aligned: the pointers whose alignment is worth a compilation of its own.
    """
    interpreted = dialect is Dialect.INTERPRETER
    constant = int if interpreted else tl.constexpr
    scope = {"tl": tl, **namespace, **{k: constant(v) for k, v in constants.items()}}
    filename = listed(text, f"mcf triton {name}")
    exec(compile(text, filename, "exec", dont_inherit=True), scope)
    made = scope[function]
    assert isinstance(made, FunctionType)
    made.__module__ = __name__
    if interpreted:
        return InterpretedFunction(made)
    arguments = made.__code__.co_varnames[: made.__code__.co_argcount]
    # An annotated argument is a constant.
    plain = [a for a in arguments if a not in aligned and a not in made.__annotations__]
    return triton.JITFunction(made, do_not_specialize=plain)


def launch(
    device: torch.device,
    build: Callable[[Dialect], Any],
    programs: int,
    *arguments: Any,
    few: bool = False,
    **constants: int,
) -> Any:
    """Launch a kernel on a device; a CPU means Triton's interpreter.

    Args:
        device: the device of the tensors among the arguments.
        build: returns the kernel for a dialect.
        programs: the number of programs.
        arguments: the kernel's arguments.
        few: see `options`.
        constants: the kernel's arguments that are known when it is compiled.

    Returns:
        What Triton compiled, None in the interpreter.
    """
    given = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    with current(device) as (dialect, target):
        return build(dialect)[(programs,)](*given, **constants, **options(target, few))

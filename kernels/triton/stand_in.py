"""Compile each launch of Triton's interpreter as a launch on a GPU would, without a GPU.

The interpreter cannot see what a launch does first: Triton looks at the arguments, makes constants
of integers that are 1 where a kernel lets it, distinguishes 32 and 64 bits and aligned pointers,
and compiles the kernel for them. Here a driver without a device tells Triton that an sm_90 is
current; Triton does all of that and stops before it would run the kernel.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from mcf.kernels.triton import launching
from mcf.kernels.triton.dialect import Dialect

TARGET = GPUTarget("cuda", 90, 32)
# The number of no device: Triton caches kernels by it.
DEVICE = 9090


class StandIn:
    """Answer what Triton asks a driver before it runs a kernel."""

    def get_current_device(self) -> int:
        return DEVICE

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGET


@contextlib.contextmanager
def _standing_in() -> Iterator[None]:
    """Let Triton ask the stand-in, and afterwards whom it asked before."""
    before = dict(vars(driver))
    driver.set_active(StandIn())
    try:
        yield
    finally:
        vars(driver).update(before)


def _described(argument: Any) -> str:
    if isinstance(argument, Tensor):
        return f"{argument.dtype} {list(argument.shape)} at {argument.data_ptr() % 16} of 16 bytes"
    return str(argument)


def compile_launch(
    build: Callable[[Dialect], Any], arguments: tuple[Any, ...], few: bool, constants: Any
) -> Any:
    """Return what Triton compiles for the launch; see `launching.launch`."""
    kernel = build(Dialect.of(TARGET))
    given = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
    settings = {**constants, **launching.options(TARGET, few)}
    try:
        with _standing_in():
            return kernel.run(*given, grid=(1,), warmup=True, **settings)
    except Exception as error:
        shown = ", ".join(map(_described, arguments))
        file = kernel.fn.__code__.co_filename
        raise RuntimeError(f"{file} does not compile for {shown}; {settings}") from error


@contextlib.contextmanager
def gpu_launches(run: bool = True) -> Iterator[list[Any]]:
    """Compile each launch on a CPU for a GPU as well; yield what was compiled, launch by launch.

    A launch on a GPU runs and is listed too.

    Args:
        run: whether the launches also run in the interpreter, for code that reads their results.
    """
    interpret = launching.launch
    found: list[Any] = []

    @functools.wraps(interpret)
    def launch(
        device: torch.device,
        build: Callable[[Dialect], Any],
        programs: int,
        *arguments: Any,
        few: bool = False,
        **constants: int,
    ) -> Any:
        cpu, launched = device.type == "cpu", None
        if cpu:
            found.append(compile_launch(build, arguments, few, constants))
        if run or not cpu:
            launched = interpret(device, build, programs, *arguments, few=few, **constants)
        if not cpu:
            found.append(launched)
        return launched

    launching.launch = launch
    try:
        yield found
    finally:
        launching.launch = interpret

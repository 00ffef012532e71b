"""Choose the registers that add up narrow components: float64 or float32.

The choice depends on the device or the user. Unlike the executor it affects result bits, so it is
never guessed from a processor's speed: two machines would silently differ in their results.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Literal, get_args

import torch

from mcf.kernels.choices import check_choice
from mcf.kernels.formats import FP32, FP64, Format

RegistersName = Literal["auto", "float64", "float32"]
NAMES = get_args(RegistersName)

_chosen: RegistersName = "auto"


def set_registers(name: RegistersName) -> None:
    """Choose the registers that add up components narrower than float64 from now on.

    Sums, dot products, norms, moments, running sums and products, matrix products and polynomials
    of float32, float16 and bfloat16 components carry more bits on the way than a result has. In
    float64 registers two are enough for most; float32 registers take two to four, for processors on
    which float64 is missing or slow. Additions, products, quotients, roots and comparisons of such
    components are computed in float32 registers under every choice, with the same bits.

    So do elementary functions and softmax; polygamma functions from order 5 on have no form
    in float32 (`mcf.bound` knows them).

    Each choice is a promise of its own: within one all executors, devices and numbers of threads
    give the same bits, and `mcf.bound` has its bounds; between the two bits differ. The choice is
    the process's, for all threads, and is read when an operation runs: in compiled programs and in
    derivatives too, which follow the choice of then and not that of the forward pass. Components of
    float64, exact sums (`reproducible=True`) and optimizers do not depend on it.

    Args:
        name: "float64"; "float32", where functions without a form in float32 registers raise
            `NotImplementedError`; or "auto", the default: float32 on devices without float64 (MPS,
            some XPU), float64 on all others, however slow it may be there.

    Raises:
        ValueError: for another name.
    """
    global _chosen
    check_choice("registers", name, NAMES)
    _chosen = name


def get_registers() -> RegistersName:
    """Return the name given to `set_registers`, "auto" at first."""
    return _chosen


@contextlib.contextmanager
def registers(name: RegistersName) -> Iterator[None]:
    """Choose the format of partial sums inside a `with` block, as `set_registers` does for good."""
    before = _chosen
    set_registers(name)
    try:
        yield
    finally:
        set_registers(before)


@functools.cache
def has_float64(device: torch.device) -> bool:
    """Return whether a device supports float64 tensors."""
    if device.type == "xpu":
        return bool(getattr(torch.xpu.get_device_properties(device), "has_fp64", True))
    return device.type != "mps"


def chosen(device: torch.device) -> Format:
    """Return the format of the registers on a device, for components narrower than float64."""
    if _chosen == "auto":
        return FP64 if has_float64(device) else FP32
    return FP64 if _chosen == "float64" else FP32


def registers_for(fmt: Format, device: torch.device) -> Format:
    """Return the format of the registers for components of a format on a device."""
    return FP64 if fmt == FP64 else chosen(device)


def refuse_float32(what: str, fmt: Format, device: torch.device) -> None:
    """Raise if float32 registers are chosen, for a function that has no float32 form.

    Raises:
        NotImplementedError: naming what it is.
    """
    if registers_for(fmt, device) is FP32:
        why = "chosen by mcf.set_registers" if _chosen == "float32" else f"all that {device} has"
        raise NotImplementedError(
            f"{what} of {fmt.name} components computes in float64 and has no form in float32 "
            f"registers, which are {why}; use mcf.registers('float64') or float64 components"
        )

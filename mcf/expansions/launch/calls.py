"""Prepare functions of small tensors as single native calls, cached by the operands' signature.

The signature is all that decides which code runs and where it reads and writes: formats, terms,
shapes, strides, devices, options, the executor and the choice of registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, fresh
from mcf.kernels import registry
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.program import Program
from mcf.kernels.register_choice import get_registers, registers_for
from mcf.reductions.native_steps import CPU, UnpreparedError

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# Operands are copied, gathered or broadcast up to this number of elements.
SMALL = 1 << 14
# Number of cached calls, above which the cache is cleared.
_MOST = 4096
_calls: dict[tuple[Any, ...], Any] = {}


def looked_up(key: tuple[Any, ...], prepare: Callable[..., Any], *arguments: Any) -> Any:
    """Return the cached call of a signature; prepare it at first, as None if that is impossible."""
    try:
        return _calls[key]
    except KeyError:
        if len(_calls) >= _MOST:
            _calls.clear()
        try:
            found = prepare(*arguments)
        except UnpreparedError:
            found = None
        _calls[key] = found
        return found


def parts_of(*operands: Any) -> list[Components] | None:
    """Return the components of expansions, or None where PyTorch has to see the operation."""
    if watched():
        return None
    groups = []
    for x in operands:
        if type(x) is not MCFTensor:
            return None
        own = x.__dict__
        if type(own["_c0"]) is not Tensor:
            return None
        groups.append(COMPONENTS[own["_terms"]](own))
    return groups


def cached(prepare: Callable[..., Any], groups: Sequence[Components], *options: Any) -> Any:
    """Return the cached result of `prepare(groups, *options)` for components of a signature."""
    key = [prepare, options, registry.get_executor(), get_registers()]
    for group in groups:
        first = group[0]
        stride = None if first.is_contiguous() else first.stride()
        key += (len(group), first.dtype, first.shape, first.device, stride)
    return looked_up(tuple(key), prepare, groups, *options)


class Call:
    """A native call: a program, and models of the tensors that it writes."""

    def __init__(self, program: Program, size: Sequence[int], *kinds: torch.dtype) -> None:
        """Create a call for new results of one size; an expansion has one dtype a component."""
        self._program, self._size, self._dtype = program, torch.Size(size), kinds[-1]
        self._models = [new_like(self._size, kind, CPU) for kind in kinds]

    def results(self, groups: Sequence[Sequence[Tensor]]) -> list[Tensor] | None:
        """Compute new results; return None where only operators can round some element."""
        out = [*map(_empty_like, self._models)]
        return out if self.into(groups, out) else None

    def into(self, groups: Sequence[Sequence[Tensor]], out: Sequence[Tensor]) -> bool:
        """Write to results; return whether they are complete."""
        return self._program([*map(_address, chain(*groups, out))])

    def expansion(self, parts: Sequence[Tensor]) -> MCFTensor:
        """Return the expansion of new components."""
        return fresh(parts, self._size, self._dtype, CPU)

    def __call__(self, groups: Sequence[Sequence[Tensor]]) -> MCFTensor | None:
        """Compute the expansion of all results, or None as `results` does."""
        out = self.results(groups)
        return None if out is None else fresh(out, self._size, self._dtype, CPU)


def new_like(size: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a model from which `empty_like` allocates contiguous tensors.

    It is an expanded scalar where possible. `empty_like` takes half the time of `empty` with size,
    dtype and device.
    """
    one = torch.empty([1] * len(size), dtype=dtype, device=device).expand(size)
    if _empty_like(one).is_contiguous():
        return one
    return torch.empty(size, dtype=dtype, device=device)


def in_float64(x: Tensor) -> bool:
    """Return whether a CPU tensor's components are computed in float64 registers."""
    if x.device.type != "cpu":
        return False
    return x.dtype is torch.float64 or (
        x.dtype is torch.float32 and registers_for(FP32, CPU) is FP64
    )

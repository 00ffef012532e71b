"""Cached QR of small complex matrices; `mcf.tensor.reflection_plans` has the real ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.launches import unrecorded
from mcf.complexes.tensor import MCFComplexTensor, made
from mcf.kernels import registry
from mcf.kernels.register_choice import get_registers
from mcf.linalg.triangular import BLOCK
from mcf.tensor.reflection_plans import Factors, factors, sizes
from mcf.tensor.tensor import COMPONENTS, MCFTensor, fresh

_cpu, _FLOAT64, _MOST = torch.device("cpu"), torch.float64, 1024
_plans: dict[tuple[Any, ...], tuple[Factors | None, Any]] = {}


def orthogonal(a: Any, mode: str) -> tuple[MCFComplexTensor, MCFComplexTensor] | None:
    """Return Q and R of float64 matrices, an empty Q for "r"; None if there is no plan.

    R has a real diagonal that is not negative.
    """
    real, imag = a.real, a.imag
    if type(real) is not MCFTensor or type(imag) is not MCFTensor or not unrecorded((real, imag)):
        return None
    one, other = real.__dict__, imag.__dict__
    first, terms = one["_c0"], one["_terms"]
    if type(first) is not Tensor or other["_terms"] != terms:
        return None
    kind = terms, first.dtype, first.shape, first.stride(), other["_c0"].stride(), first.device
    key = (*kind, mode, registry.get_executor(), get_registers())
    try:
        compute, size = _plans[key]
    except KeyError:
        if len(_plans) >= _MOST:
            _plans.clear()
        compute, size = _plans[key] = _planned(terms, first, other["_c0"], mode)
    if compute is None:
        return None
    q, r = compute((*COMPONENTS[terms](one), *COMPONENTS[terms](other)))
    halves = [
        [fresh(x[:terms], s, _FLOAT64, _cpu), fresh(x[terms:], s, _FLOAT64, _cpu)]
        for x, s in zip((q, r), size, strict=True)
    ]
    return made(*halves[0]), made(*halves[1])


def _planned(terms: int, a: Tensor, b: Tensor, mode: str) -> tuple[Factors | None, Any]:
    if a.dtype is not _FLOAT64 or a.device != _cpu or a.stride() != b.stride():
        return None, None
    if a.ndim < 2 or not 0 < a.numel() or a.shape[-1] > BLOCK:
        return None, None
    return factors(terms, a, mode, 2), sizes(a, mode)[1:]

"""Polygamma functions and Hurwitz's zeta function, each of whole orders."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import polygamma as orders
from mcf.tensor.conversion import promote
from mcf.tensor.ops.constants import in_format
from mcf.tensor.ops.elementary import Unary, computed, differentiable
from mcf.tensor.registry import UnsupportedError, implements
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten

LAST = orders.LAST


@functools.cache
def _of_order(n: int) -> Unary:
    if n < 2:
        return computed(("digamma", "trigamma")[n])
    return computed(f"polygamma_{n}", orders.polygamma(n))


@implements(aten.polygamma.default)
def polygamma(n: int, x: MCFTensor) -> MCFTensor:
    """The n-th derivative of digamma, for n from 0 to 32."""
    if not 0 <= n <= LAST:
        raise UnsupportedError(
            f"torch.polygamma of an mcf.MCFTensor has n = 0 to {LAST}, got {n}; that is also the "
            f"derivative of order {n + 1} of torch.lgamma"
        )
    return _of_order(n)(x)


@functools.cache
def _zeta(s: int) -> Any:
    # zeta(2, x) is trigamma.
    function = _of_order(1) if s == 2 else computed(f"zeta_{s}", orders.zeta(s))
    return differentiable(f"zeta_{s}", function, lambda x: -s * _zeta_of(s + 1)(x))


def _zeta_of(s: Any) -> Any:
    if not 2 <= s <= LAST + 1 or s != round(s):
        raise UnsupportedError(
            "torch.special.zeta(s, x) of an mcf.MCFTensor has whole numbers s from 2 to "
            f"{LAST + 1}, got {float(s)}; its derivative by x is -s zeta(s + 1, x)"
        )
    return _zeta(int(s))


@implements(
    torch.special.zeta,
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
)
def zeta(input: Any, other: Any) -> Any:
    """Hurwitz's zeta function 1/x^s + 1/(x + 1)^s + ... for whole numbers s from 2 to 33."""
    if isinstance(input, Tensor) and input.requires_grad:
        raise UnsupportedError(
            "torch.special.zeta(s, x) has no derivative by s, and s requires grad"
        )
    x = in_format(other, input) if isinstance(input, MCFTensor) else other
    if not isinstance(x, MCFTensor):
        # A plain tensor beside an expansion, whose components the result has.
        x = promote(x) + torch.zeros_like(input)
    if not isinstance(input, Tensor):
        return _zeta_of(input)(x)
    s_of: Any = input.detach()
    # Numbers as floats: what only further components tell from whole ones is in none of them.
    if isinstance(s_of, MCFTensor):
        whole: Any = torch.where(s_of == s_of.round(), s_of, torch.nan)
        s_of = whole.to_plain(torch.float64)
    found = None
    # Of no number any order will do.
    for s in s_of.unique().tolist() or [2]:
        value = _zeta_of(s)(x)
        # Of the shape of both.
        found = torch.where(input == int(s), value, value if found is None else found)
    return found

"""Implement polygamma functions and Hurwitz's zeta function."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mcf.elementary import polygamma as orders
from mcf.expansions.conversion import promote
from mcf.expansions.dispatch.registry import UnsupportedError, implements
from mcf.expansions.ops.elementary.constants import in_format
from mcf.expansions.ops.elementary.elementary import Unary, computed, differentiable
from mcf.expansions.ops.elementary.hurwitz import hurwitz
from mcf.expansions.tensor import MCFTensor

aten = torch.ops.aten

LAST = orders.LAST


@functools.cache
def _of_order(n: int) -> Unary:
    if n < 2:
        return computed(("digamma", "trigamma")[n])
    return computed(f"polygamma_{n}", orders.polygamma(n))


@implements(aten.polygamma.default)
def polygamma(n: int, x: MCFTensor) -> MCFTensor:
    """Return the n-th derivative of digamma, for n from 0 to 32."""
    if not 0 <= n <= LAST:
        raise UnsupportedError(
            f"torch.polygamma of an mcf.MCFTensor: n must be 0 to {LAST}, got {n}; the derivative "
            f"of order {n + 1} of torch.lgamma needs it too"
        )
    return _of_order(n)(x)


@functools.cache
def _zeta(s: int) -> Any:
    # zeta(2, x) is trigamma.
    function = _of_order(1) if s == 2 else computed(f"zeta_{s}", orders.zeta(s))
    return differentiable(f"zeta_{s}", function, lambda x: -s * zeta(s + 1, x))


def _any(s: Any) -> Any:
    """Return the function x -> zeta(s, x) for an expansion s, by `hurwitz`."""
    return differentiable("zeta", lambda x: hurwitz(s, x), lambda x: -s * _any(s + 1)(x))


def _is_made(s: float) -> bool:
    """Return whether zeta(s, x) has a kernel."""
    return 2 <= s <= LAST + 1 and s == round(s)


@implements(
    torch.special.zeta,
    aten.special_zeta.default,
    aten.special_zeta.self_scalar,
    aten.special_zeta.other_scalar,
)
def zeta(input: Any, other: Any) -> Any:
    """Return Hurwitz's zeta function 1/x^s + 1/(x + 1)^s + ... for s > 1.

    Integers s from 2 to 33 have a kernel; others use `hurwitz`.
    """
    if isinstance(input, Tensor) and input.requires_grad and torch.is_grad_enabled():
        raise UnsupportedError(
            "torch.special.zeta(s, x) has no derivative by s, and s requires grad"
        )
    x = in_format(other, input) if isinstance(input, MCFTensor) else other
    if not isinstance(x, MCFTensor):
        # x is a plain tensor and s an expansion, whose format the result has.
        x = promote(x) + torch.zeros_like(input)
    if not isinstance(input, Tensor):
        if _is_made(input):
            return _zeta(int(input))(x)
        return _any(in_format(input, x) + torch.zeros_like(x.detach()))(x)
    s_of: Any = input.detach()
    # Exclude values that differ from an integer only in trailing components.
    if isinstance(s_of, MCFTensor):
        whole: Any = torch.where(s_of == s_of.round(), s_of, torch.nan)
        s_of = whole.to_plain(torch.float64)
    found, rest = None, False
    # An empty s needs some order; any will do.
    for s in s_of.unique().tolist() or [2]:
        if not _is_made(s):
            rest = True
            continue
        value = _zeta(int(s))(x)
        # `torch.where` broadcasts to the shape of both.
        found = torch.where(input == int(s), value, value if found is None else found)
    if not rest:
        return found
    made = (s_of >= 2) & (s_of <= LAST + 1) & (s_of == s_of.round())
    wide: Any = x + torch.zeros_like(promote(input.detach()))
    s_all = torch.where(made, 2.5, promote(input.detach())) + torch.zeros_like(wide.detach())
    value = _any(s_all)(torch.where(made, torch.ones_like(wide), wide))
    return value if found is None else torch.where(made, found, value)

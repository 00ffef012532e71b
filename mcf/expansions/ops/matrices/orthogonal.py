"""Evaluate orthogonal polynomials by their recurrences, in the arithmetic of the argument.

From p_0 = 1 and p_{-1} = 0, p_{k+1} = (a_k x + b_k) p_k - c_k p_{k-1} (Abramowitz and Stegun 1964,
table 22.7). The recurrences run upwards, which is stable where the polynomials oscillate and where
they grow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import implements
from mcf.expansions.ops.elementary.constants import in_format
from mcf.expansions.tensor import MCFTensor

# Maps k to the integers a_k d_k, b_k d_k, c_k d_k and d_k.
Recurrence = Callable[[int], tuple[int, int, int, int]]


def _chebyshev(first: int, constant: int) -> Recurrence:
    return lambda k: (2, 0, 1, 1) if k else (first, constant, 0, 1)


_RECURRENCES: dict[str, Recurrence] = {
    "chebyshev_polynomial_t": _chebyshev(1, 0),
    "chebyshev_polynomial_u": _chebyshev(2, 0),
    "chebyshev_polynomial_v": _chebyshev(2, -1),
    "chebyshev_polynomial_w": _chebyshev(2, 1),
    "hermite_polynomial_h": lambda k: (2, 0, 2 * k, 1),
    "hermite_polynomial_he": lambda k: (1, 0, k, 1),
    "laguerre_polynomial_l": lambda k: (-1, 2 * k + 1, k, k + 1),
    "legendre_polynomial_p": lambda k: (2 * k + 1, 0, k, k + 1),
}


def _orders(n: Any) -> Any:
    """Return the orders n rounded towards zero as in PyTorch: an int, or an int64 tensor."""
    if not isinstance(n, Tensor):
        return int(n)
    whole = n.detach().trunc().to(torch.int64)
    return int(whole) if whole.dim() == 0 else whole


def _next(recurrence: Recurrence, k: int, x: Any, now: Any, before: Any) -> Any:
    a, b, c, d = recurrence(k)
    rising = now * (a * x + b) if b else now * x * a
    total = rising - before * c if c else rising
    return total / d if d > 1 else total


def _evaluated(recurrence: Recurrence, x: Any, n: Any) -> Any:
    order = _orders(n)
    if isinstance(order, int):
        if order < 0:  # as in PyTorch
            return torch.zeros_like(x)
        before, now = torch.zeros_like(x), torch.ones_like(x)
        for k in range(order):
            before, now = now, _next(recurrence, k, x, now, before)
        return now
    shape = torch.broadcast_shapes(x.shape, order.shape)  # type: ignore[no-untyped-call]
    x, order = x.expand(shape), order.expand(shape)
    before, now, result = torch.zeros_like(x), torch.ones_like(x), torch.zeros_like(x)
    for k in range(int(order.max()) + 1 if order.numel() else 0):
        result = torch.where(order == k, now, result)
        before, now = now, _next(recurrence, k, x, now, before)
    return result


def _register(name: str, recurrence: Recurrence, shifted: bool) -> None:
    function = getattr(torch.special, f"shifted_{name}" if shifted else name)

    def polynomial(input: Any, n: Any) -> Any:
        x = input if isinstance(input, MCFTensor) else in_format(input, n)
        return _evaluated(recurrence, 2 * x - 1 if shifted else x, n)

    polynomial.__doc__ = f"Return {function.__name__} of order n at the first argument."
    implements(function)(polynomial)


for _name, _recurrence in _RECURRENCES.items():
    _register(_name, _recurrence, shifted=False)
    if _name.startswith("chebyshev"):
        _register(_name, _recurrence, shifted=True)

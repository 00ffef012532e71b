"""Implement `torch._foreach_*` functions by a loop over the tensors.

`torch._foreach_add(xs, ys)` is `[x + y for x, y in zip(xs, ys)]`, bit for bit, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import implements

_PREFIX = "_foreach_"


def _norm(x: Any, ord: Any = 2, dtype: torch.dtype | None = None) -> Any:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


# Functions whose name for one tensor differs, or that also accept numbers in lists.
_OTHERS: dict[str, Callable[..., Any]] = {
    "norm": _norm,
    "pow": torch.pow,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "maximum_": Tensor.clamp_min_,
    "minimum_": Tensor.clamp_max_,
}


def _of(value: Any, k: int) -> Any:
    """Return the k-th of several values, or the value for all tensors."""
    return value[k] if isinstance(value, (list, tuple)) else value


def _register(name: str) -> None:
    function = _OTHERS.get(name) or getattr(Tensor, name, None)
    if function is None:
        return

    def of_each(*args: Any, **kwargs: Any) -> Any:
        # List functions use other keywords for the second operand and for their scalars.
        values = [*args, *(v for k, v in kwargs.items() if k not in _NAMED)]
        named = {k: v for k, v in kwargs.items() if k in _NAMED}
        if name.startswith("addc") and len(values) == 4:
            factor = values.pop()
            named["value"] = factor.tolist() if isinstance(factor, Tensor) else factor
        lists = [v for v in (*values, *named.values()) if isinstance(v, (list, tuple))]
        results = [
            function(*(_of(v, k) for v in values), **{n: _of(v, k) for n, v in named.items()})
            for k in range(_count(lists))
        ]
        return lists[0] if name.endswith("_") else tuple(results)

    implements(getattr(torch, _PREFIX + name))(of_each)


# Keywords that the functions of one tensor share.
_NAMED = frozenset({"alpha", "non_blocking", "memory_format", "dtype", "ord", "value"})


def _count(lists: Sequence[Sequence[Any]]) -> int:
    count = len(lists[0])
    for each in lists[1:]:
        # PyTorch's message.
        if len(each) != count and all(isinstance(x, Tensor) for x in each):
            raise RuntimeError(
                f"Tensor lists must have the same number of tensors, got {count} and {len(each)}"
            )
        if len(each) != count:
            raise RuntimeError("Tensor list must have same number of elements as scalar list.")
    return count


for _name in dir(torch):
    if _name.startswith(_PREFIX):
        _register(_name.removeprefix(_PREFIX))

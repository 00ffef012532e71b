"""Convert tensors of one element to Python numbers: float, int, bool, floor, round."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import torch

from mcf.convert import export
from mcf.convert.rounding import convert
from mcf.expansions.dispatch.registry import UnsupportedError


def one(x: Any, what: str) -> Fraction | float:
    """Return the exact value of a tensor of one element; infinities, NaN and -0 as floats."""
    if x.numel() != 1:
        raise RuntimeError(f"{what} needs a tensor of one element, got {x.numel()}")
    return export.fractions([c.reshape(-1) for c in x.components])[0]


def _inside_torch_tensor() -> bool:
    """Return whether torch reads the elements of a list, with the Python dispatch key excluded."""
    excluded: bool = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    return excluded


@torch._disable_dynamo  # type: ignore[attr-defined]
def _item_untraced(x: Any) -> float:
    """Return `Numbers.item` outside a graph of torch.compile, since it depends on values."""
    return Numbers.item(x)


class Numbers:
    """Conversions of a tensor of one element to a Python number.

    `float` and `item` round once to nearest, as for Fraction and Decimal; the others are exact.
    """

    def item(self: Any) -> float:
        """Return the Python float nearest to the value; `to_fractions` is exact."""
        if torch.compiler.is_dynamo_compiling():
            return _item_untraced(self)
        parts = self.components
        if parts[0].numel() != 1:
            one(self, "item()")
        first, *rest = (c.item() for c in parts)
        if not any(rest):
            return float(first)
        try:
            return math.fsum((first, *rest))  # The exact sum, rounded once.
        except OverflowError:
            return float(convert(parts, torch.float64, 1)[0].item())

    def __float__(self: Any) -> float:
        if _inside_torch_tensor() and any(bool(c) for c in self.components[1:]):
            raise UnsupportedError(
                "torch.tensor of a list would round the expansion tensors in it; use mcf.tensor or "
                "torch.stack"
            )
        return Numbers.item(self)

    def __complex__(self: Any) -> complex:
        return complex(Numbers.item(self))

    def __bool__(self: Any) -> bool:
        parts = self.components
        if parts[0].numel() != 1:
            one(self, "bool()")
        # A NaN may follow a zero in components that are not normalised.
        return any(c.item() != 0 for c in parts)

    def __int__(self: Any) -> int:
        return math.trunc(one(self, "int()"))

    def __trunc__(self: Any) -> int:
        return math.trunc(one(self, "trunc()"))

    def __floor__(self: Any) -> int:
        return math.floor(one(self, "floor()"))

    def __ceil__(self: Any) -> int:
        return math.ceil(one(self, "ceil()"))

    def __round__(self: Any, digits: int | None = None) -> Any:
        """Return the nearest integer, ties to even; with `digits` a tensor, as `torch.round`."""
        if digits is None:
            return round(one(self, "round()"))
        return torch.round(self, decimals=digits)

    def as_integer_ratio(self: Any) -> tuple[int, int]:
        """Return two integers whose quotient is the exact value, as `float.as_integer_ratio`."""
        return one(self, "as_integer_ratio()").as_integer_ratio()

    def __divmod__(self: Any, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self: Any, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __contains__(self: Any, element: Any) -> bool:
        """Return whether some element equals `element`."""
        found = self == element
        if not isinstance(found, torch.Tensor):
            # `==` has returned a bool for an unsupported type; torch raises this error too.
            raise RuntimeError(
                "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
                f"{type(element)}."
            )
        return bool(found.any())

    def element_size(self: Any) -> int:
        """Return the bytes of one element, the sum over its components."""
        return sum(c.element_size() for c in self.components)

    @property
    def itemsize(self) -> int:
        """Bytes of one element, the sum over its components."""
        return self.element_size()

    @property
    def nbytes(self: Any) -> int:
        """Bytes of all elements."""
        count: int = self.numel()
        return count * Numbers.element_size(self)

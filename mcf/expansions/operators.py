"""Define Python's operators, with operands that torch refuses: Fraction, Decimal, mpmath, arrays.

Arithmetic rounds such a number, or an int of more than 64 bits, to the nearest expansion.
Comparisons use its exact value. Methods that torch looks up on the type first are here too.
"""

from __future__ import annotations

import decimal
import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.convert.parse import exact
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.registry import VIEWS
from mcf.expansions.tensor import MCFTensor

# Pairs of functions for complex operands: a test of the operand, and the implementation of the
# operators by name.
COMPLEX: list[tuple[Callable[[Any], bool], Callable[[str, Any, Any], Any]]] = []
# Types of operands that torch takes unchanged.
_PLAIN = frozenset({MCFTensor, float})
# A Python int beyond this does not fit torch's scalars.
_LARGEST = 2**63

ARITHMETIC = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "truediv": torch.true_divide,
    "floordiv": torch.floor_divide,
    "mod": torch.remainder,
    "pow": torch.pow,
    "matmul": torch.matmul,
}


def _special(value: Any) -> bool:
    if isinstance(value, int):
        return not -_LARGEST <= value < _LARGEST
    special = (Fraction, decimal.Decimal, np.longdouble)
    return isinstance(value, special) or hasattr(value, "_mpf_")


def operand(self: Any, other: Any) -> Any:
    """Convert the other operand to a tensor if torch does not take it."""
    if type(other) is float:
        return other
    if isinstance(other, torch.SymInt):
        # torch.compile then makes one graph per number: components of a product depend on it.
        return int(other)
    if isinstance(other, np.ndarray) and other.dtype.kind in "biuf" and other.dtype.itemsize <= 8:
        # A plain tensor takes part in the promotion of dtypes.
        native = np.array(other, dtype=other.dtype.newbyteorder("="))
        return torch.from_numpy(native).to(self.device)
    if isinstance(other, np.ndarray) or _special(other):
        return tensor(other, self.terms, self.dtype, self.device)
    return other


def _named(method: Any, name: str) -> Any:
    """Give a method the operator's name and its own code object.

    torch.compile caches compiled functions by code object, and ignores which torch method a closure
    holds: sums would run as products if it compiled a product first.
    """
    method.__name__ = name
    method.__code__ = method.__code__.replace(co_name=name)
    return method


# Methods that torch defines in Python -> the functions they call, which skip a check of types.
_BARE: dict[str, Any] = {
    "__pow__": torch.Tensor.pow,
    "__rpow__": lambda exponent, base: torch.pow(base, exponent),
    "__rsub__": torch.rsub,
}


def _arithmetic(name: str, function: Any) -> Any:
    own = getattr(torch.Tensor, name)
    bare = _BARE.get(name, own)

    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        if kind in _PLAIN or (kind is int and -_LARGEST <= other < _LARGEST):
            found = bare(self, other)
            if found is not NotImplemented:
                return found
        else:
            for is_one, operator in () if kind is int else COMPLEX:
                if is_one(other):
                    return operator(name, self, other)
            if not isinstance(other, torch.Tensor):
                other = operand(self, other)
        result = own(self, other)
        if result is NotImplemented and isinstance(other, torch.Tensor):
            # The function raises torch's error, about devices or complex numbers; Python's would be
            # a vague TypeError.
            return function(other, self) if name.startswith("__r") else function(self, other)
        return result

    return _named(method, name)


def _comparison(name: str) -> Any:
    own = getattr(torch.Tensor, name)

    def method(self: Any, other: Any) -> Any:
        if type(other) not in _PLAIN and type(other) is not int:
            for is_one, operator in COMPLEX:
                if is_one(other):
                    return operator(name, self, other)
        if not _special(other):
            return own(self, operand(self, other))
        value = exact(other)
        near: Any = tensor(other, 4, torch.float64, self.device)
        held = near.to_fractions()
        if value == held or value != value:
            return own(self, near)
        # No expansion equals the value, or lies between it and the nearest expansion.
        if name in ("__eq__", "__ne__"):
            return own(self, float("nan"))
        less = name in ("__lt__", "__le__")
        closed = less == (value > held)
        if less:
            return self <= near if closed else self < near
        return self >= near if closed else self > near

    return _named(method, name)


def _quotient(number_over: Any) -> Any:
    """Return the method of `other / x`: number times reciprocal, or quotient of tensors.

    Python calls it first also for a plain tensor on the left, since `MCFTensor` is a subclass.
    """

    def __rtruediv__(self: Any, other: Any) -> Any:
        if isinstance(other, np.ndarray):
            other = operand(self, other)
        if isinstance(other, torch.Tensor) and not other.is_complex():
            return torch.true_divide(other, self)
        return number_over(self, other)

    return __rtruediv__


for _name, _function in ARITHMETIC.items():
    for _method in (f"__{_prefix}{_name}__" for _prefix in ("", "r", "i")):
        if hasattr(torch.Tensor, _method):
            setattr(MCFTensor, _method, _arithmetic(_method, _function))
_number_over: Any = MCFTensor.__rtruediv__
MCFTensor.__rtruediv__ = _quotient(_number_over)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(MCFTensor, f"__{_name}__", _comparison(f"__{_name}__"))


_asked = torch._C._is_torch_function_enabled
_function_modes = torch._C._len_torch_function_stack
_TYPES = (MCFTensor,)


def _answered(own: Any) -> Any:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or type(self) is not MCFTensor:
            return own(self, *args, **kwargs)
        if not _asked() or _function_modes():
            return own(self, *args, **kwargs)
        return MCFTensor.__torch_function__(own, _TYPES, (self, *args), kwargs)  # type: ignore[no-untyped-call]

    return method


# Not `__getitem__`: defined in Python it makes the type a sequence, and torch.tensor([x]) and NumPy
# would ask for the length of its elements.
for _name in ("norm", "split"):
    setattr(MCFTensor, _name, _answered(getattr(Tensor, _name)))
for _name in ("H", "T", "mH", "mT"):
    _own = getattr(Tensor, _name)
    setattr(MCFTensor, _name, property(_answered(_own.__get__), doc=_own.__doc__))


def _iterated(self: Any) -> Any:
    """Iterate over views along the first dimension."""
    if torch.compiler.is_compiling() or type(self) is not MCFTensor:
        return _torchs(self)
    if not _asked() or _function_modes() or not self.__dict__["_c0"].ndim or _tracing() is not None:
        return _torchs(self)
    with _unasked():
        return iter(VIEWS[Tensor.unbind](self))


_tracing, _unasked = torch._C._get_tracing_state, torch._C.DisableTorchFunctionSubclass
_torchs: Any = Tensor.__iter__
MCFTensor.__iter__ = functools.wraps(_torchs)(_iterated)  # type: ignore[method-assign]

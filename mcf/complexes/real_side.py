"""Functions of real expansion tensors with complex results or complex operands."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.creation import complex, polar
from mcf.complexes.questions import as_complex
from mcf.complexes.tensor import FUNCTIONS, MCFComplexTensor, parts, unsupported
from mcf.expansions import operators
from mcf.expansions.dispatch import registry, torch_functions

registry.implements(torch.complex)(lambda real, imag: complex(real, imag))
registry.implements(torch.polar)(polar)
registry.implements(torch.view_as_complex)(as_complex)


def beside(name: str, x: Any, other: Any) -> Any:
    """Apply an operator to a real expansion tensor and complex numbers."""
    if name.startswith("__i"):
        raise TypeError(
            f"{name}: the result is complex, which a real expansion tensor cannot hold; write "
            "x = x + z"
        )
    if not hasattr(MCFComplexTensor, name):
        raise unsupported(operators.ARITHMETIC[name.strip("_").removeprefix("r")].__name__)
    zero = torch.zeros_like(x)
    return getattr(MCFComplexTensor(x, zero), name)(other)  # type: ignore[arg-type]


def is_complex(other: Any) -> bool:
    """Return whether an operand has an imaginary part."""
    if isinstance(other, Tensor):
        return other.is_complex()
    found = parts(other)
    return found is not None and found[1] is not None


operators.COMPLEX.append((is_complex, beside))


def function_beside(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a function of PyTorch to a mix of real expansion tensors and complex numbers.

    Return NotImplemented if it writes to an argument, or if no operand is complex.
    """
    name = getattr(func, "__name__", "")
    function = None if name.endswith("_") and name[:2] != "__" else FUNCTIONS.get(name)
    flat = [v for a in args for v in (a if isinstance(a, (list, tuple)) else (a,))]
    if function is None or kwargs.get("out") is not None or not any(map(is_complex, flat)):
        return NotImplemented
    return function(*args, **kwargs)


torch_functions.COMPLEX.append(function_beside)

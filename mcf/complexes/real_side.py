"""Functions of real expansion tensors whose results are complex, and operands that are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mcf.complexes.creation import complex, polar
from mcf.complexes.questions import as_complex
from mcf.complexes.tensor import MCFComplexTensor, parts
from mcf.tensor import operators, registry

registry.implements(torch.complex)(lambda real, imag: complex(real, imag))
registry.implements(torch.polar)(polar)
registry.implements(torch.view_as_complex)(as_complex)


def beside(name: str, x: Any, other: Any) -> Any:
    """An operator of a real expansion tensor and complex numbers."""
    if name.startswith("__i"):
        raise TypeError(
            f"{name}: the result is complex, which a real expansion tensor cannot hold; write "
            "x = x + z"
        )
    zero = torch.zeros_like(x)
    return getattr(MCFComplexTensor(x, zero), name)(other)  # type: ignore[arg-type]


def is_complex(other: Any) -> bool:
    """Whether an operand has an imaginary part."""
    if isinstance(other, Tensor):
        return other.is_complex()
    found = parts(other)
    return found is not None and found[1] is not None


operators.COMPLEX.append((is_complex, beside))

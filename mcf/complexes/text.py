"""Print complex expansion tensors, and convert them to other types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.utils.data._utils.collate import default_collate_fn_map

from mcf.complexes.tensor import MCFComplexTensor, implements, method
from mcf.convert import spec as specification
from mcf.convert.printing import brackets, element, in_force, usual
from mcf.expansions.interchange import flat_state
from mcf.expansions.interchange.text import rows
from mcf.kernels.formats import format_of


def text(z: MCFComplexTensor, exact: bool = True) -> str:
    """Return `MCFComplexTensor([0.1+2.j], terms=2, dtype=torch.float32)`, with parts as real ones.

    Args:
        z: the tensor.
        exact: with as many digits as `mcf.complex_tensor` needs to read the brackets back.
    """
    head = "MCFComplexTensor("
    tail = [f"terms={z.terms}", f"dtype={z.dtype}"]
    if z.device.type != "cpu":
        tail.append(f"device='{z.device}'")
    if z.requires_grad:
        tail.append("requires_grad=True")
    first = z.real.components[0]
    if first.device.type == "meta" or is_fake(first):
        return f"{head}..., size={tuple(z.shape)}, {', '.join(tail)})"
    if z.real.numel() == 0:
        if z.ndim != 1:
            tail.insert(0, f"size={tuple(z.shape)}")
        return f"{head}[], {', '.join(tail)})"
    fmt, count = format_of(z.dtype), z.terms
    x, y = rows(z.real), rows(z.imag)
    one = usual([*x, *y], fmt, exact)

    def show(parts: Sequence[float]) -> str:
        real, imag = one(parts[:count]), one(parts[count:])
        return f"{real}{'' if imag.startswith('-') else '+'}{imag}j"

    both = [(*a, *b) for a, b in zip(x, y, strict=True)]
    body = brackets(tuple(z.shape), both, show, fmt, exact, len(head))
    line = f"{head}{body}, {', '.join(tail)})"
    if len(line.rsplit("\n", 1)[-1]) <= in_force().linewidth:
        return line
    return f"{head}{body},\n{' ' * len(head)}{', '.join(tail)})"


def formatted(z: MCFComplexTensor, spec: str) -> str:
    """Format each part like a float of its exact value, the second with its sign and a j.

    A single number is formatted alone; several in the brackets of `str`. Without a specification
    the result for several is that of `str`.

    Raises:
        ValueError: for a specification that floats do not have, or one with a width, a sign or a
            fill, which would apply to one part only.
    """
    if not spec and z.ndim:
        return text(z, exact=False)
    if spec and not _SPEC.fullmatch(spec):
        raise ValueError(
            f"invalid format specification {spec!r} for a complex number; use a precision "
            "and e, E, f, F, g or G, such as '.30f'"
        )
    if z.real.numel() == 0:
        return "[]"
    fmt, count = format_of(z.dtype), z.terms
    one = element(fmt, False, in_force())

    def show(parts: Sequence[float]) -> str:
        real = specification.formatted(tuple(parts[:count]), spec, one)
        return f"{real}{specification.formatted(tuple(parts[count:]), '+' + spec, one)}j"

    both = [(*a, *b) for a, b in zip(rows(z.real), rows(z.imag), strict=True)]
    return brackets(tuple(z.shape), both, show, fmt, False)


_SPEC = re.compile(r"#?[_,]?(\.\d+)?[eEfFgG]?")


def _both(x: Any, y: Any, make: Any) -> Any:
    """Combine nested lists of parts to nested lists of numbers."""
    if isinstance(x, list):
        return [_both(a, b, make) for a, b in zip(x, y, strict=True)]
    return make(x, y)


@implements("tolist")
def tolist(z: MCFComplexTensor) -> Any:
    """Return nested lists of Python's complex numbers, each part rounded to nearest."""
    return _both(z.real.tolist(), z.imag.tolist(), complex)


@implements("item")
def item(z: MCFComplexTensor) -> complex:
    """Return one Python complex number, each part rounded to nearest."""
    return complex(z.real.item(), z.imag.item())


@implements("to_fractions")
def to_fractions(z: MCFComplexTensor) -> Any:
    """Return nested lists of pairs of Fractions, exact; infinities, NaN and -0 are floats."""
    return _both(z.real.to_fractions(), z.imag.to_fractions(), lambda x, y: (x, y))


@implements("to_mpmath")
def to_mpmath(z: MCFComplexTensor) -> Any:
    """Return nested lists of mpmath's complex numbers, exact whatever `mpmath.mp.prec` is."""
    import mpmath

    make = lambda x, y: mpmath.mp.make_mpc((x._mpf_, y._mpf_))  # noqa: E731
    return _both(z.real.to_mpmath(), z.imag.to_mpmath(), make)


_PLAIN = {torch.float32: torch.complex64, torch.float64: torch.complex128}


@implements("to_plain")
def to_plain(z: MCFComplexTensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a plain complex64 or complex128 tensor (by default that of the components' dtype).

    Each part is rounded once to nearest even; the gradient passes through.

    Raises:
        TypeError: for another dtype; without one if the components' dtype has no complex one.
    """
    dtype = _PLAIN.get(z.dtype) if dtype is None else dtype
    if dtype is None or dtype not in _PLAIN.values():
        raise TypeError(
            f"dtype must be torch.complex64 or torch.complex128, got {dtype} for components of "
            f"{z.dtype}"
        )
    real = dtype.to_real()
    return torch.complex(z.real.to_plain(real), z.imag.to_plain(real))


@implements("numpy")
def numpy(z: MCFComplexTensor, dtype: npt.DTypeLike | None = None, *, force: bool = False) -> Any:
    """Return a new NumPy array, complex64 or complex128; None means complex128, if exact.

    Raises:
        ValueError: without `dtype`, if complex128 does not hold every value.
        TypeError: for another dtype.
    """
    kind = np.dtype(np.complex128 if dtype is None else dtype)
    if kind not in (np.dtype(np.complex64), np.dtype(np.complex128)):
        raise TypeError(f"dtype must be complex64 or complex128, got {kind}")
    inner = np.dtype(np.float32 if kind == np.dtype(np.complex64) else np.float64)
    out = np.empty(tuple(z.shape), kind)
    given = None if dtype is None else inner
    out.real, out.imag = (p.numpy(given, force=force) for p in (z.real, z.imag))
    return out


def _array(z: MCFComplexTensor, dtype: Any = None, copy: bool | None = None) -> Any:
    if copy is False:
        raise ValueError("an array of an expansion tensor is always a copy")
    return numpy(z, dtype)


def _bool(z: MCFComplexTensor) -> bool:
    return bool(z.real) or bool(z.imag)


method("__repr__", text)
method("__str__", lambda z: text(z, exact=False))
method("__format__", formatted)
method("__complex__", item)
method("__array__", _array)
method("__bool__", _bool)


def _collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    return torch.stack(batch, 0)


flat_state.PAIRS["complex"] = MCFComplexTensor
# PyTorch's loaders: torch.load(weights_only=True), DataLoader.
torch.serialization.add_safe_globals([MCFComplexTensor])
default_collate_fn_map[MCFComplexTensor] = _collate

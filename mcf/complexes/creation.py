"""Create complex expansion tensors, print them, and convert them to other types.

Functions of real expansion tensors with complex results or operands are here too.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from mcf.complexes.each_part import as_complex
from mcf.complexes.tensor import (
    FUNCTIONS,
    MCFComplexTensor,
    formatted,
    implements,
    method,
    pair,
    parts,
    unsupported,
    untraced,
)
from mcf.convert import spec as specification
from mcf.convert.parse import flatten, printed
from mcf.convert.printing import brackets, element, in_force, usual
from mcf.expansions import operators
from mcf.expansions.creation import like_data, tensor
from mcf.expansions.dispatch import registry, torch_functions
from mcf.expansions.dispatch.recorded import functorch
from mcf.expansions.interchange import flat_state
from mcf.expansions.interchange.text import framed, rows
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.formats import format_of

# The sign that begins an imaginary part: not the first character, and not an exponent's sign.
_SECOND = re.compile(r"(?<=[^eEpP])[+-]")


@untraced
def complex(
    real: Any, imag: Any, terms: int | None = None, dtype: torch.dtype | None = None
) -> MCFComplexTensor:
    """Return real + i imag, as `torch.complex` does; a copy with a derivative.

    Args:
        real: an `MCFTensor`, or any data that `mcf.tensor` accepts.
        imag: likewise; both broadcast.
        terms: components of each part; None for the most that an argument has, 2 for numbers.
        dtype: of the components; None for the promoted dtype of the arguments, or PyTorch's default
            dtype for numbers.

    Raises:
        TypeError: for other data or dtypes.
        ValueError: for another `terms`, shapes that do not broadcast.
    """
    if type(real) is MCFTensor and type(imag) is MCFTensor and terms is None and dtype is None:
        a, b = real.__dict__["_c0"], imag.__dict__["_c0"]
        alike = a.dtype is b.dtype and a.shape == b.shape and a.device == b.device
        if alike and real._terms == imag._terms and functorch() is None:
            return pair(real.clone(), imag.clone())
    for name, v in (("real", real), ("imag", imag)):
        if isinstance(v, MCFComplexTensor) or (isinstance(v, Tensor) and v.is_complex()):
            raise TypeError(f"{name} must be real, got complex numbers")
    if functorch() is not None and terms is None and dtype is None:
        return pair(*formatted(real, imag))
    floats = [v for v in (real, imag) if isinstance(v, Tensor) and v.is_floating_point()]
    expansions = [v for v in floats if isinstance(v, MCFTensor)]
    count = terms
    if count is None:
        count = max((v.terms for v in expansions), default=1 if floats else 2)
    arrays = [v for v in (real, imag) if isinstance(v, (Tensor, np.ndarray))]
    # Python numbers take the dtype and components of arrays, as in arithmetic.
    _, kind = like_data(arrays or [real, imag], count, dtype)
    x, y = (_part(v, count, kind) for v in (real, imag))
    shape = torch.broadcast_shapes(x.shape, y.shape)  # type: ignore[no-untyped-call]
    return MCFComplexTensor(*(v.expand(shape).clone() for v in (x, y)))


def _part(value: Any, terms: int, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        held = value if isinstance(value, MCFTensor) else formatted(value, tensor(0, 1, dtype))[0]
        return held.to(dtype, terms=terms)
    return tensor(value, terms, dtype)


@untraced
def complex_tensor(
    data: Any,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> MCFComplexTensor:
    """Return a new tensor of the nearest expansions to both parts of each number; see `mcf.tensor`.

    Args:
        data: complex numbers of Python, mpmath and NumPy, strings ("0.1-2.5e-3j", each part any
            real string of `mcf.tensor`; also what printing shows), everything that `mcf.tensor`
            takes, complex64 and complex128 tensors (exactly, where the components hold them) and
            arrays, complex expansion tensors; nested lists of numbers and strings.
        terms: components of each part, 1 to 4; None for those of an expansion, else 2.
        dtype: of the components: bfloat16, float16, float32 or float64; complex64 and complex128
            stand for the last two. None for that of an array or tensor, else PyTorch's default one.
        device: where to put it.
        requires_grad: whether autograd records what is done with both parts.

    Raises:
        TypeError: for data of another type, another dtype.
        ValueError: for another `terms`, a string that is no complex number, ragged lists.
    """
    if isinstance(dtype, torch.dtype) and dtype.is_complex:
        dtype = dtype.to_real()
    known = data.real if isinstance(data, MCFComplexTensor) else data
    terms, dtype = like_data(known, terms, dtype)
    if isinstance(data, str) and data.lstrip().startswith("["):
        data = printed(data)
    if isinstance(data, np.ndarray) and data.dtype.kind not in "biufc":
        data = data.tolist()
    x: Any
    y: Any
    if isinstance(data, (Tensor, MCFComplexTensor, np.ndarray)):
        x = data.real
        if isinstance(data, Tensor) and not data.is_complex():
            y = torch.zeros_like(data)
        else:
            y = data.imag
        if isinstance(data, Tensor):
            x, y = (v.detach().resolve_conj().resolve_neg() for v in (x, y))
    else:
        shape, leaves = flatten(data)
        both = [_split(v) for v in leaves]
        x, y = (_nested([b[k] for b in both], shape, terms, dtype) for k in (0, 1))
    found = MCFComplexTensor(*(tensor(v, terms, dtype, device) for v in (x, y)))
    found.real.requires_grad_(requires_grad)
    found.imag.requires_grad_(requires_grad)
    return found


def _nested(values: list[Any], shape: tuple[int, ...], terms: int, dtype: torch.dtype) -> Any:
    if not values:
        return torch.zeros(shape, dtype=dtype, device="cpu")
    return tensor(values, terms, dtype).reshape(shape)


def _split(value: Any) -> tuple[Any, Any]:
    """Return both parts of one number."""
    if isinstance(value, str):
        return _text(value)
    found = None if isinstance(value, (Tensor, np.ndarray)) else parts(value)
    if found is None:
        # Parsing raises an error for data that is not a real number either.
        return value, 0.0
    return found[0], 0.0 if found[1] is None else found[1]


def _text(text: str) -> tuple[str, str]:
    """Return both parts of "a+bj", "bj" or "a", as strings."""
    plain = text.strip()
    if plain.startswith("(") and plain.endswith(")"):
        plain = plain[1:-1].strip()
    if plain[-1:] not in ("j", "J"):
        return plain, "0"
    at = max((m.start() for m in _SECOND.finditer(plain)), default=0)
    first, second = plain[:at] or "0", plain[at:-1].strip()
    return first, second + "1" if second in ("", "+", "-") else second


def polar(size: Any, angle: Any) -> MCFComplexTensor:
    """Return size (cos angle + i sin angle), as `torch.polar`; each part has a product's error."""
    size, angle = formatted(size, angle)
    return pair(size * torch.cos(angle), size * torch.sin(angle))


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


def text(z: MCFComplexTensor, exact: bool = True) -> str:
    """Return `MCFComplexTensor([0.1+2.j], terms=2, dtype=torch.float32)`, with parts as real ones.

    Args:
        z: the tensor.
        exact: with as many digits as `mcf.complex_tensor` needs to read the brackets back.
    """
    fmt, count = format_of(z.dtype), z.terms

    def body(indent: int) -> str:
        x, y = rows(z.real), rows(z.imag)
        one = usual([*x, *y], fmt, exact)

        def show(parts: Sequence[float]) -> str:
            real, imag = one(parts[:count]), one(parts[count:])
            return f"{real}{'' if imag.startswith('-') else '+'}{imag}j"

        both = [(*a, *b) for a, b in zip(x, y, strict=True)]
        return brackets(tuple(z.shape), both, show, fmt, exact, indent)

    tail = ["requires_grad=True"] if z.requires_grad else []
    return framed("MCFComplexTensor", z, z.real.components[0], tail, body)


def _format(z: MCFComplexTensor, spec: str) -> str:
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
    return _both(z.real.tolist(), z.imag.tolist(), builtins.complex)


@implements("item")
def item(z: MCFComplexTensor) -> builtins.complex:
    """Return one Python complex number, each part rounded to nearest."""
    return builtins.complex(z.real.item(), z.imag.item())


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
method("__format__", _format)
method("__complex__", item)
method("__array__", _array)
method("__bool__", _bool)


def _collate(batch: list[Any], *, collate_fn_map: Any = None) -> Any:
    return torch.stack(batch, 0)


flat_state.PAIRS["complex"] = MCFComplexTensor
# PyTorch's loaders: torch.load(weights_only=True), DataLoader.
torch.serialization.add_safe_globals([MCFComplexTensor])
default_collate_fn_map[MCFComplexTensor] = _collate

"""Create expansion tensors from numbers, arrays and other tensors, or of known values."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, TypedDict, TypeVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Unpack

from mcf.convert.numbers import components_of
from mcf.convert.parse import DIMENSIONS, beyond, cut, exact, flatten, printed
from mcf.convert.rounding import convert
from mcf.expansions.components import check_terms
from mcf.expansions.dispatch.recorded import unmapped, watched
from mcf.expansions.dispatch.scalars import one
from mcf.expansions.progressions import progression
from mcf.expansions.promotion import integer_components
from mcf.expansions.tensor import Components, MCFTensor, wrap
from mcf.kernels.formats import Format, format_of

__all__ = [
    "arange", "eye", "full", "full_like", "linspace", "ones", "ones_like", "tensor", "zeros",
    "zeros_like",
]  # fmt: skip


def check_format(terms: int, dtype: torch.dtype | None) -> Format:
    """Return the format of `dtype`, or of torch's default dtype; check that `terms` is 1 to 4."""
    check_terms(terms)
    return format_of(torch.get_default_dtype() if dtype is None else dtype)


def stored(fmt: Format) -> torch.dtype:
    """Return the dtype that stores a format of `check_format`."""
    assert fmt.dtype is not None
    return fmt.dtype


def like_data(data: Any, terms: int | None, dtype: torch.dtype | None) -> tuple[int, torch.dtype]:
    """Return terms and dtype of a new tensor: the arguments, else those of the data.

    Expansions have their number of components, other data two. Floating-point tensors, arrays and
    NumPy scalars have their dtype (longdouble is float64, complex numbers have that of their
    parts). A list has the promoted dtype of its items. Python numbers, text and integers have
    torch's default dtype. Next to tensors in a list, Python floats and text have the default dtype,
    and integers do not count.
    """
    if terms is None or dtype is None:
        # A set, since long lists have a small number of formats.
        mine = set(_held_by(data, 0))
        if terms is None:
            terms = max((count for count, _ in mine if count), default=2)
        if dtype is None:
            for _, kind in mine:
                kind = torch.get_default_dtype() if kind is None else kind
                dtype = kind if dtype is None else torch.promote_types(dtype, kind)
    return terms, stored(check_format(terms, dtype))


def _held_by(data: Any, depth: int) -> Iterator[tuple[int, torch.dtype | None]]:
    """Yield the components (0 for a plain number) and dtype of each operand that is no integer.

    The dtype is None for the default.
    """
    if isinstance(data, Tensor):
        kind = data.dtype.to_real() if data.is_complex() else data.dtype
        if kind.is_floating_point:
            yield (data.terms if isinstance(data, MCFTensor) else 0), kind
    elif isinstance(data, (np.ndarray, np.generic)):
        if data.dtype.kind in "fc":
            size = data.dtype.itemsize // (2 if data.dtype.kind == "c" else 1)
            yield 0, _NUMPY.get(size, torch.float64)
        elif data.dtype.kind == "O":
            yield from _held_by(np.asarray(data).ravel().tolist(), depth)
    elif type(data) is list and {*map(type, data)} == {float}:
        yield 0, None
    elif isinstance(data, (list, tuple)) and depth < DIMENSIONS:
        for item in data:
            yield from _held_by(item, depth + 1)
    elif isinstance(getattr(data, "dtype", None), torch.dtype):
        # A complex expansion, which is no torch tensor.
        yield data.terms, data.dtype
    elif not isinstance(data, int):
        yield 0, None


# The dtype of NumPy's floats, by their bytes; longdouble is larger.
_NUMPY = {2: torch.float16, 4: torch.float32, 8: torch.float64}

# Up to this number of elements are rounded one by one, faster than one conversion of a tensor.
_FEW = 8
# Types of a single exact number.
_SINGLE = frozenset({int, float, Fraction})


@unmapped
def tensor(
    data: Any,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create a tensor of the nearest expansions to `data`.

    The nearest expansion of v is x0 = RN(v), x1 = RN(v - x0), ...: exact where `terms` components
    of `dtype` hold v. As `torch.tensor`, it copies and is a leaf of the graph.

    Args:
        data: Python numbers (ints of any size), strings ("0.1" is one tenth, not the float; also
            printed brackets, "[0.1, 0.2]"), Fraction, Decimal, mpmath and NumPy numbers, NumPy
            arrays (longdouble too), torch tensors, expansion tensors; nested lists of them.
        terms: number of components, 1 to 4; None for those of an expansion, else 2.
        dtype: of the components: bfloat16, float16, float32 or float64. None for that of a
            floating-point tensor, array or NumPy scalar (of a list the dtype to which they
            promote, as in `torch.tensor`); Python numbers, text and integers get torch's default
            dtype.
        device: device of the tensor; None for that of `data`, else torch's default device.
        requires_grad: whether autograd records operations on it.

    Raises:
        TypeError: for data of another type, complex numbers, another dtype.
        ValueError: for another `terms`, a string that is no number, ragged lists.
    """
    terms, dtype = like_data(data, terms, dtype)
    fmt = format_of(dtype)
    compiling = torch.compiler.is_compiling()
    if type(data) in _SINGLE and not (requires_grad or compiling):
        found = components_of(data, fmt, terms)
        return wrap([torch.full((), v, dtype=dtype, device=device) for v in found])
    if isinstance(data, str) and data.lstrip().startswith("["):
        data = printed(data)
    if isinstance(data, np.ndarray):
        source = _array_components(data, fmt, terms)
    elif device is None and not compiling and _is_held(data, dtype):
        first = data.detach().clone()
        result = wrap([first, *(torch.zeros_like(first) for _ in range(terms - 1))])
        return leaf(result, requires_grad)
    elif isinstance(data, Tensor):
        source = _tensor_components(data)
    elif isinstance(data, (list, tuple)) and any(_is_array(item) for item in data):
        rows: list[Tensor] = [tensor(item, terms, dtype, device) for item in data]
        joined = torch.stack(rows).requires_grad_(requires_grad)
        assert isinstance(joined, MCFTensor)
        return joined
    else:
        shape, leaves = flatten(data)
        if 0 < len(leaves) <= _FEW and not compiling:
            few = _columns(leaves, fmt, terms)
            result = wrap([torch.tensor(c, dtype=dtype, device=device).reshape(shape) for c in few])
            return leaf(result, requires_grad)
        source = _number_components(shape, leaves, fmt, terms)
    if device is None and not isinstance(data, Tensor):
        device = torch.get_default_device()
    source = tuple(c.to(device=device) for c in source)
    # Components of numbers are rounded already; rounding their sum again could differ.
    rounded = _are_numbers(data) and len(source) == terms and source[0].dtype is dtype
    result = wrap(source if rounded else convert(source, dtype, terms))
    return leaf(result, requires_grad)


def leaf(x: MCFTensor, requires_grad: bool) -> MCFTensor:
    """Return a new tensor, which autograd records if `requires_grad`."""
    if requires_grad:
        x.requires_grad_()
    return x


def _is_held(data: Any, dtype: torch.dtype) -> bool:
    """Return whether data is a plain, unobserved tensor that can be copied as first component."""
    if type(data) is not Tensor or data.dtype is not dtype or data.layout is not torch.strided:
        return False
    if dtype not in _WIDE or not data.is_contiguous() or data.is_neg():
        return False
    return not watched()


# A conversion of 16 bits sets the quiet bit of NaN.
_WIDE = frozenset({torch.float32, torch.float64})


def _are_numbers(data: Any) -> bool:
    """Return whether data are Python numbers and strings, alone, in lists or in object arrays."""
    if isinstance(data, np.ndarray):
        return data.dtype.kind not in "biuf"
    return not isinstance(data, Tensor)


def _is_array(item: Any, depth: int = 0) -> bool:
    if isinstance(item, (list, tuple)):
        # `flatten` refuses deeper nesting.
        return depth < DIMENSIONS and any(_is_array(i, depth + 1) for i in item)
    return isinstance(item, (Tensor, np.ndarray))


def _tensor_components(data: Tensor) -> Components:
    if isinstance(data, MCFTensor):
        return data.components
    if data.layout is not torch.strided:
        raise TypeError(f"data must be a dense tensor, got layout {data.layout}")
    data = data.detach()
    if not data.is_floating_point():
        return integer_components(data)
    format_of(data.dtype, "data")
    return (data,)


def _columns(leaves: list[Any], fmt: Format, terms: int) -> Any:
    """Return the components of numbers: all first components, then all second ones, ..."""
    return zip(*[components_of(exact(x), fmt, terms) for x in leaves], strict=True)


def _number_components(
    shape: tuple[int, ...], leaves: list[Any], fmt: Format, terms: int
) -> Components:
    if all(type(x) is float or (type(x) is int and abs(x) <= 2**53) for x in leaves):
        return (torch.tensor(leaves, dtype=torch.float64, device="cpu").reshape(shape),)
    # float64 holds every number of the format.
    return tuple(
        torch.tensor(c, dtype=torch.float64, device="cpu").to(fmt.dtype).reshape(shape)
        for c in _columns(leaves, fmt, terms)
    )


def number_in(value: Any, name: str) -> Any:
    """Return the exact value of a tensor of one element; other objects unchanged."""
    if not isinstance(value, Tensor):
        return value
    if value.numel() != 1:
        raise ValueError(f"{name} must be one number, got a tensor of shape {list(value.shape)}")
    # Four float64 components hold a number of every format.
    held = value if isinstance(value, MCFTensor) else tensor(value, 4, torch.float64)
    return one(held.detach(), name)


def _array_components(data: np.ndarray[Any, Any], fmt: Format, terms: int) -> Components:
    if data.dtype.kind == "c":
        raise TypeError(f"data must be real numbers, got an array of {data.dtype}")
    if data.dtype.kind not in "biufOUT":
        raise TypeError(f"data must be numbers or strings, got an array of {data.dtype}")
    if data.dtype.kind not in "biuf":
        shape, flat = flatten([number_in(x, "each element of data") for x in data.ravel().tolist()])
        found = _number_components(shape, flat, fmt, terms)
        return tuple(c.reshape(data.shape) for c in found)
    data = np.array(data, dtype=data.dtype.newbyteorder("="), order="C")
    if data.dtype != np.dtype(np.longdouble) or data.dtype == np.dtype(np.float64):
        return _tensor_components(torch.from_numpy(data))
    parts = []
    finite = np.isfinite(data)
    for _ in range(3):
        high = data.astype(np.float64)
        parts.append(torch.from_numpy(high))
        with np.errstate(invalid="ignore"):
            data = np.where(finite & np.isfinite(high), data - high, 0)
    return tuple(parts)


Device = torch.device | str | None


class FormatOptions(TypedDict, total=False):
    """Keyword arguments of functions that create tensors: see `full`."""

    terms: int | None
    dtype: torch.dtype | None
    device: Device


class Options(FormatOptions, total=False):
    """Keyword arguments of functions that create tensors: see `full`."""

    requires_grad: bool


Creator = TypeVar("Creator", bound=Callable[..., Any])


def spelled_out(kinds: Any, terms: int | None = None) -> Callable[[Creator], Creator]:
    """Show the names of `**options` in a function's signature, and refuse other names.

    Args:
        kinds: the `TypedDict` of the options.
        terms: the default of the option `terms`.
    """
    defaults = {"terms": terms, "requires_grad": False}
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name),
            annotation=kind.__forward_arg__,
        )
        for name, kind in inspect.get_annotations(kinds).items()
    ]

    def decorate(function: Creator) -> Creator:
        found = inspect.signature(function)
        own = [p for p in found.parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = frozenset(p.name for p in (*own, *options))

        @functools.wraps(function)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    raise TypeError(
                        f"{function.__qualname__}() got an unexpected keyword argument {name!r}"
                    )
            return function(*args, **given)

        # The site's reference would follow `__wrapped__` to a method that is replaced by this one.
        del checked.__wrapped__  # type: ignore[attr-defined]
        checked.__signature__ = found.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def shape_of(size: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape from `f(2, 3)` or `f((2, 3))`."""
    if len(size) == 1 and isinstance(size[0], (tuple, list, torch.Size)):
        return tuple(size[0])
    return tuple(size)


def like(input: Tensor, options: Any) -> Any:
    """Return options with the format and device of a tensor where none are given."""
    terms = input.terms if isinstance(input, MCFTensor) else 2
    own = {"terms": terms, "dtype": input.dtype, "device": input.device}
    return own | {name: value for name, value in options.items() if value is not None}


def full(
    size: Sequence[int] | int,
    fill_value: Any,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create a tensor filled with the nearest expansion of a number.

    Args:
        size: its shape.
        fill_value: any number that `mcf.tensor` takes: "0.1", Fraction(1, 3), ...
        terms: number of components, 1 to 4; None for those of an expansion, else 2.
        dtype: of the components; None for that of a floating-point tensor or NumPy number, else
            torch's default dtype.
        device: its device; None for torch's default device.
        requires_grad: whether autograd records operations on it.
    """
    terms, dtype = like_data(fill_value, terms, dtype)
    fmt = format_of(dtype)
    shape = (size,) if isinstance(size, int) else tuple(size)
    values = components_of(exact(number_in(fill_value, "fill_value")), fmt, terms)
    made = wrap([torch.full(shape, v, dtype=dtype, device=device) for v in values])
    return leaf(made, requires_grad)


@spelled_out(Options, terms=2)
def zeros(*size: Any, **options: Unpack[Options]) -> MCFTensor:
    """Create a tensor of zeros of shape `size`; options as `mcf.full`."""
    return full(shape_of(size), 0, **options)


@spelled_out(Options, terms=2)
def ones(*size: Any, **options: Unpack[Options]) -> MCFTensor:
    """Create a tensor of ones of shape `size`; options as `mcf.full`."""
    return full(shape_of(size), 1, **options)


def eye(
    n: int,
    m: int | None = None,
    *,
    terms: int = 2,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create the identity matrix of n rows and m columns; options as `mcf.full`."""
    dtype = check_format(terms, dtype).dtype
    one = torch.eye(n, n if m is None else m, dtype=dtype, device=device)
    zero = [torch.zeros_like(one) for _ in range(terms - 1)]
    return leaf(wrap([one, *zero]), requires_grad)


@spelled_out(Options)
def arange(start: Any, end: Any = None, step: Any = 1, **options: Unpack[Options]) -> MCFTensor:
    """Create start, start + step, ... below end, each rounded to the nearest expansion.

    Args:
        start: the first number, as `mcf.tensor` takes it; a single argument is `end`, from 0.
        end: exclusive upper limit (lower limit for a negative step).
        step: not 0; "0.1" is one tenth.
        options: as `mcf.full`; the format is that of all the numbers given.
    """
    if end is None:
        start, end = 0, start
    a, b, s = (_finite(v, n) for v, n in ((start, "start"), (end, "end"), (step, "step")))
    if s == 0:
        raise ValueError("step must not be 0")
    if (b - a) * s < 0:
        raise ValueError(f"step must lead from start to end, got {step!r}")
    return _sequence([start, end, step], a, s, math.ceil((b - a) / s), **options)


@spelled_out(Options)
def linspace(start: Any, end: Any, steps: int, **options: Unpack[Options]) -> MCFTensor:
    """Create `steps` evenly spaced numbers from start to end, each the nearest expansion.

    Args:
        start: the first number, as `mcf.tensor` takes it.
        end: the last number.
        steps: number of elements, at least 0.
        options: as `mcf.full`; the format is that of all the numbers given.
    """
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    a, b = _finite(start, "start"), _finite(end, "end")
    gap = (b - a) / (steps - 1) if steps > 1 else Fraction(0)
    return _sequence([start, end], a, gap, steps, **options)


def _sequence(
    data: list[Any],
    first: Fraction,
    step: Fraction,
    count: int,
    *,
    terms: int | None = None,
    dtype: torch.dtype | None = None,
    device: Device = None,
    requires_grad: bool = False,
) -> MCFTensor:
    """Create first + k step for all k below count, in the format of the numbers given."""
    terms, dtype = like_data(data, terms, dtype)
    made = wrap(progression(first, step, count, terms, dtype, device))
    return leaf(made, requires_grad)


def _finite(value: Any, name: str) -> Fraction:
    number = exact(number_in(value, name))
    if beyond(number) or (isinstance(number, float) and not math.isfinite(number)):
        raise ValueError(f"{name} must be finite, got {value!r:.200}")
    if cut(number):
        raise ValueError(f"{name} must have at most 3000 decimals")
    return Fraction(number)


@spelled_out(Options)
def full_like(input: Tensor, fill_value: Any, **options: Unpack[Options]) -> MCFTensor:
    """Call `mcf.full` with shape, format and device of a tensor; a plain tensor has 2 terms."""
    return full(input.shape, fill_value, **like(input, options))


@spelled_out(Options)
def zeros_like(input: Tensor, **options: Unpack[Options]) -> MCFTensor:
    """Create zeros with shape, format and device of a tensor; see `mcf.full_like`."""
    return full_like(input, 0, **options)


@spelled_out(Options)
def ones_like(input: Tensor, **options: Unpack[Options]) -> MCFTensor:
    """Create ones with shape, format and device of a tensor; see `mcf.full_like`."""
    return full_like(input, 1, **options)

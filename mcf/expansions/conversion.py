"""Convert between formats, plain tensors, any floats and expansions, with gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.convert.few import truncated_few, visible
from mcf.convert.rounding import convert, few_converted
from mcf.expansions.components import MAX_TERMS
from mcf.expansions.creation import check_format
from mcf.expansions.dispatch.recorded import recorded, unmapped, watched
from mcf.expansions.promotion import integer_components
from mcf.expansions.tensor import (
    COMPONENTS,
    Components,
    MCFTensor,
    broadcast,
    fresh,
    method,
    wrap,
)
from mcf.kernels import operations
from mcf.kernels.formats import FORMATS, format_of


def converted(x: Tensor, dtype: torch.dtype, terms: int) -> Components:
    """Return the components of the expansions in a format nearest to a real tensor."""
    source = _parts(x)
    if _holds(source, dtype, terms):
        if len(source) == terms:
            return tuple(source)
        zero = torch.zeros_like(source[0])
        return tuple(source) + (zero,) * (terms - len(source))
    return convert(source, dtype, terms)


def _parts(x: Tensor) -> Components:
    """Return components whose sum is a real tensor."""
    if isinstance(x, MCFTensor):
        return x.components
    return (x,) if x.is_floating_point() else tuple(integer_components(x))


def _holds(source: Components, dtype: torch.dtype, terms: int) -> bool:
    """Return whether an expansion of a format can hold the components unchanged."""
    return source[0].dtype is dtype and len(source) <= terms


def _new(x: Tensor, dtype: torch.dtype, terms: int) -> MCFTensor:
    """Return `converted` as an expansion tensor with its own memory."""
    source = _parts(x)
    if not _holds(source, dtype, terms):
        return wrap(convert(source, dtype, terms))
    zeros = [torch.zeros_like(source[0]) for _ in range(terms - len(source))]
    return wrap([*(c.clone() for c in source), *zeros])


def plain(x: MCFTensor, dtype: torch.dtype) -> Tensor:
    """Return the value as one plain tensor, rounded to nearest (integers: toward zero)."""
    if dtype is torch.bool:
        return x.components[0] != 0
    if dtype in FORMATS:
        return convert(x.components, dtype, 1)[0]
    if dtype.is_complex:
        raise TypeError(f"an expansion tensor cannot become a tensor of {dtype}")
    return _truncated(x).to(dtype)


def _truncated(x: MCFTensor) -> Tensor:
    """Truncate to int64; inf and NaN give the integers that torch gives."""
    first = x.components[0]
    if visible(first) and (first.abs() < 2.0 ** (format_of(x.dtype).p - 1)).all():
        return _short(x.components).to(torch.int64)
    parts = convert(x.components, torch.float64, x.terms)
    whole = [p.trunc() for p in parts]
    integer = sum((w.to(torch.int64) for w in whole[1:]), whole[0].to(torch.int64))
    # These fractions are exact; the floor of their sum completes the integer.
    left = [torch.where(parts[0].isfinite(), p - w, 0.0) for p, w in zip(parts, whole, strict=True)]
    rest = operations.renormalize(left, x.terms)
    first = rest[0].floor()
    lower = rest[1] if x.terms > 1 else torch.zeros_like(first)
    carry = first - ((rest[0] == first) & (lower < 0)).to(first.dtype)
    fraction = (rest[0] != carry) | (lower != 0)
    # Toward zero, in one addition: the floor of a value just below -2**63 does not fit int64.
    return integer + (carry.to(torch.int64) + ((parts[0] < 0) & fraction).to(torch.int64))


def _short(x: Components) -> Tensor:
    """Truncate the value of components whose first is below 2**(p - 1).

    Lower components matter only if the first is whole and they point towards zero: then by 1.
    """
    whole = x[0].trunc()
    if len(x) == 1:
        return whole
    sign = x[0].sign()
    return torch.where((x[0] == whole) & (x[1] * sign < 0), whole - sign, whole)


class _Convert(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: MCFTensor, dtype: torch.dtype, terms: int) -> Tensor:
        ctx.format = x.dtype, x.terms
        return _new(x, dtype, terms)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return reformat(grad, *ctx.format), None, None


class _Promote(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.dtype = x.dtype
        return wrap((x.detach().clone(),))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return to_plain(grad, ctx.dtype)


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: MCFTensor, dtype: torch.dtype) -> Tensor:
        ctx.format = x.dtype, x.terms
        return plain(x, dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return reformat(promote(grad), *ctx.format), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *components: Tensor) -> Tensor:
        detached = [c.detach() for c in components]
        return wrap(normalised(broadcast(*detached)))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        one = to_plain(grad, grad.dtype)
        return tuple(one if needed else None for needed in ctx.needs_input_grad)


def reformat(x: Tensor, dtype: torch.dtype, terms: int) -> MCFTensor:
    """Convert to the nearest expansion of a format, with a gradient."""
    if isinstance(x, MCFTensor) and x.dtype is dtype and x.terms == terms:
        return x
    if not recorded(x):
        return _new(x, dtype, terms)
    return _Convert.apply(x if isinstance(x, MCFTensor) else promote(x), dtype, terms)  # type: ignore[no-any-return, no-untyped-call]


def few_to(x: MCFTensor, dtype: torch.dtype) -> Tensor | None:
    """Convert a small tensor to another float dtype or int64; None for the dispatcher's cases."""
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    if dtype is torch.int64 and first.is_contiguous():
        return truncated_few(COMPONENTS[terms](own))
    if first.dtype is dtype or dtype not in FORMATS or not first.is_contiguous():
        return None
    parts = few_converted(COMPONENTS[terms](own), dtype, terms)
    return None if parts is None else fresh(parts, first.shape, dtype, first.device)


@method
@unmapped
def to(x: MCFTensor, *args: Any, terms: int | None = None, **kwargs: Any) -> Any:
    """Convert as `torch.Tensor.to`, also to another number of components.

    Values are rounded once, to the nearest expansion; the result is exact if the format holds them.
    An integer or bool dtype gives a plain tensor, truncated as in torch.

    Args:
        x: the tensor.
        *args: a dtype (of the components), a device, or another tensor.
        terms: number of components, 1 to 4; None leaves it unchanged.
        **kwargs: keyword arguments of `torch.Tensor.to`.
    """
    if terms is None:
        if len(args) == 1 and not kwargs and type(args[0]) is torch.dtype and not recorded(x):
            found = few_to(x, args[0])
            if found is not None:
                return found
        return Tensor.to(x, *args, **kwargs)
    dtype, device, target = kwargs.pop("dtype", None), None, None
    # Positional arguments of torch after dtype and device.
    flags = [argument for argument in args if isinstance(argument, bool)]
    kwargs |= zip(("non_blocking", "copy"), flags, strict=False)
    for argument in args[: len(args) - len(flags)]:
        if isinstance(argument, torch.dtype):
            dtype = argument
        elif isinstance(argument, Tensor):
            target = argument
        else:
            device = argument
    if target is not None:
        dtype, device = target.dtype, target.device
    if device is not None:
        kwargs["device"] = device
    check_format(terms, dtype or x.dtype)
    moved = Tensor.to(x, **kwargs) if kwargs else x
    return reformat(moved, dtype or x.dtype, terms)


def promote(x: Tensor) -> MCFTensor:
    """Promote a plain tensor to one component; its gradient is rounded to its dtype."""
    return x if isinstance(x, MCFTensor) else _Promote.apply(x)  # type: ignore[no-untyped-call]


@method
@unmapped
def to_plain(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Convert to one plain tensor of a dtype (by default that of the components).

    Values are rounded once to nearest even; the gradient passes through.
    """
    dtype = x.dtype if dtype is None else dtype
    if not isinstance(x, MCFTensor):
        return x.to(dtype)
    if not recorded(x):
        return plain(x, dtype)
    return _Plain.apply(x, dtype)  # type: ignore[no-any-return, no-untyped-call]


def from_components(components: Sequence[Tensor]) -> MCFTensor:
    """Create the tensor whose value is the sum of the components, correctly normalised.

    This is the inverse of `x.components`: normalised components come back with the same bits. A
    component that requires grad gets the gradient of the sum, rounded to its dtype.

    Args:
        components: 1 to 4 tensors of one dtype (bfloat16, float16, float32, float64) and device,
            or NumPy arrays. They broadcast, and may have any order and overlap.

    Raises:
        TypeError: for other dtypes, mixed dtypes or devices, or other objects.
        ValueError: for another number of components, or shapes that do not broadcast.
    """
    given = [c if isinstance(c, Tensor) else torch.as_tensor(c) for c in components]
    if not 1 <= len(given) <= MAX_TERMS:
        raise ValueError(f"components must be 1 to {MAX_TERMS} tensors, got {len(given)}")
    for k, c in enumerate(given):
        if isinstance(c, MCFTensor):
            raise TypeError(f"components[{k}] must be a plain tensor, got an MCFTensor")
        format_of(c.dtype, f"components[{k}]")
    if are_expansions(given):
        return wrap([c.clone() for c in given])
    return _Sum.apply(*given)  # type: ignore[no-any-return, no-untyped-call]


def normalised(components: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the components with elements renormalised that are not yet expansions."""
    count = len(components)
    result = _total(components, count)
    overflow = ~result[0].isfinite()
    for c in components:
        overflow &= c.isfinite()
    if not visible(components[0]) or overflow.any():
        # A partial sum may overflow where the total does not: add sixteenths, and the remainders
        # of dividing subnormal numbers.
        sixteenths = [c / 16 for c in components]
        left = [c - 16 * s for c, s in zip(components, sixteenths, strict=True)]
        smaller = _total([*(16 * t for t in _total(sixteenths, count)), *left], count)
        result = [torch.where(overflow, a, r) for a, r in zip(smaller, result, strict=True)]
    # An infinity above another component is no expansion, though their sum equals the infinity.
    already = components[0].isfinite()
    for above, below in itertools.pairwise(components):
        already &= operations.two_sum(above, below)[0] == above
    return [torch.where(already, c, r) for c, r in zip(components, result, strict=True)]


def are_expansions(components: Sequence[Tensor]) -> bool:
    """Return whether unrecorded tensors are known to be normalised and of one format."""
    first = components[0]
    if first.dtype not in (torch.float32, torch.float64):
        return False
    for c in components:
        if not visible(c) or not c.is_contiguous() or c.layout is not torch.strided:
            return False
        if c.shape != first.shape or c.dtype is not first.dtype:
            return False
        if c.requires_grad and torch.is_grad_enabled():
            return False
    if watched():
        return False
    if first.dtype is torch.float64 and first.numel() == 1:
        # Python adds in float64.
        values = [c.item() for c in components]
        return math.isfinite(values[0]) and all(a + b == a for a, b in itertools.pairwise(values))
    if not first.isfinite().all():
        return False
    return all(torch.equal(a + b, a) for a, b in itertools.pairwise(components))


def _total(floats: Sequence[Tensor], terms: int) -> Sequence[Tensor]:
    """Return the renormalised sum of floats."""
    return convert(operations.renormalize(floats, terms), floats[0].dtype, terms)

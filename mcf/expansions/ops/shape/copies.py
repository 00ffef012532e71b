"""Implement copies, conversions, assignment and constructors such as `zeros_like`.

Numbers are rounded to the format of the expansion; PyTorch would round them to the dtype first. A
mask is searched once for all components.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.convert.numbers import components_of
from mcf.convert.rounding import convert
from mcf.expansions.components import NAMES, needs_pieces, write
from mcf.expansions.conversion import converted, plain, promote, to_plain
from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import differentiated, recorded, watched, writable, written
from mcf.expansions.dispatch.registry import OPERATORS, UnsupportedError, implements, overloads
from mcf.expansions.dispatch.torch_functions import forward, is_plain_leaf
from mcf.expansions.launch.operations import selected
from mcf.expansions.ops.shape.views import on_each, register
from mcf.expansions.promotion import aligned
from mcf.expansions.tensor import COMPONENTS, MCFTensor, wrap
from mcf.kernels import registry
from mcf.kernels.formats import FORMATS, format_of
from mcf.kernels.operators import WHERE

aten = torch.ops.aten

register(*overloads("_pin_memory clone lift_fresh lift_fresh_copy"))


@implements(aten._local_scalar_dense.default)
def number(x: MCFTensor) -> float:
    """Return the Python number that PyTorch reads; raise unless one component holds the value.

    `x.item()` and `float(x)`, which are documented to round, do not call this.
    """
    first, *lower = (c.item() for c in x.components)
    if any(lower):
        raise UnsupportedError(
            "expected a Python number, got an expansion tensor, which would be rounded; "
            "pass float(x), which rounds, or write it as an operation: x + a * y for torch.add(x, "
            "y, alpha=a), mcf.full for torch.full"
        )
    return float(first)


@implements(aten.is_pinned.default)
def is_pinned(x: MCFTensor, device: Any = None) -> bool:
    """Return whether the components are in pinned memory."""
    return all(c.is_pinned() for c in x.components)


@implements(aten.copy_.default)
def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Write the source's value, rounded to nearest in the target's format."""
    if not isinstance(target, MCFTensor):
        assert isinstance(source, MCFTensor)
        return target.copy_(plain(source, target.dtype), non_blocking)
    new = converted(source, target.dtype, target.terms)
    if watched():
        for t, s in zip(target.components, new, strict=True):
            t.copy_(s, non_blocking)
    else:
        write(target.components, new, non_blocking)
    return target


@implements(aten._to_copy.default)
def to_copy(x: MCFTensor, dtype: torch.dtype | None = None, **kwargs: Any) -> Tensor:
    """Copy with another dtype, device or layout; an integer dtype gives a plain tensor."""
    dtype = x.dtype if dtype is None else dtype
    if dtype not in FORMATS:
        return aten._to_copy.default(plain(x, dtype), **kwargs)  # type: ignore[no-any-return]
    moved = [aten._to_copy.default(c, **kwargs) for c in x.components]
    return wrap(moved if dtype is x.dtype else convert(moved, dtype, x.terms))


@implements(aten.fill_.Scalar, aten.fill_.Tensor)
def fill_(x: Tensor, value: Any) -> Tensor:
    """Set every element to a number."""
    if not isinstance(x, MCFTensor):
        return x.fill_(plain(value, x.dtype))
    if isinstance(value, Tensor):
        for t, s in zip(x.components, converted(value, x.dtype, x.terms), strict=True):
            t.fill_(s)
        return x
    numbers = components_of(value, format_of(x.dtype), x.terms)
    if x.device.type == "cpu" and not watched():
        write(x.components, [torch.tensor(v, dtype=x.dtype, device=x.device) for v in numbers])
        return x
    for t, v in zip(x.components, numbers, strict=True):
        t.fill_(v)
    return x


@implements(aten.fill.Scalar, aten.fill.Tensor)
def fill(x: MCFTensor, value: Any) -> Tensor:
    """Return a tensor like x filled with a number."""
    return fill_(wrap([torch.empty_like(c) for c in x.components]), value)


@implements(aten.zero_.default)
def zero_(x: MCFTensor) -> MCFTensor:
    """Set every element to zero."""
    _on_each(torch._foreach_zero_, Tensor.zero_, x.components)
    return x


def neg_(x: MCFTensor) -> MCFTensor:
    """Change the sign of every element."""
    _on_each(torch._foreach_neg_, Tensor.neg_, x.components)
    return x


def _on_each(
    function: Callable[[list[Tensor]], Any], one: Callable[[Tensor], Any], targets: Sequence[Tensor]
) -> None:
    """Change all components in one call, so that no interrupt can separate them.

    Args:
        function: the function of a list, such as `torch._foreach_neg_`.
        one: the function of one tensor, for transforms and forked children without list support.
        targets: the components.
    """
    if watched() or needs_pieces(targets[0]):
        for t in targets:
            one(t)
    else:
        function([*targets])


# `implements` would correct aliasing; this returns the argument itself.
OPERATORS[aten.neg_.default] = neg_


def _filled(
    func: Any, x: MCFTensor, values: tuple[float, ...] | None, *args: Any, **kwargs: Any
) -> Tensor:
    """Create each component by `func`, filled with `values` if these are given."""
    dtype = kwargs.get("dtype") or x.dtype
    if dtype not in FORMATS:
        return func(x.components[0], *args, **kwargs)  # type: ignore[no-any-return]
    kwargs["dtype"] = dtype
    made = [func(c, *args, **kwargs) for c in x.components]
    if values is not None:
        for m, v in zip(made, values, strict=True):
            m.fill_(v)
    return wrap(made)


for _func in overloads("empty_like zeros_like new_empty new_zeros new_empty_strided"):
    implements(_func)(lambda x, *a, func=_func, **k: _filled(func, x, None, *a, **k))
for _func in overloads("ones_like new_ones"):
    implements(_func)(
        lambda x, *a, func=_func, **k: _filled(func, x, (1.0,) + (0.0,) * (x.terms - 1), *a, **k)
    )


@implements(aten._new_zeros_with_same_feature_meta.default)
def new_zeros_laid_out_like(x: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Return zeros with the layout of another tensor, for a tangent."""
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        # Tracing would record a constant for each tangent, not the operations on it.
        raise UnsupportedError(
            "torch.func.linearize and make_fx do not record tangents of expansion tensors; "
            "torch.func.jvp(f, primals, tangents) computes them"
        )
    first = x.components[0] if isinstance(x, MCFTensor) else x
    parts = other.components if isinstance(other, MCFTensor) else (other,)
    made = aten._new_zeros_with_same_feature_meta.default
    return wrap([made(first, part, self_num_batch_dims=self_num_batch_dims) for part in parts])


def _full(func: OpOverload, empty: OpOverload) -> None:
    """Register a constructor of tensors filled with the nearest expansion of a number."""

    def full(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        *size, value = args
        dtype = kwargs.get("dtype") or x.dtype
        if dtype not in FORMATS:
            return func(x.components[0], *args, **kwargs)
        values = components_of(value, format_of(dtype), x.terms)
        return _filled(empty, x, values, *size, **kwargs)

    implements(func)(full)


_full(aten.full_like.default, aten.empty_like.default)
_full(aten.new_full.default, aten.new_empty.default)


@implements(Tensor.__setitem__)
def setitem(x: Any, index: Any, value: Any) -> None:
    """Set x[index] = value; a number is rounded to x's format, not first to its dtype."""
    if _written_at_once(x, index, value):
        return
    if not isinstance(x, MCFTensor):
        value = to_plain(value, x.dtype) if isinstance(value, MCFTensor) else value
    elif not isinstance(value, Tensor):
        value = tensor(value, x.terms, x.dtype, x.device)
    elif is_plain_leaf(value) and torch.is_grad_enabled():
        value = promote(value)
    with torch._C.DisableTorchFunctionSubclass():
        Tensor.__setitem__(x, index, value)


# Index types that involve no `__torch_function__`.
_PLACES = frozenset({int, slice, type(Ellipsis), type(None), Tensor})


def _written_at_once(x: Any, index: Any, value: Any) -> bool:
    """Set x[index] = value by components if nothing is recorded; return False if unsupported."""
    if type(x) is not MCFTensor or watched() or not writable(x):
        return False
    places = index if type(index) is tuple else (index,)
    if not _PLACES.issuperset(map(type, places)):
        return False
    own = x.__dict__
    first, terms = own["_c0"], own["_terms"]
    parts: Any
    if type(value) is MCFTensor:
        # If an index repeats, threads may choose different values for different components. A
        # single value is safe.
        given = value.__dict__
        if given["_c0"].numel() > 1 and any(
            type(p) is Tensor and p.dtype is not torch.bool for p in places
        ):
            return False
        parts = COMPONENTS[given["_terms"]](given)
        if type(parts[0]) is not Tensor or differentiated((x, value)):
            return False
        if (len(parts), parts[0].dtype, parts[0].device) != (terms, first.dtype, first.device):
            return False
    elif type(value) in (int, float) and not differentiated((x,)):
        parts = components_of(value, format_of(first.dtype), terms)
    else:
        return False
    if type(first) is not Tensor:
        return False
    if _fills(first, index, value):
        for c, part in zip(COMPONENTS[terms](own), parts, strict=True):
            c.masked_fill_(index, part)
    else:
        for c, part in zip(COMPONENTS[terms](own), parts, strict=True):
            c[index] = part
    written(x)
    return True


def _fills(x: Tensor, index: Any, value: Any) -> bool:
    """Return whether `masked_fill_` applies: a number and a mask of x's shape.

    It avoids PyTorch's search for the indices of the mask.
    """
    return (
        type(index) is Tensor
        and index.dtype is torch.bool
        and index.shape == x.shape
        and index.device == x.device
        and not isinstance(value, Tensor)
        and x.is_contiguous()
    )


@implements(Tensor.copy_)
def copy_(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Copy the source, rounded to nearest; the gradient of a plain source is rounded too."""
    if not isinstance(target, MCFTensor):
        source = to_plain(source, target.dtype)
    elif isinstance(source, int | float | complex):
        source = _number(source, target)
    elif is_plain_leaf(source) and torch.is_grad_enabled():
        source = promote(source)
    with torch._C.DisableTorchFunctionSubclass():
        return target.copy_(source, non_blocking)


@implements(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(x: Any, value: Any) -> None:
    """Set x.data = value by replacing the components."""
    if not isinstance(x, MCFTensor) or not isinstance(value, MCFTensor):
        raise TypeError("x.data of an expansion tensor can only be set to an expansion tensor")
    if (x.dtype, x.shape, x.terms) == (value.dtype, value.shape, value.terms):
        with torch._C.DisableTorchFunctionSubclass():
            Tensor.data.__set__(x, value)  # type: ignore[attr-defined]
        x.__dict__.update(zip(NAMES, value.components, strict=False))
        return
    raise RuntimeError(
        f"x.data: terms, dtype and shape must stay {x.terms}, {x.dtype}, {list(x.shape)}, "
        f"got {value.terms}, {value.dtype}, {list(value.shape)}"
    )


def _number(x: Any, like: MCFTensor) -> Tensor:
    """Convert a number to a tensor's format; plain if one component holds it exactly."""
    if type(x) in (int, float):
        first, second = components_of(x, format_of(like.dtype), 2)
        if not second and (first == x or x != x):
            return torch.full((), first, dtype=like.dtype, device=like.device)
    return tensor(x, like.terms, like.dtype, like.device)


@implements(torch.where)
def where(condition: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return `torch.where` with numbers rounded to the tensor's format, not first to its dtype."""
    if len(args) == 2 and not kwargs and not (recorded(args[0]) or recorded(args[1])):
        found = selected(WHERE, condition, *args)
        if found is not None:
            return found
    like = next((x for x in args if isinstance(x, MCFTensor)), None)
    if like is not None:
        args = tuple(x if isinstance(x, Tensor) else _number(x, like) for x in args)
    return forward(torch.where, (condition, *args), kwargs)


implements(Tensor.where)(lambda x, condition, other: where(condition, x, other))


@implements(Tensor.new_tensor)
def new_tensor(x: Any, data: Any, **options: Any) -> Any:
    """Return `x.new_tensor(data)`, in x's format."""
    return tensor(data, x.terms, **{"dtype": x.dtype, "device": x.device, **options})


@implements(torch.full_like)
def full_like(x: Any, fill_value: Any, **options: Any) -> Any:
    """Return `torch.full_like`; the number may be an expansion."""
    if not isinstance(fill_value, Tensor):
        return forward(torch.full_like, (x, fill_value), options)
    out = forward(torch.empty_like, (x,), options)
    with torch.no_grad():
        return out.fill_(fill_value)


@implements(Tensor.new_full)
def new_full(x: Any, size: Any, fill_value: Any, **options: Any) -> Any:
    """Return `x.new_full(size, fill_value)`; the number may be an expansion."""
    if not isinstance(fill_value, Tensor):
        return forward(Tensor.new_full, (x, size, fill_value), options)
    out = forward(Tensor.new_empty, (x, size), options)
    with torch.no_grad():
        return out.fill_(fill_value)


implements(Tensor.item)(lambda x: x.item())
implements(Tensor.__float__)(lambda x: float(x))
implements(torch.is_nonzero, Tensor.is_nonzero)(lambda x: bool(x))


def _refuse(function: Any, name: str, instead: str) -> None:
    @implements(function)
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(f"{name} is not supported on mcf.MCFTensor; {instead}")


# PyTorch writes into a plain tensor, which would round.
_refuse(
    torch._C._nn.pad_sequence,
    "torch.nn.utils.rnn.pad_sequence",
    "pad each tensor with torch.nn.functional.pad, then stack",
)
# Functions that access the tensor's own storage, which holds no data.
_refuse(Tensor.apply_, "torch.Tensor.apply_", "use x.to_fractions() and mcf.tensor")
_refuse(Tensor.new, "torch.Tensor.new", "use x.new_empty or x.new_tensor")


def _masked(x: Any, mask: Any) -> MCFTensor | None:
    """Return x[mask] for a mask of x's leading dimensions; None if unsupported.

    PyTorch searches the mask once per component, and each search is much slower than NumPy's.
    """
    if type(x) is not MCFTensor or type(mask) is not Tensor or mask.dtype is not torch.bool:
        return None
    own = x.__dict__
    first, dims = own["_c0"], mask.ndim
    if type(first) is not Tensor or first.device.type != "cpu" or mask.device.type != "cpu":
        return None
    if dims == 0 or first.shape[:dims] != mask.shape or watched() or mask.requires_grad:
        return None
    parts = COMPONENTS[own["_terms"]](own)
    if first.shape == mask.shape:
        found = registry.on(first.device).picked(parts, mask)
        if found is not None:
            return wrap(found)
    places = torch.from_numpy(np.flatnonzero(mask.numpy()))
    if dims > 1:
        parts = tuple([c.flatten(0, dims - 1) for c in parts])
    return wrap([c.index_select(0, places) for c in parts])


def _plain_on_cpu(tensors: Sequence[Any]) -> bool:
    """Return whether all are plain CPU tensors that nobody traces."""
    return all(type(c) is Tensor and c.device.type == "cpu" for c in tensors) and not watched()


_scatter = aten.masked_scatter.default
_index, _select = on_each(aten.index.Tensor), on_each(aten.masked_select.default)


@implements(aten.index.Tensor)
def index(x: Any, indices: Any) -> Any:
    """Return x[indices]."""
    found = _masked(x, indices[0]) if len(indices) == 1 else None
    return _index(x, indices) if found is None else found


@implements(aten.masked_select.default)
def masked_select(x: Any, mask: Any) -> Any:
    """Return the elements where a mask is True, as a vector."""
    same = isinstance(mask, Tensor) and mask.shape == x.shape
    found = _masked(x, mask) if same else None
    return _select(x, mask) if found is None else found


@implements(aten.masked_scatter.default)
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Replace the elements of x where a mask is True by those of a source, in order."""
    a, s = aligned(x, source)
    if type(mask) is Tensor and _plain_on_cpu((*a, mask, *s)) and a[0].shape == mask.shape:
        found = registry.on(mask.device).replaced(a, mask, s)
        if found is not None:
            return wrap(found)
    return wrap([_scatter(c, mask, v) for c, v in zip(a, s, strict=True)])

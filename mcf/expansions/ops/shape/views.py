"""Implement views, operators that move elements, and derivatives of the latter.

Each component is viewed, and memory is shared. Derivatives add gradients of copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

from mcf.expansions.dispatch.registry import OPERATORS, VIEWS, implements, overloads, readable
from mcf.expansions.dispatch.view_functions import item, meshgrid, split, view_of
from mcf.expansions.ops.shape.movement import add_rows
from mcf.expansions.tensor import COMPONENTS, MCFTensor, maker, wrap

aten = torch.ops.aten


def on_each(func: OpOverload) -> Callable[..., Any]:
    """Return an implementation that applies `func` to each component of its first argument."""
    call = _binding(func)

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, MCFTensor):
            raise TypeError(
                f"{readable(func)}: indices and masks must be plain, got an expansion tensor"
            )
        results = [call(c, *args, **kwargs) for c in x.components]
        if isinstance(results[0], (list, tuple)):
            return [wrap(parts) for parts in zip(*results, strict=True)]
        return wrap(results)

    return implementation


# Tensor methods with the signature of the operator; calling them takes half the time.
_METHODS = frozenset(
    "clone detach diagonal expand flip gather index_select masked_select permute repeat roll rot90 "
    "select split split_with_sizes squeeze t take transpose tril triu unbind unfold unsqueeze "
    "view".split()
)


def _binding(func: OpOverload) -> Callable[..., Any]:
    """Return the fastest callable of an operator: the tensor method, or the raw operator."""
    name = func._schema.name.removeprefix("aten::")
    # `_op` skips the Python wrapper of OpOverload.
    return getattr(torch._C.TensorBase, name) if name in _METHODS else func._op


def register(*funcs: OpOverload) -> None:
    """Register operators whose first argument is an expansion tensor and the others plain."""
    for func in funcs:
        implements(func)(on_each(func))


# The step of PyTorch's `return_and_correct_aliasing` that views need, without its other checks.
share_memory: Any = torch._functionalize_unsafe_set


def register_views(*funcs: OpOverload) -> None:
    """Register view operators, applied to each component; results share the tensor's memory."""
    for func in funcs:
        OPERATORS[func] = viewed(_binding(func))


def viewed(view: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view operator's implementation, given the view of one plain tensor."""

    def views(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        own = x.__dict__
        return [view(c, *args, **kwargs) for c in COMPONENTS[own["_terms"]](own)]

    return sharing(views)


def sharing(views: Callable[..., Any]) -> Callable[..., Any]:
    """Return a view operator's implementation, given a function that views all components."""

    def implementation(x: MCFTensor, *args: Any, **kwargs: Any) -> Any:
        results = views(x, *args, **kwargs)
        if torch.is_inference_mode_enabled():
            # A view of a normal tensor must stay normal, so that both share a version counter.
            with torch.inference_mode(x.is_inference()):
                return viewing(x, results)
        return viewing(x, results)

    def viewing(x: MCFTensor, results: Any) -> Any:
        # Equal layouts of the components imply equal layouts of the views: no check is needed.
        make = maker()
        if isinstance(results[0], (list, tuple)):
            out = [make(parts) for parts in zip(*results, strict=True)]
            for each in out:
                share_memory(each, x)
            return out
        one = make(results)
        share_memory(one, x)
        return one

    return implementation


def _in_place(func: OpOverload) -> None:
    """Register an operator that changes the shape of its argument in place."""

    def implementation(x: MCFTensor, *args: Any) -> MCFTensor:
        # Try on aliases first: an error in one component must not leave others changed.
        for c in x.components:
            func(aten.alias.default(c), *args)
        for c in x.components:
            func(c, *args)
        return x

    implements(func)(implementation)


for _func in overloads("t_ transpose_ squeeze_ squeeze_.dim squeeze_.dims unsqueeze_"):
    _in_place(_func)
register_views(
    *overloads(
        "alias detach diagonal expand permute select.int split.Tensor split_with_sizes squeeze "
        "squeeze.dim squeeze.dims t transpose.int unbind.int unfold unsqueeze view _reshape_alias"
    )
)
# Operators of one expansion tensor and plain arguments.
register(
    *overloads(
        "alias_copy as_strided_copy channel_shuffle detach_copy diag_embed diagonal_backward "
        "diagonal_copy embedding expand_copy flip gather im2col index_select _unsafe_index.Tensor "
        "narrow_copy native_channel_shuffle permute_copy pixel_shuffle pixel_unshuffle repeat "
        "repeat_interleave.self_int roll rot90 select_backward select_copy.int slice_backward "
        "slice_copy.Tensor split_copy.Tensor split_with_sizes_copy squeeze_copy squeeze_copy.dim "
        "squeeze_copy.dims t_copy take tril transpose_copy.int triu unbind_copy.int unfold_copy "
        "unsafe_chunk unsafe_split.Tensor unsafe_split_with_sizes unsqueeze_copy _unsafe_view "
        "view_copy"
    )
)

_slice = aten.slice.Tensor._op
# Indexing a plain tensor takes half the time of the operator.
_ALL = slice(None)


def _sliced(c: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    if type(c) is Tensor and dim == 0:
        return c[start:end:step]
    if type(c) is Tensor and dim == 1:
        return c[_ALL, start:end:step]
    return _slice(c, dim, start, end, step)  # type: ignore[no-any-return]


OPERATORS[aten.slice.Tensor] = viewed(_sliced)


_strides: Any = torch._C.TensorBase.as_strided


def _strided(func: OpOverload) -> Any:
    """Return an implementation of `as_strided` that gives all components a new layout."""
    call = _strides if func is aten.as_strided.default else func

    def implementation(x: MCFTensor, size: Any, stride: Any, offset: int | None = None) -> Any:
        own = x.__dict__
        parts = COMPONENTS[own["_terms"]](own)
        if offset is None:
            return [call(c, size, stride, None) for c in parts]
        # The tensor's offset is that of its first component; others may have different offsets.
        ahead = offset - parts[0].storage_offset()
        return [call(c, size, stride, ahead + c.storage_offset()) for c in parts]

    return implementation


_as_strided = _strided(aten.as_strided.default)


OPERATORS[aten.as_strided.default] = sharing(_as_strided)


@implements(aten.as_strided_.default)
def as_strided_(x: MCFTensor, size: Any, stride: Any, storage_offset: int | None = None) -> Any:
    """Change the tensor's layout in place."""
    # Try on aliases first: an error in one component must not leave others changed.
    _as_strided(x, size, stride, storage_offset)
    _strided(aten.as_strided_.default)(x, size, stride, storage_offset)
    return x


def resize_(x: MCFTensor, size: Any, *, memory_format: Any = None) -> MCFTensor:
    """Resize the tensor in place; storages that are too small grow.

    Raises:
        RuntimeError: as PyTorch's, if a storage cannot grow, or if components share a storage and
        would overlap.
    """
    parts = x.components
    length = parts[0].element_size() * math.prod(size)
    for k, c in enumerate(parts):
        memory, start = c.untyped_storage(), c.element_size() * c.storage_offset()
        if length and start + length > memory.nbytes() and not memory.resizable():
            raise RuntimeError("Trying to resize storage that is not resizable")
        for other in parts[:k]:
            apart = abs(int(start - other.element_size() * other.storage_offset())) >= length
            if not apart and other.untyped_storage()._cdata == memory._cdata:
                raise RuntimeError(
                    "resize_: components share a storage and would overlap with size "
                    f"{list(size)}; resize x.clone()"
                )
    for c in parts:
        aten.resize_.default(c, size, memory_format=memory_format)
    # The wrapper tensor has no data, but its storage has a size.
    share_memory(x, maker()(parts))
    first = parts[0]
    with no_dispatch():
        _restrided(x, first.size(), first.stride(), first.storage_offset())
    return x


def resize_as_(x: MCFTensor, like: Tensor, *, memory_format: Any = None) -> MCFTensor:
    """Resize the tensor in place to the size of another one."""
    return resize_(x, like.shape, memory_format=memory_format)


_restrided: Any = torch._C.TensorBase.as_strided_
# Not by `implements`: correcting aliases would replace the storage by one on another device.
OPERATORS[aten.resize_.default], OPERATORS[aten.resize_as_.default] = resize_, resize_as_


# Functions that only view: no function replaces them above autograd, and autocast ignores them.
_NAMES = (
    "adjoint broadcast_to chunk diagonal expand flatten movedim moveaxis narrow permute ravel "
    "reshape select split squeeze swapaxes swapdims t transpose unbind unflatten unfold unsqueeze "
    "view"
).split()
# These copy if there is no such view.
_COPYING = frozenset({"flatten", "ravel", "reshape"})
for _room in (torch, Tensor):
    for _name in _NAMES:
        if hasattr(_room, _name):
            _view = getattr(_room, _name)
            VIEWS[_view] = view_of(_view, _name in _COPYING, split if _name == "split" else None)
for _name in ("H", "T", "mH", "mT"):
    _get = getattr(Tensor, _name).__get__
    VIEWS[_get] = view_of(_get)
VIEWS[Tensor.__getitem__] = item


def _as_another(view: Any) -> Any:
    """Return the `*_as` variant of a view, which takes the shape from another tensor."""

    def call(*args: Any, **named: Any) -> Any:
        if named or len(args) != 2 or not isinstance(args[1], Tensor):
            return NotImplemented
        return view(args[0], args[1].shape)

    return call


for _name in ("expand", "view"):
    VIEWS[getattr(Tensor, _name + "_as")] = _as_another(VIEWS[getattr(Tensor, _name)])
VIEWS[torch.meshgrid] = meshgrid


def spread(move: Callable[[Tensor], Tensor], grad: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the gradient of x with a shape, given the gradient `grad` of y = move(x).

    `move` is applied to element numbers, from 1, to learn where elements go; it may insert zeros.
    """
    # float64, since some of these operators support only floats.
    positions = torch.arange(1, math.prod(shape) + 1, dtype=torch.float64, device=grad.device)
    place = move(positions.reshape(list(shape))).reshape(-1).to(torch.int64) - 1
    kept = (place >= 0).nonzero().flatten()
    flat = add_rows(grad.new_zeros((math.prod(shape),)), place[kept], grad.reshape(-1)[kept])
    return flat.reshape(list(shape))


@implements(aten.unfold_backward.default)
def unfold_backward(grad: Tensor, sizes: list[int], dim: int, size: int, step: int) -> Tensor:
    """Return the gradient of `unfold`: add up windows along a dimension."""
    return spread(lambda x: x.unfold(dim, size, step), grad, sizes)


@implements(aten.col2im.default)
def col2im(
    x: Tensor,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Tensor:
    """Combine blocks into an image; overlapping blocks are added."""
    batch = x if x.dim() == 3 else x[None]
    channels = batch.shape[1] // math.prod(kernel_size)

    def blocks(image: Tensor) -> Tensor:
        return aten.im2col.default(image, kernel_size, dilation, padding, stride)  # type: ignore[no-any-return]

    out = spread(blocks, batch, [batch.shape[0], channels, *output_size])
    return out if x.dim() == 3 else out[0]


@implements(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Return x with elements of the flattened tensor replaced, or added to."""
    if index.numel() != source.numel():
        raise RuntimeError(
            "put: index and source must have the same number of elements, got "
            f"{index.numel()} and {source.numel()}"
        )
    place, values = index.reshape(-1), source.reshape(-1)
    place = torch.where(place < 0, place + x.numel(), place)
    if accumulate:
        return add_rows(x.reshape(-1), place, values).reshape(x.shape)
    out = x.clone().reshape(-1)
    out[place] = values
    return out.reshape(x.shape)


@implements(aten.masked_scatter_backward.default)
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: list[int]) -> Tensor:
    """Return the gradients where the mask is True, in order; 0 for unused source elements."""
    out = grad.new_zeros((math.prod(sizes),))
    taken = grad.masked_select(mask.expand(grad.shape))
    out[: taken.numel()] = taken
    return out.reshape(sizes)


def _nearest(name: str) -> None:
    forward = getattr(aten, name).default

    def backward(
        grad: Tensor, output_size: list[int], input_size: list[int], *scales: Any, **named: Any
    ) -> Tensor:
        chosen = list(scales) + list(named.values())
        return spread(lambda x: forward(x, output_size, *chosen), grad, input_size)

    implements(getattr(aten, f"{name}_backward").default)(backward)


for _dims in (1, 2, 3):
    _nearest(f"upsample_nearest{_dims}d")
    _nearest(f"_upsample_nearest_exact{_dims}d")

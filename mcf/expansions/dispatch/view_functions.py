"""Create views of expansions below the dispatcher where autograd does not record.

An expansion tensor has the sizes, strides and storage offset of its first component. Torch's own
view of it therefore has the right sizes, strides, base, memory and version counter. The view gets
the type of expansions and the components' views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.recorded import recorded
from mcf.expansions.tensor import COMPONENTS, MCFTensor, hold

# A guard: while it exists, operators do not reach `__torch_dispatch__`.
_Below: Any = torch._C._DisableTorchDispatch
_as: Any = torch._C.TensorBase.as_subclass
_strides: Any = torch._C.TensorBase.as_strided

# Types of entries of an index whose result is a view.
PLACES = frozenset({int, slice, type(None), type(...)})
_ENDS = frozenset({int, type(None)})
_LISTS = frozenset({list, tuple, torch.Size})


def view_of(
    function: Callable[..., Any], copies: bool = False, straight: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Make a fast implementation of a torch function that views its first argument.

    Its other arguments are ints and lists of ints. It calls torch's function where autograd or a
    mode observes, and for other arguments. Keywords are passed on to torch.

    Args:
        function: torch's function.
        copies: whether it copies tensors that are not contiguous.
        straight: the function for positional arguments, where torch's checks types again.
    """
    unnamed = straight or function

    def call(*args: Any, **named: Any) -> Any:
        if len(args) > 1 and not all(map(_is_number, args[1:])):
            return function(*args, **named)
        if named and not (args and all(map(_is_number, named.values()))):
            return NotImplemented
        x = args[0]
        if recorded(x, asked=False):
            return NotImplemented if named else function(*args)
        first = x.__dict__["_c0"]
        if type(first) is not Tensor or (copies and not first.is_contiguous()):
            return NotImplemented if named else function(*args)
        return _viewed(function, args, named) if named else _viewed(unnamed, args)

    return call


def split(*args: Any) -> Any:
    """Split a tensor as `Tensor.split` does after its check of types."""
    if not 1 < len(args) < 4:
        return _split(*args)
    return _pieces(*args) if type(args[1]) is int else _sections(*args)


_split: Any = Tensor.split
_pieces: Any = torch._VF.split  # type: ignore[attr-defined]
_sections: Any = torch._VF.split_with_sizes


def _is_number(x: Any) -> bool:
    return type(x) is int or (type(x) in _LISTS and all(type(n) is int for n in x))


def item(x: Any, key: Any) -> Any:
    """Return x[key] as a view for ints, slices, None and `...`; NotImplemented for other keys."""
    keys = key if type(key) is tuple else (key,)
    for k in keys:
        if type(k) is slice:
            if not _ENDS.issuperset((type(k.start), type(k.stop), type(k.step))):
                # A bound with `__index__` may be an expansion.
                return _item(x, key) if PLACES.issuperset(map(type, keys)) else NotImplemented
        elif type(k) not in PLACES:
            return NotImplemented
    if recorded(x, asked=False) or type(x.__dict__["_c0"]) is not Tensor:
        return _item(x, key)
    if len(keys) < 2:
        return _viewed(_item, (x, key))
    # Torch creates one view per key; further components need only the final one.
    below = _Below()
    try:
        made = _as(_item(x, key), MCFTensor)
    finally:
        del below
    return _laid_out(made, x)


_item: Any = torch._C.TensorBase.__getitem__


def meshgrid(*tensors: Any, indexing: Any = None) -> Any:
    """Return views of vectors expanded to a grid; NotImplemented where autograd records."""
    if indexing != "ij" or not tensors:
        return NotImplemented
    like = None
    for x in tensors:
        if recorded(x, asked=False):
            return NotImplemented
        first = x.__dict__["_c0"]
        if type(first) is not Tensor or first.ndim != 1:
            return NotImplemented
        like = first if like is None else like
        if first.dtype is not like.dtype or first.device != like.device:
            return NotImplemented
    size = [x.__dict__["_c0"].shape[0] for x in tensors]
    if min(size) < 2:
        # Torch chooses other strides for dimensions of one element.
        return _grid_of_few(tensors, size)
    made = []
    for k, x in enumerate(tensors):
        own = x.__dict__
        steps = [0] * len(size)
        steps[k] = own["_c0"].stride(0)
        below = _Below()
        try:
            view = _as(_strides(x, size, steps), MCFTensor)
        finally:
            del below
        parts = COMPONENTS[own["_terms"]](own)
        hold(view.__dict__, [_strides(c, size, steps) for c in parts])
        made.append(view)
    return tuple(made)


def _grid_of_few(tensors: Sequence[Any], size: list[int]) -> Any:
    made, ends = [], len(size) - 1
    for k, x in enumerate(tensors):
        below = _Below()
        try:
            view = _as(x.view([1] * k + [-1] + [1] * (ends - k)).expand(size), MCFTensor)
        finally:
            del below
        made.append(_laid_out(view, x))
    return tuple(made)


_NONE: dict[str, Any] = {}


def _viewed(function: Callable[..., Any], args: Any, named: dict[str, Any] = _NONE) -> Any:
    """Apply a view function to an expansion and to its components."""
    x, *others = args
    below = _Below()
    try:
        found = function(*args, **named)
        if found is x:
            return x
        if type(found) is Tensor:
            made = _as(found, MCFTensor)
        else:
            made = type(found)([_as(view, MCFTensor) for view in found])
    finally:
        del below
    own = x.__dict__
    terms = own["_terms"]
    views = [function(c, *others, **named) for c in COMPONENTS[terms](own)]
    if type(made) is MCFTensor:
        hold(made.__dict__, views)
    else:
        for one, parts in zip(made, zip(*views, strict=True), strict=True):
            hold(one.__dict__, parts)
    return made


def _laid_out(view: MCFTensor, x: MCFTensor) -> MCFTensor:
    """Give a view of x components with the view's sizes, strides and offset."""
    own = x.__dict__
    parts = COMPONENTS[own["_terms"]](own)
    size, stride, offset = view.size(), view.stride(), view.storage_offset()
    # The tensor's offset is its first component's; other components may have other offsets.
    ahead = offset - parts[0].storage_offset()
    hold(view.__dict__, [_strides(c, size, stride, ahead + c.storage_offset()) for c in parts])
    return view

"""Implement joining, indexing, masking and scattering, with indices that may repeat.

Mixed operands are promoted. Values for one index are summed pairwise in the order of their
positions, then added to x. Results are reproducible bit for bit on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mcf.expansions.conversion import converted, plain, reformat
from mcf.expansions.creation import linspace
from mcf.expansions.dispatch.registry import OPERATORS, UnsupportedError, implements, overloads
from mcf.expansions.dispatch.widening import fitted, roomy
from mcf.expansions.launch.operations import selected
from mcf.expansions.promotion import aligned, result_format
from mcf.expansions.tensor import COMPONENTS, Components, MCFTensor, wrap
from mcf.kernels.operators import WHERE

aten = torch.ops.aten


def check_places(x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raise PyTorch's error if shapes of x, index and source do not allow scattering."""
    own, given = (torch.empty(t.shape, device="meta") for t in (x, source))
    aten.scatter_add.default(own, dim, index.to("meta"), given)


def check_slices(name: str, x: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    """Raise unless the index has one entry per slice of the source, with slices shaped as x's."""
    if index.dim() > 1 or index.is_floating_point() or index.dtype is torch.bool:
        raise RuntimeError(
            f"{name}: index must be a vector of integers, got {index.dtype} of shape "
            f"{list(index.shape)}"
        )
    size = source.shape[dim] if source.ndim else 1
    if index.numel() != size:
        raise RuntimeError(
            f"{name}: index must have the source's {size} slices of dimension {dim}, got "
            f"{index.numel()}"
        )
    if source.ndim != x.ndim or source.movedim(dim, 0).shape[1:] != x.movedim(dim, 0).shape[1:]:
        raise RuntimeError(
            f"{name}: source must have x's shape {list(x.shape)} but for dimension {dim}, got "
            f"{list(source.shape)}"
        )


def _sum_by_place(values: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
    """Sum values [m, ...] with equal indices `place` [m]; return sums and unique indices."""
    order = torch.argsort(place, stable=True)
    place, values = place[order], values[order]
    while len(place) > 1:
        # Within a run of equal indices, values of odd rank are added to their predecessors.
        index = torch.arange(len(place), device=place.device)
        first = torch.ones_like(place, dtype=torch.bool)
        first[1:] = place[1:] != place[:-1]
        rank = index - torch.cummax(torch.where(first, index, 0), 0).values
        odd = rank % 2 == 1
        if not bool(odd.any()):
            break
        right = odd.nonzero().flatten()
        values = values.clone()
        values[right - 1] = values[right - 1] + values[right]
        keep = (~odd).nonzero().flatten()
        place, values = place[keep], values[keep]
    return values, place


def add_rows(x: Tensor, place: Tensor, values: Tensor) -> Tensor:
    """Return x [r, ...] with values [m, ...] added to its rows `place` [m]."""
    if len(place) == 0 or place.is_meta:
        return wrap(aligned(x, values)[0]).clone()
    # Negative indices are refused: they would not be merged with their positive form.
    if bool(((place < 0) | (place >= x.shape[0])).any()):
        raise IndexError(
            f"index out of range: expected 0 to {x.shape[0] - 1}, got {int(place.min())} to "
            f"{int(place.max())}"
        )
    own, v = aligned(x, values)
    x = wrap(own)
    summed, where = _sum_by_place(wrap(v), place)
    out = x.clone()
    out[where] = x[where] + summed
    return out


@implements(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, alpha: Any = 1) -> Tensor:
    """Return x with alpha times the source's slices added to its slices."""
    check_slices("index_add", x, dim, index, source)
    source = source if alpha == 1 else wrap(aligned(x, source)[1]) * alpha
    if x.ndim == 0:
        return index_add(x[None], 0, index.reshape(1), source.reshape(1))[0]
    moved = add_rows(x.movedim(dim, 0), index.reshape(-1), source.movedim(dim, 0))
    return moved.movedim(0, dim).contiguous()


@implements(aten.index_put.default)
def index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Return x after x[indices] = values, or += values with `accumulate`."""
    if not accumulate:
        out = x.clone()
        aten.index_put_.default(out, list(indices), values)
        return out
    positions = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    place = aten.index.Tensor(positions, list(indices))
    _, v = aligned(x, values)
    spread = wrap([c.expand(place.shape) for c in v]).reshape(-1)
    return add_rows(x.reshape(-1), place.reshape(-1), spread).reshape(x.shape)


@implements(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """Return x with the source's elements added at the indices along a dimension."""
    check_places(x, dim, index, src)
    if index.numel() == 0:
        return wrap(aligned(x, src)[0]).clone()
    if 0 in (x.ndim, index.ndim, src.ndim):
        own, places, given = (t if t.ndim else t.reshape(1) for t in (x, index, src))
        return scatter_add(own, dim, places, given).reshape(x.shape)
    positions = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    area = tuple(slice(0, n) for n in index.shape)
    whole = [slice(0, n) for n in index.shape]
    whole[dim] = slice(None)
    place = positions[tuple(whole)].gather(dim, index)
    return add_rows(x.reshape(-1), place.reshape(-1), src[area].reshape(-1)).reshape(x.shape)


@implements(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_by_freq: bool
) -> Tensor:
    """Return the gradient of an embedding's weight."""
    if scale_by_freq:
        raise NotImplementedError("embedding: scale_grad_by_freq is not supported on MCFTensor")
    width = grad.shape[-1]
    place, rows = indices.reshape(-1), grad.reshape(-1, width)
    used = (place != padding_idx).nonzero().flatten()
    return add_rows(grad.new_zeros((num_weights, width)), place[used], rows[used])


def _turns(index: Tensor, dim: int) -> Tensor:
    """Return the number of earlier elements along the dimension with the same index."""
    ordered, order = index.sort(dim=dim, stable=True)
    places = torch.arange(index.shape[dim], device=index.device)
    places = places.reshape(-1, *(1 for _ in index.shape[dim + 1 :])).expand_as(index)
    begins = torch.ones_like(index, dtype=torch.bool)
    if index.shape[dim] > 1:
        rest = ordered.narrow(dim, 1, index.shape[dim] - 1)
        before = ordered.narrow(dim, 0, index.shape[dim] - 1)
        begins.narrow(dim, 1, index.shape[dim] - 1).copy_(rest != before)
    first = torch.where(begins, places, 0).cummax(dim).values
    return torch.zeros_like(index).scatter(dim, order, places - first)


def _folded(
    x: Any, dim: int, index: Tensor, source: Any, combine: Callable[[Any, Any], Any]
) -> Any:
    """Combine the elements of `source` into x at their indices, in the order of `source`.

    Each turn handles one repetition of all indices, so its indices are unique. Elements of other
    turns go to one extra slot, which is dropped.
    """
    turns, size = _turns(index, dim), x.shape[dim]
    spare = list(x.shape)
    spare[dim] = 1
    out = torch.cat([x, x.new_zeros(spare)], dim)
    for turn in range(int(turns.max()) + 1 if turns.numel() else 0):
        places = torch.where(turns == turn, index, size)
        # The value and the derivative of the extra slot are never used.
        out = out.scatter(dim, places, combine(out.gather(dim, places), source))
    return out.narrow(dim, 0, size)


_COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "mean": lambda a, b: a + b,
    "amax": torch.maximum,
    "amin": torch.minimum,
}
_NEUTRAL = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "amax": -torch.inf, "amin": torch.inf}


@implements(torch.scatter_reduce, torch.Tensor.scatter_reduce)
def scatter_reduce(
    input: Any, dim: int, index: Tensor, src: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Reduce the elements of `src` with the same index, together with the input there.

    `reduce` is "sum", "prod", "mean", "amax" or "amin".
    """
    if reduce not in _COMBINE:
        raise RuntimeError(
            f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}."
        )
    check_places(input, dim, index, src)
    input = reformat(input, *result_format(input, src))
    if index.numel() == 0:
        # Nothing is written, and the source's gradient is 0.
        return input.scatter(dim, index, src.reshape(-1)[:0].reshape(index.shape))
    if 0 in (input.dim(), index.dim(), src.dim()):
        x, places, given = (t if t.dim() else t.reshape(1) for t in (input, index, src))
        made = scatter_reduce(x, dim, places, given, reduce, include_self=include_self)
        return made.reshape(input.shape)
    dim %= input.dim()
    source = src[tuple(slice(0, n) for n in index.shape)]
    hit = torch.zeros(input.shape, dtype=torch.int64, device=input.device)
    hit = hit.scatter_add(dim, index, torch.ones_like(index))
    start = input
    if not include_self:
        start = torch.where(hit > 0, input.new_full((), _NEUTRAL[reduce]), input)
    # Elements of x beyond the index's size in other dimensions are not written.
    room = tuple(slice(0, n if d != dim else None) for d, n in enumerate(index.shape))
    inner = _folded(start[room], dim, index, source, _COMBINE[reduce])
    out = start.clone()
    out[room] = inner
    if reduce == "mean":
        out = out / (hit + int(include_self)).clamp(min=1)
    return out


@implements(torch.index_reduce, torch.Tensor.index_reduce)
def index_reduce(
    input: Any, dim: int, index: Tensor, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Reduce whole slices as `scatter_reduce`, by "prod", "mean", "amax" or "amin"."""
    if reduce not in ("prod", "mean", "amax", "amin"):
        raise RuntimeError(
            "index_reduce(): Expected reduce to be one of prod, mean, amax or amin but got "
            f"{reduce}."
        )
    check_slices("index_reduce", input, dim, index, source)
    if input.dim() == 0:
        made = index_reduce(
            input.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self
        )
        return made.reshape(())
    dim %= input.dim()
    places = index.reshape(-1, *(1 for _ in source.shape[dim + 1 :])).expand(source.shape)
    return scatter_reduce(input, dim, places, source, reduce, include_self=include_self)


def _check_bags(input: Tensor, offsets: Tensor, rows: int) -> None:
    """Raise PyTorch's errors for invalid offsets and indices."""
    if len(offsets) and int(offsets[0]) != 0:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from "
            f"position 0. However, got {int(offsets[0])}"
        )
    if len(offsets) and int(offsets[-1]) > len(input):
        raise RuntimeError(
            f"offsets[-1] can not be greater than input's length {len(input)} but got offsets[-1] "
            f"of {int(offsets[-1])}"
        )
    outside = input[(input < 0) | (input >= rows)]
    if len(outside):
        raise RuntimeError(
            "embedding_bag: Expected idx >= 0 && idx < num_embeddings but found idx to be "
            f"{int(outside[0])}"
        )


def _bags(input: Tensor, offsets: Tensor, include_last_offset: bool) -> tuple[Tensor, int]:
    """Return the bag of each index, and the number of bags."""
    starts = offsets[:-1] if include_last_offset else offsets
    places = torch.arange(len(input), device=input.device)
    return torch.searchsorted(starts.to(torch.int64), places, right=True) - 1, len(starts)


@implements(torch.embedding_bag)
def embedding_bag(
    weight: Any,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Return sums (mode 0), means (1) or maxima (2) of each bag's rows, and 0 for empty bags."""
    given, weight = weight, roomy(weight)
    if scale_grad_by_freq:
        raise UnsupportedError(
            "torch.embedding_bag: scale_grad_by_freq=True is not supported on mcf.MCFTensor"
        )
    _check_bags(indices, offsets, len(weight))
    bag, count = _bags(indices, offsets, include_last_offset)
    kept = torch.ones_like(bag, dtype=torch.bool)
    if padding_idx is not None:
        if not -len(weight) <= padding_idx < len(weight):
            raise RuntimeError(
                f"padding_idx must be within the number of embeddings, -{len(weight)} through "
                f"{len(weight) - 1}, but got {padding_idx}"
            )
        kept = indices != padding_idx % len(weight)
    bag, rows = bag[kept], weight[indices[kept]]
    if per_sample_weights is not None:
        rows = rows * roomy(per_sample_weights[kept]).unsqueeze(1)
    sizes = torch.zeros(count, dtype=torch.int64, device=bag.device)
    sizes = sizes.index_add(0, bag, torch.ones_like(bag))
    out = rows.new_zeros(count, weight.shape[1])
    # For no rows use the sum, which has a derivative.
    if mode == 2 and len(bag):
        out = index_reduce(out, 0, bag, rows, "amax", include_self=False)
    else:
        out = out.index_add(0, bag, rows)
        out = out / sizes.clamp(min=1).unsqueeze(1) if mode == 1 else out
    return fitted(out, given, per_sample_weights), bag, sizes, sizes


@implements(torch.bilinear)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return sum_ij x_i w_kij y_j + b_k."""
    given = input1, input2, weight, bias
    input1, input2, weight = map(roomy, given[:3])
    out, left, _ = weight.shape
    if input1.shape[:-1] != input2.shape[:-1]:
        raise RuntimeError(
            f"bilinear(): input batch dimensions do not match: got {list(input1.shape)} and "
            f"{list(input2.shape)}"
        )
    rows = input1 @ weight.transpose(0, 1).reshape(left, -1)
    rows = rows.unflatten(-1, (out, -1))
    made = (rows @ input2.unsqueeze(-1)).squeeze(-1)
    return fitted(made if bias is None else made + bias, *given)


@implements(aten.block_diag.default)
def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """Return the block diagonal matrix of some matrices."""
    parts = aligned(*tensors)
    return wrap([aten.block_diag.default(list(c)) for c in zip(*parts, strict=True)])


# `_op` skips the Python wrapper of OpOverload.
_cat, _stack = aten.cat.default._op, aten.stack.default._op


def _parts(tensors: Sequence[Tensor]) -> Sequence[Components]:
    """Return the components of tensors to be joined, promoted to one format."""
    found = []
    for x in tensors:
        if type(x) is not MCFTensor:
            return aligned(*tensors)
        own = x.__dict__
        found.append(COMPONENTS[own["_terms"]](own))
    first, terms = found[0][0].dtype, len(found[0])
    alike = all(c[0].dtype is first and len(c) == terms for c in found)
    return found if alike else aligned(*tensors)


@implements(aten.cat.default)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along a dimension."""
    return wrap([_cat(list(c), dim) for c in zip(*_parts(tensors), strict=True)])


@implements(aten.stack.default)
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors along a new dimension."""
    return wrap([_stack(list(c), dim) for c in zip(*_parts(tensors), strict=True)])


@implements(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(condition: Tensor, x: Any, y: Any) -> Tensor:
    """Return x where the condition is True, y elsewhere."""
    found = selected(WHERE, condition, x, y)
    if found is not None:
        return found
    if isinstance(condition, MCFTensor):
        raise RuntimeError(
            "where expected condition to be a boolean tensor, but got an expansion tensor of "
            f"{condition.dtype}"
        )
    a, b = aligned(x, y)
    return wrap([aten.where.self(condition, u, v) for u, v in zip(a, b, strict=True)])


@implements(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    """Replace the elements of x where the mask is True by a number."""
    # A value with dimensions is refused below, as in PyTorch.
    if isinstance(x, MCFTensor) and not (isinstance(value, Tensor) and value.dim()):
        found = selected(WHERE, mask, value, x)
        if found is not None and found.dtype is x.dtype and found.terms == x.terms:
            return found
    if isinstance(mask, MCFTensor):
        raise RuntimeError(
            f"masked_fill only supports boolean masks, but got an expansion tensor of {mask.dtype}"
        )
    a, v = aligned(x, value)
    return wrap([aten.masked_fill.Tensor(c, mask, w) for c, w in zip(a, v, strict=True)])


@implements(aten.constant_pad_nd.default)
def constant_pad_nd(x: MCFTensor, pad: list[int], value: Any = 0) -> Tensor:
    """Pad x with a number."""
    a, v = aligned(x, value)
    inside = aten.constant_pad_nd.default(torch.ones_like(a[0], dtype=torch.bool), pad, False)
    return wrap(
        [
            torch.where(inside, aten.constant_pad_nd.default(c, pad, 0), w)
            for c, w in zip(a, v, strict=True)
        ]
    )


def _with_source(func: OpOverload, position: int) -> None:
    """Register an operator of x and, at a position, a source of x's dtype: a tensor or a number."""

    def implementation(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        a, s = aligned(x, args[position])
        before, after = args[:position], args[position + 1 :]
        return wrap([func(c, *before, v, *after, **kwargs) for c, v in zip(a, s, strict=True)])

    implements(func)(implementation)


for _func in overloads("select_scatter slice_scatter diagonal_scatter as_strided_scatter"):
    _with_source(_func, 0)
_with_source(aten.index_fill.int_Tensor, 2)
OPERATORS[aten.index_fill.int_Scalar] = OPERATORS[aten.index_fill.int_Tensor]


# If an index repeats, PyTorch's threads decide which value is written. The choice could differ
# between components, so it is made once, by writing the values' positions.


def _numbered(values: Tensor) -> Tensor:
    """Return the linear index of each element, as an integer tensor of the same shape."""
    return torch.arange(values.numel(), device=values.device).reshape(values.shape)


def _taken(parts: Sequence[Tensor], number: Tensor) -> Components:
    """Return the elements at flat positions, of each component."""
    return tuple(c.reshape(-1)[number] for c in parts)


def _placed(write: Any, read: Any) -> None:
    """Register an operator that writes slices or elements of a source to indices of a dimension."""

    def implementation(x: Any, dim: int, index: Tensor, source: Any) -> Tensor:
        a, s = aligned(x, source)
        if len(s) > 1:
            place = torch.empty(a[0].shape, dtype=torch.int64, device=a[0].device)
            s = _taken(s, read(write(place, dim, index, _numbered(s[0])), dim, index))
        return wrap([write(c, dim, index, v) for c, v in zip(a, s, strict=True)])

    implements(write)(implementation)


_placed(aten.scatter.src, aten.gather.default)
_placed(aten.index_copy.default, aten.index_select.default)


@implements(aten.scatter.value)
def scatter_value(x: MCFTensor, dim: int, index: Tensor, value: Any) -> Tensor:
    """Return x with a number written at the indices."""
    a, v = aligned(x, value)
    return wrap(
        [aten.scatter.src(c, dim, index, w.expand(index.shape)) for c, w in zip(a, v, strict=True)]
    )


@implements(aten.index_put_.default, aten._index_put_impl_.default)
def index_put_(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any
) -> Tensor:
    """Set x[indices] = values, rounded to x's format; += with `accumulate`."""
    if not isinstance(x, MCFTensor):
        assert isinstance(values, MCFTensor)
        return aten.index_put_.default(x, indices, plain(values, x.dtype), accumulate)  # type: ignore[no-any-return]
    if accumulate:
        return torch.ops.aten.copy_.default(x, index_put(x, indices, values, True))  # type: ignore[no-any-return]
    parts = converted(values, x.dtype, x.terms)
    masks = all(i is None or i.dtype in (torch.bool, torch.uint8) for i in indices)
    if len(parts) > 1 and parts[0].numel() > 1 and not masks:
        place = torch.empty(x.shape, dtype=torch.int64, device=x.device)
        aten.index_put_.default(place, indices, _numbered(parts[0]))
        parts = _taken(parts, aten.index.Tensor(place, indices))
    for c, v in zip(x.components, parts, strict=True):
        # The values may be a view of x.
        aten.index_put_.default(c, indices, v.clone())
    return x


def _number(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.dim():
        raise RuntimeError(f"linspace: start and end must have no dimensions, got {value.dim()}")
    if torch.is_grad_enabled() and value.requires_grad:
        raise RuntimeError("linspace: start and end have no derivatives; detach them")
    value = value.detach()
    return value.to_fractions() if isinstance(value, MCFTensor) else value.item()


@implements(torch.linspace)
def _linspace(
    start: Any, end: Any, steps: int, *, dtype: Any = None, device: Any = None, **kwargs: Any
) -> Any:
    """Return `mcf.linspace` between the exact values, in the format of the first expansion."""
    like = start if isinstance(start, MCFTensor) else end
    return linspace(
        _number(start),
        _number(end),
        steps,
        terms=like.terms,
        dtype=dtype or like.dtype,
        device=device or like.device,
        requires_grad=kwargs.get("requires_grad", False),
    )


@implements(torch.logspace)
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, **kwargs: Any) -> Any:
    """Return the base to the power of the numbers of `linspace`."""
    return torch.pow(base, _linspace(start, end, steps, **kwargs))

"""Implement quantiles, with exact fractions as positions and weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.creation import tensor
from mcf.expansions.dispatch.recorded import watched
from mcf.expansions.dispatch.registry import INTO, UnsupportedError, implements
from mcf.expansions.dispatch.torch_functions import forward
from mcf.expansions.ops.arithmetic.constants import in_format
from mcf.expansions.ops.forms.in_place import computed_into
from mcf.expansions.ops.forms.inside_transforms import batched, example, held, implements_inside
from mcf.expansions.ops.order.order import decided, kth, not_empty
from mcf.expansions.tensor import MCFTensor
from mcf.kernels.row_tasks import along

WAYS = ("linear", "lower", "higher", "midpoint", "nearest")


def _probabilities(q: Any) -> tuple[list[Fraction], bool]:
    """Return the numbers q as fractions, and whether q is a list."""
    if isinstance(q, Tensor):
        q = q.detach()
        given = q.to_fractions() if isinstance(q, MCFTensor) else q.tolist()
    else:
        given = q
    many = isinstance(given, list)
    numbers = given if many else [given]
    for number in numbers:
        if not 0 <= number <= 1:
            raise RuntimeError(f"quantile: q must be in [0, 1], got {number}")
    return [Fraction(number) for number in numbers], many


def _place(q: Fraction, count: int, way: str) -> tuple[int, Fraction]:
    """Return the lower index among `count` sorted elements, and the weight of the next one."""
    position = q * max(count - 1, 0)
    low = math.floor(position)
    weight = position - low
    if weight == 0 or way == "lower":
        return low, Fraction(0)
    if way == "higher":
        return low + 1, Fraction(0)
    if way == "nearest":
        return round(position), Fraction(0)
    return low, Fraction(1, 2) if way == "midpoint" else weight


# In a row of at least MANY elements, selecting up to _RANKS ranks is faster than sorting.
MANY, _RANKS = 1 << 18, 4


def _selected(rows: Any) -> bool:
    """Return whether elements are selected by rank: one large row."""
    if type(rows) is not MCFTensor or rows.numel() < MANY or watched():
        return False
    return decided(rows.components[0])


def _at_rank(ordered: Any, k: Any) -> Any:
    """Return the elements at a rank of each row, or at one for all rows."""
    if isinstance(k, int):
        return ordered.select(-1, k)
    return ordered.gather(-1, k[..., None]).squeeze(-1)


def _ordered(rows: Any, ranks: int) -> Callable[[Any], Any]:
    """Return a function from ranks (from 0) in each row to the elements of a stable sort.

    A rank is an integer for all rows, or a tensor.
    """
    if ranks > _RANKS or not _selected(rows):
        return functools.partial(_at_rank, rows.sort(-1).values)
    plain = rows.detach()

    @functools.cache
    def element(k: int) -> Any:
        return rows[kth(plain, k + 1, 0)[0]]

    return lambda k: element(int(k))


def _checked(x: Any, q: Any, way: str) -> tuple[list[Fraction], bool]:
    """Return the numbers q as fractions, and whether q is a list; check all arguments."""
    if way not in WAYS:
        raise RuntimeError(f"quantile: interpolation must be one of {WAYS}, got {way!r}")
    wanted = _probabilities(q)
    if x.numel() == 0:
        raise RuntimeError("quantile: the input must not be empty")
    return wanted


def _rows(x: Any, dim: int | None) -> tuple[Any, list[int]]:
    """Return x with the reduced dimension last, and the result's shape with keepdim."""
    if dim is None:
        return x.reshape(-1), [1] * x.dim()
    along(x.shape or (1,), dim)
    rows = x.movedim(dim, -1) if x.dim() else x.reshape(1)
    return rows, [1 if d == dim % max(x.dim(), 1) else n for d, n in enumerate(x.shape)]


def _between(a: Any, b: Any, weight: Any) -> Any:
    """Return a + weight (b - a); a if both are equal, including infinities."""
    same = a == b
    return torch.where(same, a, a + weight * torch.where(same, 0, b - a))


def _results(
    at: Callable[[Any], Any],
    placed: Callable[[Fraction], tuple[Any, Any, Any]],
    bad: Any,
    wanted: tuple[list[Fraction], bool],
    shape: list[int] | None,
) -> Any:
    """Return quantiles.

    Args:
        at: maps ranks in each row to the elements.
        placed: maps a quantile's number to two ranks and the weight of the second one.
        bad: whether the quantiles of a row are NaN.
        wanted: the numbers, and whether they are a list.
        shape: the shape of a result, or None to keep it.
    """
    results = []
    for number in wanted[0]:
        low, high, weight = placed(number)
        value = _between(at(low), at(high), weight).masked_fill(bad, float("nan"))
        results.append(value if shape is None else value.reshape(shape))
    return torch.stack(results) if wanted[1] else results[0]


def _quantile(x: Any, q: Any, dim: int | None, keepdim: bool, way: str, skip: bool) -> Any:
    wanted = _checked(x, q, way)
    rows, shape = _rows(x, dim)
    nan = rows.isnan()
    counts = (~nan).sum(-1) if skip else None
    lengths = [*map(int, counts.unique())] if counts is not None else []

    def placed(number: Fraction) -> tuple[Any, Any, Any]:
        if counts is None:
            first, share = _place(number, rows.shape[-1], way)
            return first, first + (share > 0), tensor(share, x.terms, x.dtype, x.device)
        low: Any = torch.zeros_like(counts)
        weight: Any = tensor(torch.zeros_like(counts, dtype=torch.float32), x.terms, x.dtype)
        for count in lengths:
            index, share = _place(number, count, way)
            of_rows = counts == count
            low = torch.where(of_rows, index, low)
            weight = torch.where(of_rows, tensor(share, x.terms, x.dtype, x.device), weight)
        return low, torch.where(weight > 0, low + 1, low), weight

    bad = nan.any(-1) if counts is None else counts == 0
    at = _ordered(rows, 2 * len(wanted[0]))
    return _results(at, placed, bad, wanted, shape if keepdim else None)


def _register(name: str, skip: bool) -> None:
    """Register the q-quantiles: NaN if any element is NaN, or of the others if `skip`."""

    def quantile(
        input: Any,
        q: Any,
        dim: int | None = None,
        keepdim: bool = False,
        *,
        interpolation: str = "linear",
    ) -> Any:
        return _quantile(input, q, dim, keepdim, interpolation, skip)

    function = getattr(torch, name)
    implements(function, getattr(Tensor, name))(quantile)
    # PyTorch's own composition would round q to the components' dtype.
    INTO[function] = computed_into(function)
    _inside(name, skip)


def _inside(name: str, skip: bool) -> None:
    """Register a quantile function for transforms, without control flow that depends on values."""

    @implements_inside(name, "default", "scalar")
    def inside(
        x: Any, q: Any, dim: int | None = None, keepdim: bool = False, interpolation: str = "linear"
    ) -> Any:
        if batched(q):
            raise UnsupportedError(
                f"torch.{name} under torch.func.vmap: q must be a number or a tensor that is not "
                "mapped, got a mapped tensor"
            )
        wanted = _checked(x, held(q), interpolation)
        rows, shape = _rows(x, dim)
        ordered, like, nan = rows.sort(-1).values, example(x), rows.isnan()
        count = rows.shape[-1]
        known = (~nan).sum(-1)

        def placed(number: Fraction) -> tuple[Any, Any, Any]:
            if not skip:
                first, share = _place(number, count, interpolation)
                return first, first + (share > 0), in_format(share, like)
            # Tabulate all possible counts. A zero-dimensional index would be read as a number.
            places = [_place(number, c, interpolation) for c in range(count + 1)]
            index = known.reshape(-1)
            low = known.new_tensor([low for low, _ in places])[index].reshape(known.shape)
            weight = in_format([share for _, share in places], like)[index].reshape(known.shape)
            return low, torch.where(weight > 0, low + 1, low), weight

        bad = known == 0 if skip else nan.any(-1)
        at = functools.partial(_at_rank, ordered)
        return _results(at, placed, bad, wanted, shape if keepdim else None)


_register("quantile", False)
_register("nanquantile", True)


@implements(torch.ops.aten.nanmedian.default)
def nanmedian_all(x: Any) -> Any:
    """Return the lower median of all elements that are not NaN."""
    return nanmedian(x.reshape(-1), 0)[0] if x.numel() else x.new_full((), torch.nan)


@implements(torch.nanmedian, Tensor.nanmedian)
def nanmedian(input: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the lower median of elements that are not NaN; along a dimension also its index."""
    if dim is None:
        # PyTorch's derivative is shared by equal elements.
        return forward(torch.nanmedian, (input,), {})
    along(input.shape or (1,), dim)
    if input.dim() == 0:
        return torch.return_types.nanmedian(
            (input.clone(), torch.zeros((), dtype=torch.int64, device=input.device))
        )
    not_empty("median", input, dim)
    count = (~input.isnan()).sum(dim, keepdim=True)
    rank = ((count - 1) // 2).clamp_min(0)
    if _selected(input):
        index = kth(input.detach(), int(rank) + 1, 0)
    else:
        index = input.detach().argsort(dim).gather(dim, rank)
    value = input.gather(dim, index)
    if not keepdim:
        value, index = value.squeeze(dim), index.squeeze(dim)
    return torch.return_types.nanmedian((value, index))

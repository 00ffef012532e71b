"""The same as `mcf.tensor.shortcuts` for sums, products, moments and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.product_plans import multiplied
from mcf.tensor.registry import DIRECT, OPERATORS
from mcf.tensor.shortcuts import TENSORS, counted, forms, operator, register
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _of_all(implementation: Callable[..., Any], *functions: Any) -> None:
    """Of all elements, where nothing else is said."""
    for function in functions:
        DIRECT[function] = counted(implementation, 1)


for _name in "sum mean prod max min amax amin".split():
    _of_all(OPERATORS[getattr(aten, _name).default], *forms(_name))
_of_all(
    OPERATORS[aten.linalg_vector_norm.default],
    torch.linalg.vector_norm, torch.linalg.norm, torch.norm, Tensor.norm,
)  # fmt: skip
operator(aten.dot.default, 2, also="vdot", kinds=TENSORS)


def _matmul(x: Any, y: Any) -> Any:
    if type(x) is not MCFTensor or type(y) is not MCFTensor:
        return NotImplemented
    if x.dim() == y.dim() == 1:
        return OPERATORS[aten.dot.default](x, y)
    few = multiplied(x, y)
    return NotImplemented if few is None else few


register(counted(_matmul, 2), torch.matmul, Tensor.matmul, Tensor.__matmul__)
for _name in "mm mv bmm".split():
    operator(getattr(aten, _name).default, 2, kinds=TENSORS)


def _linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight.T + bias of a vector or a matrix, by torch's names of them."""
    x = input
    if type(x) is not MCFTensor or type(weight) is not MCFTensor or weight.dim() != 2:
        return NotImplemented
    few = multiplied(weight, x) if x.dim() == 1 else multiplied(x, weight.t())
    if few is None or x.dim() > 2:
        return NotImplemented
    return few if bias is None else OPERATORS[aten.add.Tensor](few, bias)


register(_linear, torch.nn.functional.linear)


def _outer(x: Any, y: Any) -> Any:
    """The products of all pairs of elements of two vectors."""
    if type(x) is not MCFTensor or type(y) is not MCFTensor or x.dim() != 1 or y.dim() != 1:
        return NotImplemented
    rows = wrap([c.unsqueeze(1) for c in x.components])
    return OPERATORS[aten.mul.Tensor](rows, wrap([c.unsqueeze(0) for c in y.components]))


def _diff(x: Any) -> Any:
    """Differences of neighbours in a vector."""
    if type(x) is not MCFTensor or x.dim() != 1 or x.shape[0] < 2:
        return NotImplemented
    later, before = (wrap([c[at] for c in x.components]) for at in (_LATER, _BEFORE))
    return OPERATORS[aten.sub.Tensor](later, before)


_LATER, _BEFORE = slice(1, None), slice(None, -1)
register(counted(_outer, 2), *forms("outer"))
register(counted(_diff, 1), *forms("diff"))


def _trace(x: Any) -> Any:
    if type(x) is not MCFTensor or x.dim() != 2:
        return NotImplemented
    return OPERATORS[aten.sum.default](wrap([c.diagonal().contiguous() for c in x.components]))


register(counted(_trace, 1), *forms("trace"))


def _moment(overload: Any) -> Callable[..., Any]:
    function = OPERATORS[overload]

    def call(x: Any, *, correction: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
        if type(correction) not in (int, type(None)) or type(dim) not in (int, type(None)):
            return NotImplemented
        return function(x, dim, correction=correction, keepdim=keepdim)

    return call


def _only_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one argument and of others by name; torch has older forms of it."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or not {"correction", "dim", "keepdim"}.issuperset(kwargs):
            return NotImplemented
        return function(*args, **kwargs)

    return call


for _name in "var std".split():
    for _function in forms(_name):
        DIRECT[_function] = _only_first(_moment(getattr(aten, _name).correction))


def _softmax(overload: Any) -> Callable[..., Any]:
    """A function along a dimension, in the tensor's own format."""

    def call(x: Any = None, *args: Any, **kwargs: Any) -> Any:
        given = args or (*kwargs.values(),)
        if len(args) + len(kwargs) != 1 or type(given[0]) is not int or type(x) is not MCFTensor:
            return NotImplemented
        return OPERATORS[overload](x, given[0]) if args or "dim" in kwargs else NotImplemented

    return call


def _logsumexp(x: Any = None, dim: Any = None, keepdim: Any = False, **kwargs: Any) -> Any:
    if kwargs or type(x) is not MCFTensor or type(dim) is not int or type(keepdim) is not bool:
        return NotImplemented
    return OPERATORS[aten.logsumexp.default](x, [dim], keepdim)


register(_softmax(aten._softmax.default), *forms("softmax"))
register(_softmax(aten._log_softmax.default), *forms("log_softmax"))
register(_logsumexp, *forms("logsumexp"))

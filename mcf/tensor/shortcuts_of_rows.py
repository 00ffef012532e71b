"""The same as `mcf.tensor.shortcuts` for sums, products, moments and differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.operators import SUB
from mcf.tensor.gathered import MOST, gathered
from mcf.tensor.registry import DIRECT, OPERATORS
from mcf.tensor.shortcuts import TENSORS, counted, forms, operator, register
from mcf.tensor.sums import trace
from mcf.tensor.tensor import MCFTensor, wrap

aten = torch.ops.aten


def _reduction(all_of: Any, over: Callable[..., Any], kinds: frozenset[type]) -> Any:
    """A function of all elements, and over dimensions.

    Args:
        all_of: the operator for all of them.
        over: what does it over dimensions: a function of the tensor, them and `keepdim`.
        kinds: what dimensions may be.
    """

    def call(*args: Any, dim: Any = None, keepdim: Any = False) -> Any:
        count = len(args)
        if count == 1 and dim is None and keepdim is False:
            return all_of(args[0])
        if count > 1 and dim is None:
            dim = args[1]
        elif count != 1:
            return NotImplemented
        if count == 3 and keepdim is False:
            keepdim = args[2]
        elif count > 2:
            return NotImplemented
        if type(dim) not in kinds or type(keepdim) is not bool or type(args[0]) is not MCFTensor:
            return NotImplemented
        if type(dim) is not int and (not dim or {*map(type, dim)} != {int}):
            return NotImplemented
        return over(args[0], dim, keepdim)

    return _only(call, "dim", "keepdim")


def _only(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A function of some arguments by name; torch does with others."""
    known = frozenset(names)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not known.issuperset(kwargs):
            return NotImplemented
        return function(*args, **kwargs)

    return call


_ONE, _SEVERAL = frozenset({int}), frozenset({int, tuple, list})


def _pair(name: str) -> Callable[..., Any]:
    """Numbers and indices, as torch names them."""
    function, kind = OPERATORS[getattr(aten, name).dim], getattr(torch.return_types, name)
    return lambda x, dim, keepdim: kind(function(x, dim, keepdim))


for _name, _overload in {"sum": "dim_IntList", "mean": "dim", "amax": "default",
                         "amin": "default", "prod": "dim_int"}.items():  # fmt: skip
    _packet = getattr(aten, _name)
    _over, _all = OPERATORS[getattr(_packet, _overload)], OPERATORS[_packet.default]
    _kinds = _ONE if _name == "prod" else _SEVERAL
    for _function in forms(_name):
        DIRECT[_function] = _reduction(_all, _over, _kinds)
for _name in ("max", "min"):
    for _function in forms(_name):
        _all = OPERATORS[getattr(aten, _name).default]
        DIRECT[_function] = _reduction(_all, _pair(_name), _ONE)
for _name in ("argmax", "argmin"):
    for _function in forms(_name):
        _all = OPERATORS[getattr(aten, _name).default]
        DIRECT[_function] = _reduction(_all, _all, _ONE)
operator(aten.dot.default, 2, also="vdot", kinds=TENSORS)


def _diff(x: Any) -> Any:
    """Differences of neighbours in a vector."""
    if type(x) is not MCFTensor or x.dim() != 1 or x.shape[0] < 2:
        return NotImplemented
    count = x.shape[0]
    if count <= MOST:
        found = gathered(("diff", count), _later_less_before, lambda: _neighbours(count), x)
        if found is not None:
            return found
    later, before = (wrap([c[at] for c in x.components]) for at in (_LATER, _BEFORE))
    return OPERATORS[aten.sub.Tensor](later, before)


def _later_less_before(o: Any, later: Any, before: Any) -> Any:
    return o(SUB, later, before)


def _neighbours(count: int) -> Any:
    number = np.arange(count)
    return [(0, number[1:]), (0, number[:-1])]


_LATER, _BEFORE = slice(1, None), slice(None, -1)
register(counted(_diff, 1), *forms("diff"))


def _trace(x: Any) -> Any:
    if type(x) is not MCFTensor or x.dim() != 2:
        return NotImplemented
    found = trace(x)
    if found is not None:
        return found
    return OPERATORS[aten.sum.default](wrap([c.diagonal().contiguous() for c in x.components]))


register(counted(_trace, 1), *forms("trace"))


def _moment(overload: Any) -> Callable[..., Any]:
    function = OPERATORS[overload]

    def call(*args: Any, correction: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
        if len(args) == 2 and dim is None:
            dim = args[1]
        elif len(args) != 1:
            return NotImplemented
        # torch has older forms, of a bool.
        if type(correction) not in _NUMBER_OR_NONE or not _are_dims(dim):
            return NotImplemented
        return function(args[0], dim, correction=correction, keepdim=keepdim)

    return _only(call, "correction", "dim", "keepdim")


_NUMBER_OR_NONE = frozenset({int, type(None)})


def _are_dims(dim: Any) -> bool:
    if type(dim) in _NUMBER_OR_NONE:
        return True
    return type(dim) in _SEVERAL and {*map(type, dim)} == {int}


def _norm(x: Any, p: Any = 2, dim: Any = None, keepdim: Any = False) -> Any:
    """The 2-norm over dimensions, or of all elements."""
    if type(x) is not MCFTensor or type(keepdim) is not bool or not _are_dims(dim):
        return NotImplemented
    if p is not None and p != "fro" and (type(p) not in (int, float) or p != 2):
        return NotImplemented
    return OPERATORS[aten.linalg_vector_norm.default](x, 2, dim, keepdim)


for _name in "var std".split():
    for _function in forms(_name):
        DIRECT[_function] = _moment(getattr(aten, _name).correction)
for _function in (torch.norm, Tensor.norm):
    DIRECT[_function] = _only(_norm, "p", "dim", "keepdim")


def _linalg_norm(x: Any, ord: Any = None, dim: Any = None, keepdim: Any = False) -> Any:
    # Of a matrix 2 is another norm; more than two dimensions are refused.
    if ord is not None and (x.dim() != 1 or ord == "fro"):
        return NotImplemented
    if type(dim) in (tuple, list) and len(dim) > 2:
        return NotImplemented
    return _norm(x, ord, dim, keepdim)


def _vector_norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False) -> Any:
    return NotImplemented if ord == "fro" or ord is None else _norm(x, ord, dim, keepdim)


DIRECT[torch.linalg.norm] = _only(_linalg_norm, "ord", "dim", "keepdim")
DIRECT[torch.linalg.vector_norm] = _only(_vector_norm, "ord", "dim", "keepdim")


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


def _running(overload: Any) -> Callable[..., Any]:
    """Running sums and products along a dimension, in the tensor's own format."""

    def call(x: Any, dim: Any = None) -> Any:
        if type(x) is not MCFTensor or type(dim) is not int:
            return NotImplemented
        return OPERATORS[overload](x, dim)

    return _only(call, "dim")


def _sort(x: Any, dim: Any = -1, descending: Any = False) -> Any:
    if type(x) is not MCFTensor or type(dim) is not int or type(descending) is not bool:
        return NotImplemented
    kind: Any = torch.return_types.sort
    return kind(OPERATORS[aten.sort.default](x, dim, descending))


def _functional(overload: Any) -> Callable[..., Any]:
    """The same of `torch.nn.functional`, which hands on all of its arguments."""

    def call(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if type(x) is not MCFTensor or type(dim) is not int or dtype is not None:
            return NotImplemented
        return OPERATORS[overload](x, dim)

    return _only(call, "dim", "_stacklevel", "dtype")


_F = torch.nn.functional
for _name in ("softmax", "log_softmax"):
    _rows = getattr(aten, "_" + _name).default
    register(_softmax(_rows), *forms(_name))
    register(_functional(_rows), getattr(_F, _name))
register(_logsumexp, *forms("logsumexp"))
for _name in ("cumsum", "cumprod"):
    for _function in forms(_name):
        DIRECT[_function] = _running(getattr(aten, _name).default)
register(_only(_sort, "dim", "descending"), *forms("sort"))
for _function in forms("median"):
    _all = OPERATORS[aten.median.default]
    register(_reduction(_all, _pair("median"), _ONE), _function)

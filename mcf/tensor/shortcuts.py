"""Functions of torch that are computed at once where nothing is recorded and nobody looks on.

PyTorch's way from a function to an operator below autograd and back takes a third of the time of an
operation on few elements. What is called here is the operator's own implementation, or the function
itself on each component, so values and errors are the same. Views are not among them: autograd has
to know what shares memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor import ops as ops  # What is registered there is called here.
from mcf.tensor.ops.arithmetic import reciprocal_times
from mcf.tensor.ops.masks import item
from mcf.tensor.ops.powers import power
from mcf.tensor.product_plans import multiplied
from mcf.tensor.registry import DIRECT, FUNCTIONS, OPERATORS
from mcf.tensor.tensor import COMPONENTS, MCFTensor, wrap

aten = torch.ops.aten


def _forms(name: str) -> list[Any]:
    """The function and the method of a name, where torch has them."""
    rooms = (torch, Tensor)
    return [getattr(room, name) for room in rooms if hasattr(room, name)]


def _register(implementation: Callable[..., Any], *functions: Any) -> None:
    for function in functions:
        # What is called above autograd already is not called otherwise.
        if function not in FUNCTIONS:
            DIRECT[function] = implementation


# What stands beside an expansion in arithmetic; of anything else torch says what it thinks.
_OPERANDS = frozenset({MCFTensor, Tensor, int, float})
_TENSORS = frozenset({MCFTensor, Tensor})
# Arguments that are alike in all functions and say how a tensor is made, not of which elements.
_MAKING = frozenset("out dtype layout device pin_memory requires_grad memory_format".split())


def _counted(
    implementation: Callable[..., Any], count: int, *names: str, kinds: Any = _OPERANDS
) -> Callable[..., Any]:
    """A function of so many arguments, and of some by these names; torch does with others."""
    known = frozenset(names)

    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) != count or not known.issuperset(kwargs):
            return NotImplemented
        if not kinds.issuperset(map(type, args)):
            return NotImplemented
        return implementation(*args, **kwargs)

    return call


def _operator(
    overload: Any, count: int, *names: str, also: str = "", kinds: Any = _OPERANDS
) -> None:
    """The operator in the place of the functions of its name and of others."""
    known = overload._schema.name.split("::")[1]
    call = _counted(OPERATORS[overload], count, *names, kinds=kinds)
    for name in (known, *also.split()):
        _register(call, *_forms(name))


for _name in (
    "ceil digamma exp expm1 floor isfinite isinf isnan isneginf isposinf lgamma log log1p "
    "logical_not reciprocal round rsqrt signbit sqrt sin cos tan atan sinh cosh asinh trunc frac"
).split():
    _operator(getattr(aten, _name).default, 1)
_register(_counted(OPERATORS[aten.neg.default], 1), *_forms("neg"), *_forms("negative"))
_register(_counted(OPERATORS[aten.trunc.default], 1), *_forms("fix"))
_register(_counted(OPERATORS[aten.atan.default], 1), *_forms("arctan"))
_register(_counted(lambda x: power(x, 2), 1), *_forms("square"))


def _power(x: Any, y: Any) -> Any:
    # A number as base becomes an expansion.
    return power(x, y) if isinstance(x, Tensor) else NotImplemented


for _function in (torch.pow, Tensor.pow, Tensor.__pow__):
    DIRECT[_function] = _counted(_power, 2)

_operator(aten.add.Tensor, 2, "alpha", also="__add__ __radd__")
_operator(aten.sub.Tensor, 2, "alpha", also="__sub__ subtract")
_operator(aten.rsub.Tensor, 2, also="__rsub__")
_operator(aten.mul.Tensor, 2, also="__mul__ __rmul__ multiply")
_operator(aten.div.Tensor, 2, also="__truediv__ divide true_divide")
_operator(aten.lt.Tensor, 2, also="__lt__ less")
_operator(aten.le.Tensor, 2, also="__le__ less_equal")
_operator(aten.gt.Tensor, 2, also="__gt__ greater")
_operator(aten.ge.Tensor, 2, also="__ge__ greater_equal")
_operator(aten.eq.Tensor, 2, also="__eq__")
_operator(aten.ne.Tensor, 2, also="__ne__ not_equal")
for _name in "maximum minimum fmax fmin hypot".split():
    _operator(getattr(aten, _name).default, 2, kinds=_TENSORS)
_operator(aten.atan2.default, 2, also="arctan2", kinds=_TENSORS)
_operator(aten.addcmul.default, 3, "value", kinds=_TENSORS)
_operator(aten.addcdiv.default, 3, "value", kinds=_TENSORS)
_operator(aten.lerp.Tensor, 3)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    # Torch takes two tensors or two numbers, and None.
    bounds = {type(bound) for bound in (min, max) if bound is not None}
    if not (bounds and (bounds <= _TENSORS or bounds <= _OPERANDS - _TENSORS)):
        return NotImplemented
    return OPERATORS[aten.clamp.default](x, min, max)


_register(_clamp, *_forms("clamp"), *_forms("clip"))
_operator(aten.clamp_min.default, 2)
_operator(aten.clamp_max.default, 2)
_operator(aten.masked_fill.Tensor, 3)


_register(_counted(reciprocal_times, 2), Tensor.__rtruediv__)


def _on_each(function: Any) -> Callable[..., Any]:
    """A function that gives a new tensor of elements of its first argument, on each component."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        if type(x) is not MCFTensor or not _MAKING.isdisjoint(kwargs):
            return NotImplemented
        # An expansion as indices or a mask, which torch's way refuses.
        if MCFTensor in map(type, args) or MCFTensor in map(type, kwargs.values()):
            return NotImplemented
        own = x.__dict__
        return wrap([function(c, *args, **kwargs) for c in COMPONENTS[own["_terms"]](own)])

    return call


for _name in (
    "clone diag_embed flip fliplr flipud gather index_select new_empty new_zeros "
    "repeat repeat_interleave roll rot90 take take_along_dim tril triu"
).split():
    for _function in _forms(_name):
        _register(_on_each(_function), _function)

_register(item, Tensor.__getitem__)
_operator(aten.masked_select.default, 2, kinds=_TENSORS)


def _joined(function: Any) -> Callable[..., Any]:
    """A function that joins tensors of one format, on each component of them."""

    def call(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        parts = []
        for x in tensors:
            if type(x) is not MCFTensor:
                return NotImplemented
            own = x.__dict__
            parts.append(COMPONENTS[own["_terms"]](own))
        first, terms = parts[0][0].dtype, len(parts[0])
        for c in parts:
            if c[0].dtype is not first or len(c) != terms:
                return NotImplemented
        return wrap([function(c, *args, **kwargs) for c in zip(*parts, strict=True)])

    return call


for _name in "cat concat concatenate stack hstack vstack dstack column_stack".split():
    _register(_joined(getattr(torch, _name)), getattr(torch, _name))


def _filled(first: Any, others: Any) -> Callable[..., Any]:
    """A tensor in the likeness of another and of its format: its first component and the others."""

    def call(x: Any, *args: Any) -> Any:
        if type(x) is not MCFTensor:
            return NotImplemented
        own = x.__dict__
        top, *rest = COMPONENTS[own["_terms"]](own)
        return wrap([first(top, *args), *(others(c, *args) for c in rest)])

    return call


_register(_filled(torch.empty_like, torch.empty_like), torch.empty_like)
_register(_filled(torch.zeros_like, torch.zeros_like), torch.zeros_like)
_register(_filled(torch.ones_like, torch.zeros_like), torch.ones_like)
_register(_filled(Tensor.new_ones, Tensor.new_zeros), Tensor.new_ones)


def _of_all(implementation: Callable[..., Any], *functions: Any) -> None:
    """Of all elements, where nothing else is said."""
    for function in functions:
        DIRECT[function] = _counted(implementation, 1)


for _name in "sum mean prod max min amax amin".split():
    _of_all(OPERATORS[getattr(aten, _name).default], *_forms(_name))
_of_all(
    OPERATORS[aten.linalg_vector_norm.default],
    torch.linalg.vector_norm, torch.linalg.norm, torch.norm, Tensor.norm,
)  # fmt: skip
_operator(aten.dot.default, 2, also="vdot", kinds=_TENSORS)


def _matmul(x: Any, y: Any) -> Any:
    if type(x) is not MCFTensor or type(y) is not MCFTensor:
        return NotImplemented
    if x.dim() == y.dim() == 1:
        return OPERATORS[aten.dot.default](x, y)
    few = multiplied(x, y)
    return NotImplemented if few is None else few


_register(_matmul, torch.matmul, Tensor.matmul, Tensor.__matmul__)
for _name in "mm mv bmm".split():
    _operator(getattr(aten, _name).default, 2, kinds=_TENSORS)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """x @ weight.T + bias of a vector or a matrix."""
    if type(x) is not MCFTensor or type(weight) is not MCFTensor or weight.dim() != 2:
        return NotImplemented
    few = multiplied(weight, x) if x.dim() == 1 else multiplied(x, weight.t())
    if few is None or x.dim() > 2:
        return NotImplemented
    return few if bias is None else OPERATORS[aten.add.Tensor](few, bias)


_register(_linear, torch.nn.functional.linear)


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
    for _function in _forms(_name):
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


_register(_softmax(aten._softmax.default), *_forms("softmax"))
_register(_softmax(aten._log_softmax.default), *_forms("log_softmax"))
_register(_logsumexp, *_forms("logsumexp"))

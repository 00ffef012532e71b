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

from mcf.convert.numbers import components_of
from mcf.kernels.formats import format_of
from mcf.kernels.operators import WHERE
from mcf.tensor import ops as ops  # What is registered there is called here.
from mcf.tensor.ops.arithmetic import reciprocal_times
from mcf.tensor.ops.masks import item
from mcf.tensor.ops.powers import power
from mcf.tensor.plans import selected
from mcf.tensor.registry import DIRECT, FUNCTIONS, OPERATORS
from mcf.tensor.registry import forms as forms
from mcf.tensor.tensor import COMPONENTS, MCFTensor, wrap

aten = torch.ops.aten


def register(implementation: Callable[..., Any], *functions: Any) -> None:
    """What computes functions at once."""
    for function in functions:
        # What is called above autograd already is not called otherwise.
        if function not in FUNCTIONS:
            DIRECT[function] = implementation


# What stands beside an expansion in arithmetic; of anything else torch says what it thinks.
OPERANDS = frozenset({MCFTensor, Tensor, int, float})
TENSORS = frozenset({MCFTensor, Tensor})
# Arguments that are alike in all functions and say how a tensor is made, not of which elements.
_MAKING = frozenset("out dtype layout device pin_memory requires_grad memory_format".split())


def counted(
    implementation: Callable[..., Any], count: int, *names: str, kinds: Any = OPERANDS
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


def operator(overload: Any, count: int, *names: str, also: str = "", kinds: Any = OPERANDS) -> None:
    """The operator in the place of the functions of its name and of others."""
    known = overload._schema.name.split("::")[1]
    call = counted(OPERATORS[overload], count, *names, kinds=kinds)
    for name in (known, *also.split()):
        register(call, *forms(name))


for _name in (
    "ceil digamma exp floor isfinite isinf isnan isneginf isposinf lgamma log log1p "
    "logical_not round rsqrt signbit sqrt sin cos tan atan sinh cosh trunc frac"
).split():
    operator(getattr(aten, _name).default, 1)
register(counted(OPERATORS[aten.neg.default], 1), *forms("neg"), *forms("negative"))
register(counted(OPERATORS[aten.trunc.default], 1), *forms("fix"))
register(counted(OPERATORS[aten.atan.default], 1), *forms("arctan"))
register(counted(lambda x: power(x, 2), 1), *forms("square"))


def _power(x: Any, y: Any) -> Any:
    # A number as base becomes an expansion.
    return power(x, y) if isinstance(x, Tensor) or type(y) is MCFTensor else NotImplemented


for _function in (torch.pow, Tensor.pow, Tensor.__pow__):
    DIRECT[_function] = counted(_power, 2)


def _copied_out(x: Any) -> Any:
    """What is contiguous is itself."""
    if type(x) is not MCFTensor:
        return NotImplemented
    own = x.__dict__
    if own["_c0"].is_contiguous():
        return x
    return wrap([c.contiguous() for c in COMPONENTS[own["_terms"]](own)])


register(counted(_copied_out, 1), Tensor.contiguous)
operator(aten.nan_to_num.default, 1, "nan", "posinf", "neginf")

operator(aten.add.Tensor, 2, "alpha", also="__add__ __radd__")
operator(aten.sub.Tensor, 2, "alpha", also="__sub__ subtract")
operator(aten.rsub.Tensor, 2, also="__rsub__")
operator(aten.mul.Tensor, 2, also="__mul__ __rmul__ multiply")
operator(aten.div.Tensor, 2, also="__truediv__ divide true_divide")
operator(aten.lt.Tensor, 2, also="__lt__ less")
operator(aten.le.Tensor, 2, also="__le__ less_equal")
operator(aten.gt.Tensor, 2, also="__gt__ greater")
operator(aten.ge.Tensor, 2, also="__ge__ greater_equal")
operator(aten.eq.Tensor, 2, also="__eq__")
operator(aten.ne.Tensor, 2, also="__ne__ not_equal")
for _name in "maximum minimum fmax fmin hypot".split():
    operator(getattr(aten, _name).default, 2, kinds=TENSORS)
operator(aten.addcmul.default, 3, "value", kinds=TENSORS)
# Above autograd these have derivatives of their own.
DIRECT[torch.lerp] = DIRECT[Tensor.lerp] = counted(OPERATORS[aten.lerp.Tensor], 3)
for _function in (*forms("atan2"), *forms("arctan2")):
    DIRECT[_function] = counted(OPERATORS[aten.atan2.default], 2, kinds=TENSORS)
for _function in forms("reciprocal"):
    DIRECT[_function] = counted(OPERATORS[aten.reciprocal.default], 1)
for _function in forms("addcdiv"):
    DIRECT[_function] = counted(OPERATORS[aten.addcdiv.default], 3, "value", kinds=TENSORS)


def _clamp(x: Any = None, min: Any = None, max: Any = None, **others: Any) -> Any:
    if others or type(x) not in TENSORS:
        return NotImplemented
    # Torch takes two tensors or two numbers, and None.
    bounds = {type(bound) for bound in (min, max) if bound is not None}
    if not (bounds and (bounds <= TENSORS or bounds <= OPERANDS - TENSORS)):
        return NotImplemented
    return OPERATORS[aten.clamp.default](x, min, max)


register(_clamp, *forms("clamp"), *forms("clip"))
operator(aten.clamp_min.default, 2)
operator(aten.clamp_max.default, 2)
operator(aten.masked_fill.Tensor, 3)


def _where(condition: Any, x: Any, y: Any) -> Any:
    found = selected(WHERE, condition, x, y)
    return NotImplemented if found is None else found


def _where_method(x: Any, condition: Any, y: Any) -> Any:
    return _where(condition, x, y)


DIRECT[torch.where] = counted(_where, 3)
DIRECT[Tensor.where] = counted(_where_method, 3)


def _over(x: Any, y: Any) -> Any:
    # Beside a plain tensor there is another formula.
    return reciprocal_times(x, y) if type(x) is MCFTensor else NotImplemented


DIRECT[Tensor.__rtruediv__] = counted(_over, 2)


def _on_each(function: Any) -> Callable[..., Any]:
    """A function that gives a new tensor of elements of its first argument, on each component."""

    def call(x: Any = None, *args: Any, **kwargs: Any) -> Any:
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
    for _function in forms(_name):
        register(_on_each(_function), _function)

register(item, Tensor.__getitem__)
operator(aten.masked_select.default, 2, kinds=TENSORS)


_DIM = frozenset({"dim"})


def _joined(function: Any) -> Callable[..., Any]:
    """A function that joins tensors of one format, on each component of them."""

    def call(tensors: Any = (), *args: Any, **kwargs: Any) -> Any:
        # Nothing else by name: least of all `out`, which each component would be written to.
        if not tensors or not _DIM.issuperset(kwargs):
            return NotImplemented
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
    register(_joined(getattr(torch, _name)), getattr(torch, _name))


def _filled(first: Any, others: Any) -> Callable[..., Any]:
    """A tensor in the likeness of another and of its format: its first component and the others."""

    def call(x: Any = None, *args: Any, **kwargs: Any) -> Any:
        if type(x) is not MCFTensor or kwargs:
            return NotImplemented
        own = x.__dict__
        top, *rest = COMPONENTS[own["_terms"]](own)
        return wrap([first(top, *args), *(others(c, *args) for c in rest)])

    return call


register(_filled(torch.empty_like, torch.empty_like), torch.empty_like)
register(_filled(torch.zeros_like, torch.zeros_like), torch.zeros_like)
register(_filled(torch.ones_like, torch.zeros_like), torch.ones_like)
register(_filled(Tensor.new_ones, Tensor.new_zeros), Tensor.new_ones)


def _full(x: Any, value: Any) -> Any:
    if type(x) is not MCFTensor or type(value) not in (int, float):
        return NotImplemented
    own = x.__dict__
    parts = COMPONENTS[own["_terms"]](own)
    numbers = components_of(value, format_of(parts[0].dtype), len(parts))
    return wrap([torch.full_like(c, v) for c, v in zip(parts, numbers, strict=True)])


DIRECT[torch.full_like] = counted(_full, 2)

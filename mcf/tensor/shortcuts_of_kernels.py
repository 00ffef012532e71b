"""Functions of torch that are one kernel of elements, straight from the function to its plan."""

from __future__ import annotations

import torch
from torch import Tensor

from mcf.elementary.fused import Formula
from mcf.kernels.operators import (
    ABS,
    ADD,
    CLAMP,
    DIV,
    EQ,
    FMAX,
    FMIN,
    LE,
    LT,
    MAXIMUM,
    MINIMUM,
    MUL,
    NE,
    RECIPROCAL,
    RSQRT,
    SQRT,
    SUB,
    WHERE,
    Operation,
)
from mcf.tensor.shortcuts import OPERANDS, TENSORS, forms
from mcf.tensor.straight import straight
from mcf.tensor.tensor import MCFTensor

_EXPANSION, _PLAIN, _NUMBERS = frozenset({MCFTensor}), frozenset({Tensor}), OPERANDS - TENSORS


def _forms(names: str) -> list[object]:
    return [form for name in names.split() for form in forms(name)]


for _operation, _names in {
    ADD: "add __add__ __radd__",
    SUB: "sub __sub__ subtract",
    MUL: "mul __mul__ __rmul__ multiply",
    DIV: "div __truediv__ divide true_divide",
}.items():
    straight(_operation, _forms(_names), OPERANDS, OPERANDS)
straight(SUB, _forms("rsub __rsub__"), OPERANDS, OPERANDS, order=(1, 0))
for _operation, _names, _swapped in (
    (LT, "lt __lt__ less", "gt __gt__ greater"),
    (LE, "le __le__ less_equal", "ge __ge__ greater_equal"),
    (EQ, "eq __eq__", ""),
    (NE, "ne __ne__ not_equal", ""),
):
    straight(_operation, _forms(_names), OPERANDS, OPERANDS, truth=True)
    straight(_operation, _forms(_swapped), OPERANDS, OPERANDS, order=(1, 0), truth=True)
for _operation in (MAXIMUM, MINIMUM, FMAX, FMIN):
    straight(_operation, forms(_operation.name), TENSORS, TENSORS)
# Plain operands are made expansions where derivatives may be wanted (`mcf.tensor.widening`).
straight(Formula("hypot"), forms("hypot"), _EXPANSION, _EXPANSION)
straight(Formula("atan2"), _forms("atan2 arctan2"), _EXPANSION, _EXPANSION)
# Of usual numbers that are divided often; integers on the host do the others.
straight(Formula("usual_fmod"), forms("fmod"), _EXPANSION, OPERANDS - {Tensor})
straight(Formula("usual_remainder"), _forms("remainder __mod__"), _EXPANSION, OPERANDS - {Tensor})
straight(
    Formula("usual_floor_quotient"),
    _forms("floor_divide __floordiv__"),
    _EXPANSION,
    OPERANDS - {Tensor},
)
straight(MUL, forms("square"), _EXPANSION, _EXPANSION, order=(0, 0))
straight(WHERE, [Tensor.where], _PLAIN, OPERANDS, OPERANDS, order=(1, 0, 2))
straight(WHERE, [torch.where], _PLAIN, OPERANDS, OPERANDS)
_clamps = _forms("clamp clip")
straight(CLAMP, _clamps, _EXPANSION, _NUMBERS, _NUMBERS)
straight(CLAMP, [(f, "min", "max") for f in _clamps], _EXPANSION, _NUMBERS, _NUMBERS)
for _bounds, _operation in ("min", MAXIMUM), ("max", MINIMUM):
    straight(_operation, [(f, _bounds) for f in _clamps], _EXPANSION, _NUMBERS)
    straight(_operation, _forms("clamp_" + _bounds), _EXPANSION, _NUMBERS)
straight(MAXIMUM, [*_forms("relu"), torch.nn.functional.relu], _EXPANSION, _NUMBERS, behind=(0,))

_ONE: dict[str, Operation | Formula] = {
    "abs absolute __abs__": ABS,
    "sqrt": SQRT,
    "rsqrt": RSQRT,
    "reciprocal": RECIPROCAL,
    "asin arcsin": Formula("asin"),
    "acos arccos": Formula("acos"),
    "atan arctan": Formula("atan"),
    "asinh arcsinh": Formula("asinh"),
    "acosh arccosh": Formula("acosh"),
    "atanh arctanh": Formula("atanh"),
    "trunc fix": Formula("trunc"),
}
for _name in (
    "exp log log1p sin cos tan sinh cosh floor ceil round lgamma digamma log2 log10 expm1 tanh "
    "sigmoid erf erfc"
).split():
    _ONE[_name] = Formula(_name)
for _names, _function in _ONE.items():
    straight(_function, _forms(_names), _EXPANSION)

"""Formulas with three operands or with a factor, straight from functions of torch.

As `mcf.tensor.straight` has kernels: what a function is a formula of is read off its arguments,
those by name behind the others, and where nobody records or looks on the formula's kernels are
launched. The result is new, takes the first operand's place or goes to `out`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mcf.tensor.chain_programs import Written
from mcf.tensor.chains import found_chain
from mcf.tensor.ops.arithmetic import (
    between,
    minus_multiple,
    multiple_product_plus,
    multiple_quotient_plus,
    plus_multiple,
    product_and_sum,
    quotient_plus,
)
from mcf.tensor.registry import NAMED, STRAIGHT, forms
from mcf.tensor.shortcuts import OPERANDS, TENSORS
from mcf.tensor.tensor import COMPONENTS, MCFTensor
from mcf.tensor.writing import shares_part

_duals = torch.autograd.forward_ad
_grad = torch.is_grad_enabled
_unasked = torch._C.DisableTorchFunctionSubclass
_increment: Any = torch._C._increment_version

Arguments = tuple[Any, ...]
# The formula that some arguments are, and whether one is.
Reader = Callable[[Arguments], Written | None]
# An int beyond this does not fit torch's scalars.
_LARGEST = 2**63


def _found(read: Reader, args: Arguments) -> Any:
    formula = read(args)
    if formula is None or torch.compiler.is_compiling() or _duals._current_level >= 0:
        return None
    return found_chain(formula, args, above=True)


def _new(read: Reader) -> Callable[[Arguments], Any]:
    def call(args: Arguments) -> Any:
        with _unasked():
            found = _found(read, args)
            if found is None:
                return NotImplemented
            chain, groups = found
            out = chain.run(groups)
            return NotImplemented if out is None else out

    return call


def _writes(read: Reader, args: Arguments, out: Any) -> Any:
    """The formula's result in a tensor, which is returned."""
    if type(out) is not MCFTensor:
        return NotImplemented
    with _unasked():
        found = _found(read, args)
        if found is None or out.is_inference() or (out.requires_grad and _grad()):
            return NotImplemented
        if shares_part(out, args):
            return NotImplemented
        own = out.__dict__
        chain, groups = found
        if chain.into(groups, COMPONENTS[own["_terms"]](own)) is not True:
            return NotImplemented
        # Autograd may have kept what was there.
        _increment([out])
    return out


def _register(read: Reader, name: str, *keywords: str, alone: bool) -> None:
    """Register the forms of a function.

    Args:
        read: of the arguments by place and one by name.
        name: the function's.
        *keywords: names that an argument may have.
        alone: whether without such an argument it is one of these formulas, too.
    """
    new = _new(read)
    function = getattr(torch, name)
    for known in forms(name):
        for keyword in keywords:
            NAMED[known, keyword] = new
        if alone:
            STRAIGHT[known] = new
    if alone:
        NAMED[function, "out"] = lambda args: _writes(read, args[:-1], args[-1])
    for keyword in keywords:
        NAMED[function, keyword, "out"] = lambda args: _writes(read, args[:-1], args[-1])
        NAMED[function, "out", keyword] = lambda args: _writes(
            read, (*args[:-2], args[-1]), args[-2] if len(args) > 1 else None
        )
    method = getattr(Tensor, name + "_")

    def in_place(args: Arguments) -> Any:
        return _writes(read, args, args[0]) if args else NotImplemented

    for keyword in keywords:
        NAMED[method, keyword] = in_place
    if alone:
        STRAIGHT[method] = in_place


def _is_factor(value: Any) -> bool:
    """Whether it is a number that is multiplied by: no truth value, nothing that torch refuses."""
    return type(value) is float or (type(value) is int and -_LARGEST <= value < _LARGEST)


def _multiple(formula: Written) -> Reader:
    """x + alpha y of expansions of one format."""

    def read(args: Arguments) -> Written | None:
        if len(args) != 3:
            return None
        x, y, alpha = args
        if type(x) is not MCFTensor or type(y) is not MCFTensor or not _is_factor(alpha):
            return None
        a, b = x.__dict__, y.__dict__
        alike = a["_terms"] == b["_terms"] and a["_c0"].dtype is b["_c0"].dtype
        return formula if alike and alpha != 1 else None

    return read


def _combined(plain: Written, scaled: Written) -> Reader:
    """x + a b or x + a / b, and with a factor. What is plain becomes an expansion."""

    def read(args: Arguments) -> Written | None:
        if not (3 <= len(args) <= 4 and TENSORS.issuperset(map(type, args[:3]))):
            return None
        if len(args) == 3:
            return plain
        return scaled if _is_factor(args[3]) and args[3] != 1 else None

    return read


def _between(args: Arguments) -> Written | None:
    if len(args) != 3 or not TENSORS.issuperset(map(type, args[:2])):
        return None
    return between if type(args[2]) in OPERANDS else None


_register(_multiple(plus_multiple), "add", "alpha", alone=False)
_register(_multiple(minus_multiple), "sub", "alpha", alone=False)
_register(_combined(product_and_sum, multiple_product_plus), "addcmul", "value", alone=True)
_register(_combined(quotient_plus, multiple_quotient_plus), "addcdiv", "value", alone=True)
_register(_between, "lerp", "weight", alone=True)

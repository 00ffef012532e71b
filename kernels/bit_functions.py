"""Bitwise copies, signs, selections and tests of tensors, as steps of a sequence of launches."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mcf.kernels.program import SIZES, Move
from mcf.kernels.sequence import Bound, native_of

_WORD = 8

# Codes of the operations on bits, and the names by which `simple` knows them.
_COPIED, _AND, _OR, _XOR, _NAN, _INF, _FINITE, _SIGN, _WHERE, _NE, _EQ, _ALL, _ANY = range(13)
_NAMES = {
    "copy_": _COPIED,
    "clone": _COPIED,
    "neg": _COPIED,
    "bitwise_not": _COPIED,
    "bitwise_and": _AND,
    "__and__": _AND,
    "bitwise_or": _OR,
    "__or__": _OR,
    "bitwise_xor": _XOR,
    "__xor__": _XOR,
    "isnan": _NAN,
    "isinf": _INF,
    "isfinite": _FINITE,
    "signbit": _SIGN,
    "where": _WHERE,
    "ne": _NE,
    "eq": _EQ,
    "all": _ALL,
    "any": _ANY,
}
# Per float dtype, as integers: the sign bit, the mask of all other bits, and the bits of infinity.
_FLOATS = {
    torch.float64: (-(1 << 63), (1 << 63) - 1, 0x7FF << 52),
    torch.float32: (1 << 31, (1 << 31) - 1, 0xFF << 23),
}


def spread(name: str, given: Sequence[Tensor], out: Tensor) -> list[Bound] | None:
    """Prepare `simple` for operands of any layout that broadcast, by copying them first."""
    if not out.is_contiguous() or out.element_size() not in SIZES:
        return None
    if name in ("all", "any") or all(t.is_contiguous() and t.shape == out.shape for t in given):
        found = simple(name, given, out)
        return None if found is None else [found]
    before: list[Bound] = []
    dense = []
    for t in given:
        room = t
        if not t.is_contiguous() or t.shape != out.shape:
            if t.element_size() not in SIZES or t.is_neg():
                return None
            room = torch.empty(out.shape, dtype=t.dtype, device=t.device)
            before.append(copied(t, room))
        dense.append(room)
    found = simple(name, dense, out)
    return None if found is None else [*before, found]


def copied(x: Tensor, out: Tensor) -> Bound:
    """Prepare a copy of a tensor of any layout into a contiguous `out`; it may broadcast."""
    index, view = np.zeros(out.shape, np.int64), x.expand(out.shape)
    for at, step in zip(np.indices(out.shape), view.stride(), strict=True):
        index += at * step
    move = Move([0], [1], out.numel(), index, x.element_size())
    found = move.bound([x.data_ptr(), out.data_ptr()])
    return found._replace(keep=(found.keep, x, out))


def simple(name: str, given: Sequence[Tensor], out: Tensor) -> Bound | None:
    """Prepare a bitwise operation, named as in PyTorch; return None if it is not supported.

    All tensors are contiguous and of one shape, except that `all` and `any` reduce the elements of
    a tensor to one. Entry `SOURCE` of the argument table (the first object in `keep`) is the
    address of the first operand, entry `TARGET` that of the result. Callers may change both between
    calls.
    """
    kind, x = _NAMES.get(name), given[-1]
    folded = kind in (_ALL, _ANY) and len(given) == out.numel() == 1
    one_shape = all(t.is_contiguous() and (folded or t.shape == out.shape) for t in (*given, out))
    floats, truth = _FLOATS.get(x.dtype), x.dtype is torch.bool
    whole = kind in (_COPIED, _WHERE, _NE, _EQ)
    if kind is None or not one_shape or not (floats or truth or whole):
        return None
    mask = least = 0
    if kind == _WHERE:
        if given[0].dtype is not torch.bool or len(given) != 3:
            return None
        given = [*given[1:], given[0]]
    if kind in (_COPIED, _WHERE):
        if any(t.dtype is not x.dtype for t in given[:2]):
            return None
        if out.dtype is not x.dtype or x.element_size() not in (1, 4, 8):
            return None
        if name == "neg" and floats:
            mask = floats[0]
        elif name == "bitwise_not" and truth:
            mask = 1
        elif name in ("neg", "bitwise_not"):
            return None
    elif kind in (_AND, _OR, _XOR):
        if not all(t.dtype is torch.bool for t in (*given, out)) or len(given) != 2:
            return None
    elif kind in (_NE, _EQ):
        # Bits cannot decide whether floats are equal: zeros have two forms, and NaN differs from
        # itself.
        whole = all(t.dtype is torch.int64 for t in given) and out.dtype is torch.bool
        if not whole or len(given) != 2:
            return None
    elif kind in (_ALL, _ANY):
        if not (folded and truth and out.dtype is torch.bool and x.numel()):
            return None
    elif floats is None or out.dtype is not torch.bool:
        return None
    else:
        mask, least = (floats[0], 0) if kind == _SIGN else floats[1:]
    table = array("q", [kind, x.numel(), x.element_size(), mask, least, 0, 0, 0, 0, 0])
    table[TARGET] = out.data_ptr()
    for k, t in zip((SOURCE, SOURCE + 1, _CHOICE), given, strict=False):
        table[k] = t.data_ptr()
    place = table.buffer_info()[0]
    zero = place + _WORD * 8
    return Bound(native_of("simple", _SIMPLE).address, place, (zero, zero), 0, (table, given, out))


SOURCE, TARGET, _CHOICE = 5, 7, 9

_SIMPLE = """
def kernel(data):
    kind, count, size = number(data, 0), number(data, 1), number(data, 2)
    mask, least = number(data, 3), number(data, 4)
    first, second, out = word(data, 5), word(data, 6), word(data, 7)
    choice = word(data, 9)
    if kind > 10:
        found = 0
        for i in range(count):
            found += byte(first, i)
        put_byte(out, 0, 1 if found > 0 and (kind == 12 or found == count) else 0)
        return
    for i in range(count):
        source = first
        if kind == 8 and byte(choice, i) == 0:
            source = second
        if size == 8:
            x = number(source, i)
        elif size == 4:
            x = half(source, i)
        else:
            x = byte(source, i)
        if kind == 0 or kind == 8:
            x = x ^ mask
            if size == 8:
                put(out, i, x)
            elif size == 4:
                put_half(out, i, x)
            else:
                put_byte(out, i, x)
        elif kind == 1:
            put_byte(out, i, x & byte(second, i))
        elif kind == 2:
            put_byte(out, i, x | byte(second, i))
        elif kind == 3:
            put_byte(out, i, x ^ byte(second, i))
        elif kind == 4:
            put_byte(out, i, 1 if (x & mask) > least else 0)
        elif kind == 5:
            put_byte(out, i, 1 if (x & mask) == least else 0)
        elif kind == 6:
            put_byte(out, i, 1 if (x & mask) < least else 0)
        elif kind == 7:
            put_byte(out, i, 1 if (x & mask) != 0 else 0)
        elif kind == 9:
            put_byte(out, i, 1 if x != number(second, i) else 0)
        else:
            put_byte(out, i, 1 if x == number(second, i) else 0)
"""

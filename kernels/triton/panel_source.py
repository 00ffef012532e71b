"""Common parts of panel kernels, in which one program works on one matrix in memory.

Barriers surround every store: other threads load the element, and more threads may load it than the
one that stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton.language as tl

from mcf.kernels.fold import GROUP
from mcf.kernels.formats import FP32, Format
from mcf.kernels.triton.device_functions import binder
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.launching import kernel_of
from mcf.kernels.triton.register_rounding import jit, storage

BARRIER = "tl.debug_barrier()"


class KernelText:
    """The source of a kernel on tuples of components, built line by line.

    Args:
        operands: the number of components of each operand; `p_a_0` is the address of a[0].
        words: the integer arguments.
        constants: the arguments that are known at compile time.
    """

    def __init__(
        self, operands: Mapping[str, int], words: Sequence[str], constants: Sequence[str]
    ) -> None:
        self.operands = dict(operands)
        self._used = 0
        pointers = [f"p_{o}_{k}" for o, count in operands.items() for k in range(count)]
        arguments = [*pointers, *words, *(f"{name}: tl.constexpr" for name in constants)]
        self.lines = [f"def kernel({', '.join(arguments)}):"]
        self.add(1, "item = tl.program_id(0).to(tl.int64)")

    def add(self, depth: int, *lines: str) -> None:
        """Append lines to the kernel."""
        self.lines += ["    " * depth + line for line in lines]

    def load(self, operand: str, at: str, mask: str = "") -> str:
        """Return an expression that loads the tuples at some offsets, 0 where masked out."""
        more = f", mask={mask}, other=0.0" if mask else ""
        cells = [f"widen(tl.load(p_{operand}_{k} + {at}{more}))" for k in self._all(operand)]
        return f"({', '.join(cells)},)"

    def store(self, depth: int, operand: str, at: str, value: str, mask: str = "") -> None:
        """Store a tuple at some offsets, after a barrier for pending loads."""
        names = self._names(self.operands[operand])
        self.add(depth, f"{', '.join(names)}, = {value}", BARRIER)
        more = f", mask={mask}" if mask else ""
        for k, name in enumerate(names):
            self.add(depth, f"tl.store(p_{operand}_{k} + {at}, narrow({name}){more})")
        self.add(depth, BARRIER)

    def _names(self, count: int) -> list[str]:
        """Return fresh variables: a loop cannot carry a variable that changes its shape."""
        self._used += 1
        return [f"n{self._used}_{k}" for k in range(count)]

    def _all(self, operand: str) -> range:
        return range(self.operands[operand])

    def text(self) -> str:
        """Return the source of the kernel."""
        return "\n".join(self.lines) + "\n"


def variables(name: str, count: int) -> str:
    """Return a tuple of variables."""
    return "(" + "".join(f"{name}{k}, " for k in range(count)) + ")"


def selected(name: str, count: int, index: str) -> str:
    """Return the tuple `name` with an index applied to each of its component tensors."""
    return "(" + "".join(f"{name}[{k}]{index}, " for k in range(count)) + ")"


def folded(
    text: KernelText,
    depth: int,
    name: str,
    state: int,
    first: str,
    stop: str,
    left: Callable[[str], str],
    right: Callable[[str], str],
    shape: str,
) -> None:
    """Emit a fold of the terms f = first, ..., stop - 1 into `name`0, ..., as in a matrix product.

    Args:
        text: the source to which the lines are appended.
        depth: the indentation of the lines.
        name: the prefix of the partial sums.
        state: the number of registers of a partial sum.
        first: the first index.
        stop: the last index plus one.
        left: maps an index variable to the left factor, a tuple.
        right: maps an index variable to the right factor.
        shape: the shape of the partial sums.
    """
    sums = variables(name, state)
    names = sums[1:-1].rstrip(", ")
    text.add(depth, *(f"{name}{k} = tl.full({shape}, 0.0, register)" for k in range(state)))
    text.add(depth, f"f = {first}")
    for condition, count in ((f"while f + {GROUP} <= {stop}:", GROUP), (f"while f < {stop}:", 1)):
        parts = [f"term({left(at)}, {right(at)})" for at in ("f", *_after(count))]
        while len(parts) > 1:
            parts = [f"merge({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        text.add(depth, condition, f"    group = {parts[0]}")
        text.add(depth + 1, f"sums = combine({sums}, group)")
        for k, each in enumerate(names.split(", ")):
            text.add(depth + 1, f"{each} = tl.where(f == {first}, group[{k}], sums[{k}])")
        text.add(depth + 1, f"f += {count}")


def _after(count: int) -> list[str]:
    return [f"f + {k}" for k in range(1, count)]


def settled(text: KernelText, depth: int, name: str, terms: int, sums: str, state: int) -> None:
    """Emit the conversion of partial sums to `terms` components `name`0, `name`1, ..."""
    names = ", ".join(f"{name}{k}" for k in range(state))
    text.add(depth, f"{names}, = settle({variables(sums, state)})")


def _key(x):
    # Return integers that order numbers which are not negative, with NaN above all.
    bits = tl.abs(x).to(tl.int64, bitcast=True)
    return tl.where(x == x, bits, 0x7FF8000000000000)


def _key32(x):
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    return tl.where(x == x, bits, 0x7FC00000).to(tl.int64)


def build(
    text: str, name: str, fmt: Format, algorithms: Mapping[str, Any], dialect: Dialect
) -> Any:
    """Return the kernel of a source text in which algorithms are bound under their names."""
    register = fmt.register
    bind = binder(register, fmt, (("rc", fmt),), (), dialect)
    widen, _, narrow = storage(register, fmt, dialect)
    interpreted = dialect is Dialect.INTERPRETER
    key = _key32 if register == FP32 else _key
    namespace: dict[str, Any] = {
        "widen": widen,
        "narrow": narrow,
        "LARGEST": tl.standard._elementwise_max,
        "SMALLEST": tl.standard._elementwise_min,
        "key": key if interpreted else jit(key),
        "register": tl.constexpr(tl.float32 if register == FP32 else tl.float64),
        **{each: bind(algorithm) for each, algorithm in algorithms.items()},
    }
    return kernel_of(text, name, namespace, {}, dialect)

"""Emit algorithms as LLVM instructions by running each once on symbolic values.

An algorithm is straight-line code of primitives and Python's operators, so it need not be compiled
from its source: every operation writes its instruction when it runs, and repeated operations on the
same values are emitted once. Numba takes five times as long for the same instructions, by type
inference and inlining.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir

from mcf.kernels.bind import NEEDED, Algorithm, Binder
from mcf.kernels.formats import BF16, FP16, FP64, INT8, INT16, INT32, UINT4, UINT8, Format
from mcf.kernels.numba.compile.llvm_types import DOUBLE, FLOAT, I32, I64, LLVM, entry
from mcf.kernels.numba.compile.settings import Settings
from mcf.kernels.statements import OPERATORS, Symbolic

# Python's operators on registers and on integers.
_REAL = {"add": "fadd", "sub": "fsub", "mul": "fmul"}
_WHOLE = {
    "add": "add", "sub": "sub", "mul": "mul", "and": "and_", "or": "or_", "xor": "xor",
    "lshift": "shl", "rshift": "ashr",
}  # fmt: skip
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_WORDS = {
    "wadd": "add", "wsub": "sub", "wmul": "mul", "wand": "and_", "wor": "or_", "wxor": "xor",
    "wshl": "shl", "wshr": "lshr", "wsar": "ashr",
}  # fmt: skip


class Value(Symbolic):
    """A register, word, long or condition: one element, or the lanes of several vectors."""

    __slots__ = ("parts",)

    def __init__(self, owner: Trace, parts: tuple[Any, ...]) -> None:
        super().__init__(owner)
        self.parts = parts

    @property
    def kind(self) -> Any:
        """LLVM's type of an element."""
        found = self.parts[0].type
        return found.element if isinstance(found, ir.VectorType) else found


class Trace:
    """Emits instructions.

    Args:
        builder: llvmlite's builder.
        settings: of the compilation.
        lanes: of a vector; 0 for single elements.
        count: number of vectors, whose instructions alternate.
    """

    def __init__(self, builder: Any, settings: Settings, lanes: int = 0, count: int = 1) -> None:
        self.builder, self.settings, self.lanes, self.count = builder, settings, lanes, count
        self._known: dict[Any, Value] = {}
        # Integers that are constants, or sums of another value and a constant, by identity.
        self._integers: dict[int, int] = {}
        self._offsets: dict[int, tuple[Value, int]] = {}
        # Results of branches by the identities of their values.
        self._kept: list[Any] = []

    def type(self, kind: Any) -> Any:
        """Return LLVM's type of a value with elements of type `kind`."""
        return ir.VectorType(kind, self.lanes) if self.lanes else kind

    def constant(self, kind: Any, x: Any) -> Value:
        """Return a number as a value."""
        key = "constant", str(kind), repr(x)
        if key not in self._known:
            found = ir.Constant(self.type(kind), [x] * self.lanes if self.lanes else x)
            self._known[key] = made = Value(self, (found,) * self.count)
            if kind in (I32, I64):
                self._integers[id(made)] = x
        return self._known[key]

    def spread(self, x: Any) -> Value:
        """Broadcast a single element to all lanes."""
        if self.lanes:
            b, kind = self.builder, self.type(x.type)
            one = b.insert_element(ir.Constant(kind, ir.Undefined), x, I32(0))
            x = b.shuffle_vector(one, one, ir.Constant(ir.VectorType(I32, self.lanes), None))
        return Value(self, (x,) * self.count)

    def emit(self, name: Any, make: Callable[..., Any], *values: Value) -> Value:
        """Emit an operation on values, once for the same values."""
        key = name, *(id(p) for v in values for p in v.parts)
        if key not in self._known:
            rows = zip(*(v.parts for v in values), strict=True)
            # Keep the values alive, so that their identities are not reused.
            self._known[key] = Value(self, tuple([make(*row) for row in rows]))
        return self._known[key]

    def number(self, x: Any) -> Value:
        """Return a value; convert a number to a register."""
        return x if isinstance(x, Value) else self.constant(LLVM[self.settings.register], float(x))

    def _both(self, x: Any, y: Any) -> tuple[Value, Value]:
        # A literal has the type of the other operand.
        if not isinstance(x, Value):
            x = self.constant(y.kind, x) if isinstance(y, Value) else self.number(x)
        y = y if isinstance(y, Value) else self.constant(x.kind, y)
        assert x.kind == y.kind, f"{x.kind} beside {y.kind}"
        return x, y

    def operate(self, name: str, x: Any, y: Any) -> Value:
        """Emit one of Python's operators."""
        x, y = self._both(x, y)
        b, real = self.builder, x.kind in (FLOAT, DOUBLE)
        if name not in _COMPARED:
            method = getattr(b, (_REAL if real else _WHOLE)[name])
            given = {"flags": self.settings.flags} if real else {}
            found = self.emit(name, lambda p, q: method(p, q, **given), x, y)
            if name == "add" and not real and id(y) in self._integers:
                self._offsets[id(found)] = x, self._integers[id(y)]
            return found
        compare = b.icmp_signed
        if real:
            compare = b.fcmp_unordered if name == "ne" else b.fcmp_ordered
        return self.emit(name, lambda p, q: compare(OPERATORS[name], p, q), x, y)

    def rounded(self, x: Value, fmt: Format) -> Value:
        """Round a register to a format, ties to even; the result stays in the register."""
        register = self.settings.register
        if fmt == register or fmt in (INT8, UINT4, UINT8, INT16, INT32):
            return x
        if register == FP64 and fmt in (BF16, FP16):
            # Rounding through float32 would round twice.
            raise ValueError(f"no direct rounding from a float64 register to {fmt.name}")
        if fmt == BF16:
            return self._bf16(x)
        b, narrow, wide = self.builder, self.type(LLVM[fmt]), self.type(LLVM[register])
        return self.emit(fmt.name, lambda p: b.fpext(b.fptrunc(p, narrow), wide), x)

    def _bf16(self, x: Value) -> Value:
        """Round a float32 to bf16 on its bits; the carry turns overflow into infinity.

        The carry would also turn a NaN with payload bits that are rounded away into -0. Where such
        payloads can occur NaN is selected out, which costs as much as the rounding.
        """
        p = self.primitives
        pattern = p["bits"](x)
        odd = p["wand"](p["wshr"](pattern, 16), 1)
        near = p["wand"](p["wadd"](pattern, p["wadd"](odd, 0x7FFF)), -0x10000)
        quiet = p["wand"](p["wor"](pattern, 0x400000), -0x10000)
        found: Value = p["from_bits"](p["unless_payload"](x, near, quiet))
        return found

    def _unless_payload(self, x: Value, rounded: Value, quiet: Value) -> Value:
        if not self.settings.payloads:
            return rounded
        found: Value = self.primitives["where"](x == x, rounded, quiet)
        return found

    def _fms(self, x: Any, y: Any, z: Any) -> Value:
        s = self.settings
        x, y, z = map(self.number, (x, y, z))
        if s.arithmetic == s.register:
            return self.emit("fma", lambda *p: self._call("llvm.fma", *p), x, y, self._neg(z))
        # Products of 16-bit formats are exact in float32, and so is their rounding error.
        return self.rounded(x * y - z, s.arithmetic)

    def _neg(self, x: Any) -> Value:
        return self.emit("neg", self.builder.fneg, self.number(x))

    def _signed(self, x: Any) -> Value:
        x = self.number(x)
        b, whole = self.builder, I32 if x.kind == FLOAT else I64
        to = self.type(whole)
        zero = self.constant(whole, 0)
        return self.emit("signed", lambda p, z: b.icmp_signed("<", b.bitcast(p, to), z), x, zero)

    def _call(self, name: str, *given: Any) -> Any:
        """Call an LLVM intrinsic on registers."""
        kind, module = given[0].type, self.builder.module
        lanes = f"v{self.lanes}" if self.lanes else ""
        name = f"{name}.{lanes}f{32 if FLOAT in (kind, getattr(kind, 'element', kind)) else 64}"
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(kind, [kind] * len(given)), name)
        return self.builder.call(function, given)

    def _gather(self, table: Value, index: Value) -> Value:
        """Gather lane by lane, which is as fast as the processors' gather instructions.

        Components of a number have one vector of indices plus constant offsets, so that its lanes
        are extracted once for all of them.
        """
        b, kind = self.builder, LLVM[self.settings.register]
        index, beyond = self._offsets.get(id(index), (index, 0))

        def entries(address: Any, at: Any) -> Any:
            if not self.lanes:
                return entry(b, address, at, beyond, kind)
            found = ir.Constant(self.type(kind), ir.Undefined)
            for lane in range(self.lanes):
                one = entry(b, address, self._lane(at, lane), beyond, kind)
                found = b.insert_element(found, one, I32(lane))
            return found

        return self.emit(("gather", beyond), entries, table, index)

    def _lane(self, vector: Any, lane: int) -> Any:
        """Extract a lane of a vector, once per lane."""
        key = "lane", id(vector), lane
        if key not in self._known:
            one = self.builder.extract_element(vector, I32(lane))
            self._known[key] = Value(self, (one,))
        return self._known[key].parts[0]

    @functools.cached_property
    def primitives(self) -> dict[str, Any]:
        """Return the CPU's version of every primitive."""
        s, b = self.settings, self.builder
        # An integer as wide as a register.
        long, real = (I64 if s.register == FP64 else I32), LLVM[s.register]

        def cast(method: str, kind: Any) -> Callable[[Any], Value]:
            write, to = getattr(b, method), self.type(kind)
            return lambda x: self.emit((method, str(to)), lambda p: write(p, to), self.number(x))

        def of_register(name: str) -> Callable[[Any], Value]:
            return lambda x: self.emit(name, lambda p: self._call(name, p), self.number(x))

        def of_words(method: str) -> Callable[[Any, Any], Value]:
            def apply(x: Any, y: Any) -> Value:
                x, y = (v if isinstance(v, Value) else self.constant(I32, v) for v in (x, y))
                return self.emit(method, getattr(b, method), x, y)

            return apply

        def divided(x: Any, y: Any) -> Value:
            x, y = map(self.number, (x, y))
            return self.emit("fdiv", lambda p, q: b.fdiv(p, q, flags=s.flags), x, y)

        def linear(x: Any, y: Any, z: Any) -> Value:
            def write(p: Any, q: Any, r: Any) -> Any:
                return b.fadd(b.fmul(p, q, flags=("contract",)), r, flags=("contract",))

            return self.emit("linear", write, *map(self.number, (x, y, z)))

        def where(c: Value, x: Any, y: Any) -> Any:
            return x if x is y else self.emit("select", b.select, c, *self._both(x, y))

        def chosen(comparison: str) -> Callable[[Any, Any], Any]:
            return lambda x, y: where(self.operate(comparison, x, y), x, y)

        def rounding(fmt: Format) -> Callable[[Any], Value]:
            return lambda x: self.rounded(self.number(x), fmt)

        return {
            "rn": rounding(s.arithmetic),
            "rx": self.number,
            "fms": self._fms,
            "linear": linear,
            "unless_payload": self._unless_payload,
            "neg": self._neg,
            "signed": self._signed,
            "div": divided,
            "sqrt": of_register("llvm.sqrt"),
            "where": where,
            "lesser": chosen("lt"),
            "greater": chosen("gt"),
            "bits": cast("bitcast", I32),
            "from_bits": cast("bitcast", FLOAT),
            "word": cast("fptosi", I32),
            "number": cast("sitofp", FLOAT),
            **{name: of_words(method) for name, method in _WORDS.items()},
            "const": self.number,
            "whole": lambda k: self.constant(long, k),
            "bits64": cast("bitcast", I64),
            "from_bits64": cast("bitcast", DOUBLE),
            "long": cast("fptosi", long),
            "floating": cast("sitofp", real),
            "floor": of_register("llvm.floor"),
            "rint": of_register("llvm.rint"),
            "absolute": of_register("llvm.fabs"),
            "invert": lambda c: self.emit("not", b.not_, c),
            "gather": self._gather,
            "SPLITTER": self.number(2 ** ((s.arithmetic.p + 1) // 2) + 1),
            "ZERO": self.number(0),
            "ONE": self.number(1),
            "LARGEST": self.number(dict(s.roundings).get("rv", s.arithmetic).max),
            **{name: rounding(fmt) for name, fmt in s.roundings},
        }

    def bound(self, function: Algorithm, slots: Mapping[str, Algorithm]) -> Callable[..., Any]:
        """Bind an algorithm so that a call emits its instructions here."""
        bound: Callable[..., Any] = Binder(self.branching, self.primitives, slots)(function)
        return bound

    def branching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Bind an algorithm; a `NEEDED` one runs in a branch, taken if any element needs it."""
        if function.__code__.co_varnames[:1] != (NEEDED,):
            return function

        def branch(needed: Value, *given: Any) -> tuple[Value, ...]:
            b, known = self.builder, dict(self._known)
            before = b.block
            inside, after = b.append_basic_block("needed"), b.append_basic_block("needed.end")
            b.cbranch(self._any(needed), inside, after)
            b.position_at_end(inside)
            rows = [self.number(x).parts for x in function(needed, *given)]
            end = b.block
            b.branch(after)
            b.position_at_end(after)
            found = []
            for parts in rows:
                phis = []
                for part in parts:
                    phis.append(b.phi(part.type))
                    phis[-1].add_incoming(ir.Constant(part.type, ir.Undefined), before)
                    phis[-1].add_incoming(part, end)
                found.append(Value(self, tuple(phis)))
            # Values computed inside the branch are not available after it.
            self._kept += [self._known, found]
            self._known = known
            return tuple(found)

        return branch

    def _any(self, condition: Value) -> Any:
        """Return whether a condition holds for any element."""
        b, found = self.builder, condition.parts[0]
        for part in condition.parts[1:]:
            found = b.or_(found, part)
        if not self.lanes:
            return found
        word = ir.IntType(self.lanes)
        return b.icmp_unsigned("!=", b.bitcast(found, word), word(0))

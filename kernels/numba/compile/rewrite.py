"""Rewrite an optimised CPU loop without changing bits, and emit its object code.

LLVM has vectorised the loop already. It leaves four things undone. The gains are times without
each rewrite over those with it, on one thread of an AMD EPYC (Zen 5), with two float64 components.

*Additions as fused multiply-adds.* AMD's Zen adds on two pipes and multiplies on two others. The
networks are nearly all additions, which leaves half of the processor idle; FMA(a, 1, b) rounds the
same number as a + b. Additions become FMAs wherever fewer products than sums came before, with a 1
that LLVM cannot see through. Gain at 1e5 elements: products 1.19, sums 1.08, matrix products 1.18.
Delete this when LLVM's scheduling model of Zen distributes additions over all four pipes.

*Upper halves of words by one shuffle.* A value stored as bf16 is the upper half of a 32-bit word.
LLVM shifts two vectors of words, truncates each and joins them, in five instructions; one AVX-512
shuffle selects the 16-bit parts of two vectors. Gain: AdamW with precision="plus" 1.07 at 1e5
elements. Delete this when LLVM emits a shuffle for the shift and truncation.

*Stores past the cache.* A line that a loop writes in full need not be read from memory before. LLVM
has such stores only for aligned vectors, and it cannot prove alignment in a loop over elements.
Gain: sums 1.27 and products 1.24 at 1e6 elements. Delete this when the gain is gone.

*Long blocks in order.* LLVM's scheduler reorders a block of thousands of operations. Interleaved
chains then follow one another, out of reach of the processor's window. Gain of both rewrites of
long kernels at 1e5 elements: erf 1.4, softmax 1.28; exponentials lose a tenth. Delete this when
LLVM keeps the order of interleaved chains.

*Object code.* Numba's engine addresses constants by 64 bits, since their memory may lie anywhere.
Each constant takes a scalar instruction and a vector register, and LLVM spills constants to the
stack inside the loop when registers run out. A separate object file places code and constants next
to each other: an instruction addresses a constant by its offset and broadcasts it, without a
register. The step of `precision="4bit"` spills 15 vectors for each 64 elements instead of 47.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import llvmlite.binding as llvm

from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.runtime import processor

_ONE = "1.000000e+00"
_FUNCTION = re.compile(r"^define .*?^}$", re.MULTILINE | re.DOTALL)
_DEFINITION = re.compile(r"^define ([^@]*)@\"?([^\"(]+)\"?\(.*?^}$", re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"[\w.$-]+:")
_VALUE = r"%[\w.$-]+|zeroinitializer|splat \([^()]*\)"
# Without flags: additions that may be reordered are left to LLVM.
_SUM = re.compile(
    rf" *(?P<to>%[\w.$-]+) = (?P<kind>fadd|fsub) <(?P<lanes>\d+) x (?P<type>float|double)> "
    rf"(?P<a>{_VALUE}), (?P<b>{_VALUE})$"
)
# Cost on the product pipes: a division occupies them as long as several products.
_PRODUCT = re.compile(r" = (?:(fmul|fdiv) <|(?:tail )?call .*@llvm\.(fma|sqrt)\.v)")
_TIMES = {"fmul": 1, "fma": 1, "fdiv": 8, "sqrt": 12}
_STORE = re.compile(
    r"(?P<what> *store <(?P<lanes>\d+) x (?P<type>i8|i16|half|float|double)> .*), align \d+(?=,|$)"
)
# 32 words are two vectors of 512 bits.
_SHIFTED = re.compile(
    r"^ *(?P<to>%[\w.$-]+) = lshr (?:exact )?<32 x i32> (?P<words>%[\w.$-]+), "
    r"(?:splat \(i32 16\)|<i32 16(?:, i32 16){31}>)$",
    re.MULTILINE,
)
_CUT = re.compile(
    r"^ *(?P<to>%[\w.$-]+) = trunc (?:nuw )?<32 x i32> (?P<words>%[\w.$-]+) to <32 x i16>$",
    re.MULTILINE,
)
_UPPER = ", ".join(f"i32 {2 * k + 1}" for k in range(32))
_SIZES = {"i8": 1, "i16": 2, "half": 2, "float": 4, "double": 8}
_TEMPORAL = "!999999"
# Instructions with vector registers; the length of a long block; the distance of its labels.
_VECTOR = re.compile(r" = (?:fadd|fsub|fmul|fdiv|(?:tail )?call .*@llvm\.fma\.v)")
_LONG, _STRETCH = 300, 16
_NOTE = "!999998"


class _Function:
    """Rewrite one function's IR with every other addition of vectors as an FMA."""

    def __init__(self, text: str) -> None:
        first, *body = text.splitlines()
        self.lines: list[str] = []
        # Vectors of ones to define, as names and as (lanes, type).
        self.ones: dict[str, tuple[str, str]] = {}
        self.sums = self.products = 0
        for line in body:
            self._add(line)
        # The first block may lack a label.
        head = [self.lines.pop(0)] if _LABEL.match(self.lines[0]) else []
        constants = [line for one in self.ones for line in self._constant(one)]
        self.text = "\n".join([first, *head, *constants, *self.lines])

    def _add(self, line: str) -> None:
        if _LABEL.match(line):
            self.sums = self.products = 0
        match = _SUM.match(line)
        if match is None:
            product = _PRODUCT.search(line)
            self.products += 0 if product is None else _TIMES[product[1] or product[2]]
        elif self.sums <= self.products:
            self.sums += 1
        else:
            self.products += 1
            line = self._fused(match)
        self.lines.append(line)

    def _fused(self, match: re.Match[str]) -> str:
        to, lanes, kind, a, b = match.group("to", "lanes", "type", "a", "b")
        one = f"v{lanes}f{32 if kind == 'float' else 64}"
        self.ones[one] = lanes, kind
        vector = f"<{lanes} x {kind}>"
        if match["kind"] == "fsub":
            minus = f"%minus.{len(self.lines)}"
            self.lines.append(f"  {minus} = fneg {vector} {b}")
            a, b = minus, a
        values = ", ".join(f"{vector} {v}" for v in (a, f"%one.{one}", b))
        return f"  {to} = call {vector} @llvm.fma.{one}({values})"

    def _constant(self, one: str) -> list[str]:
        lanes, kind = self.ones[one]
        vector = f"<{lanes} x {kind}>"
        return [
            # A 1 that comes from an instruction that LLVM does not fold.
            f'  %one.{one}.x = call {kind} asm "", "=v,0"({kind} {_ONE})',
            f"  %one.{one}.y = insertelement {vector} poison, {kind} %one.{one}.x, i64 0",
            f"  %one.{one} = shufflevector {vector} %one.{one}.y, {vector} poison, "
            f"<{lanes} x i32> zeroinitializer",
        ]


def on_both_pipes(text: str) -> str:
    """Return a module with half of its vector additions as FMAs."""
    needed: dict[str, tuple[str, str]] = {}

    def replaced(match: re.Match[str]) -> str:
        function = _Function(match[0])
        needed.update(function.ones)
        return function.text

    text = _FUNCTION.sub(replaced, text)
    for one, (lanes, kind) in needed.items():
        vector = f"<{lanes} x {kind}>"
        if not re.search(rf"^declare .*@llvm\.fma\.{one}\(", text, re.MULTILINE):
            text += f"declare {vector} @llvm.fma.{one}({', '.join([vector] * 3)})\n"
    return text


def upper_halves(text: str) -> str:
    """Return a module that takes the upper halves of 32 words by one shuffle of 16-bit parts."""

    def in_function(function: re.Match[str]) -> str:
        words = {found["to"]: found["words"] for found in _SHIFTED.finditer(function[0])}

        def replaced(match: re.Match[str]) -> str:
            if match["words"] not in words:
                return match[0]
            to = match["to"]
            parts = f"%parts.{to[1:]}"
            return (
                f"  {parts} = bitcast <32 x i32> {words[match['words']]} to <64 x i16>\n"
                f"  {to} = shufflevector <64 x i16> {parts}, <64 x i16> poison, "
                f"<32 x i32> <{_UPPER}>"
            )

        return _CUT.sub(replaced, function[0])

    return _FUNCTION.sub(in_function, text)


def in_order(text: str) -> str:
    """Return a module whose long blocks of vectors are scheduled about in the order of its IR.

    LLVM schedules a block for the fewest registers, which puts interleaved chains one after the
    other. It moves no instruction across a label; these labels have no other purpose.
    """

    def in_function(function: re.Match[str]) -> str:
        lines: list[str] = []
        block: list[str] = []
        for line in function[0].splitlines():
            if _LABEL.match(line) or line == "}":
                lines += _labelled(block)
                block = []
            block.append(line)
        return "\n".join([*lines, *block])

    found = _FUNCTION.sub(in_function, text)
    if found == text:
        return text
    note = f'{_NOTE} = !{{!"order"}}'
    return f"{found}\ndeclare void @llvm.codeview.annotation(metadata)\n{note}\n"


def _labelled(block: list[str]) -> list[str]:
    """Return a block's lines, with labels among them if it is long."""
    vectors = [_VECTOR.search(line) is not None for line in block]
    if sum(vectors) < _LONG:
        return block
    lines, count = [], 0
    for line, vector in zip(block, vectors, strict=True):
        count += vector
        lines.append(line)
        if count == _STRETCH:
            lines.append(f"  call void @llvm.codeview.annotation(metadata {_NOTE})")
            count = 0
    return lines


def past_the_cache(text: str) -> str:
    """Return a module whose vector stores are aligned and bypass the cache.

    Each function ends with a fence, since such stores are weakly ordered.
    """
    lines = []
    for line in text.splitlines():
        match = _STORE.match(line)
        size = int(match["lanes"]) * _SIZES[match["type"]] if match is not None else 0
        if match is not None and size in (16, 32, 64):
            line = f"{match['what']}, align {size}, !nontemporal {_TEMPORAL}{line[match.end() :]}"
        if line.startswith("  ret "):
            lines.append("  fence seq_cst")
        lines.append(line)
    return "\n".join([*lines, f"{_TEMPORAL} = !{{i32 1}}"]) + "\n"


def without_errors(text: str, name: str) -> str | None:
    """Return a module whose named callback reports no errors; None if it may raise some.

    LLVM does not always see that a long loop only returns 0. Numba's error branch needs Python's
    interpreter, and therefore addresses of this process.
    """
    functions = {found[2]: found[0] for found in re.finditer(_DEFINITION, text)}
    wrapper, inner = functions.get(name, ""), functions.get(name.removeprefix("cfunc."), "")
    returned = {line for line in inner.splitlines() if line.startswith("  ret ")}
    lines = wrapper.splitlines()
    calls = [k for k, line in enumerate(lines) if f"@{name.removeprefix('cfunc.')}(" in line]
    kind = re.match(r"define (\S+) @", wrapper)
    if returned != {"  ret i32 0"} or len(calls) != 1 or kind is None:
        return None
    # The callback's own result is unused.
    short = [*lines[: calls[0] + 1], f"  ret {kind[1]} null", "}"]
    return text.replace(wrapper, "\n".join(short))


@functools.cache
def machine(name: str, features: str) -> Any:
    """Return the target machine that emits object code for a processor."""
    return objects.target().create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="small"
    )


def emit(text: str) -> bytes:
    """Emit the object code of a module."""
    module = llvm.parse_assembly(text)
    module.verify()
    code: bytes = machine(processor.name(), processor.features()).emit_object(module)
    return code


class Emitted:
    """Subset of a Numba library's interface that `stored` and tests need, for rewritten IR.

    Args:
        text: the module's optimised IR.
        library: the Numba library of the loop before rewriting.
        name: of the loop in the library.
    """

    def __init__(self, text: str, library: Any, name: str) -> None:
        self._text, self._library, self._name = text, library, name
        self.has_dynamic_globals = library.has_dynamic_globals

    def get_llvm_str(self) -> str:
        """Return the module's IR."""
        return self._text

    def get_pointer_to_function(self, name: str) -> int:
        """Return the loop's address, or the original loop's if the rewritten one needs Python."""
        self.native = objects.load(objects.Code(name, emit(self._text)))
        if self.native is not None:
            return self.native.address
        found: int = self._library.get_pointer_to_function(self._name)
        return found


def rewritten(function: Any, *, streamed: bool = False, ordered: bool = False) -> tuple[Any, str]:
    """Rewrite a compiled loop for this processor; return its library and its name there.

    Args:
        function: as Numba compiled it.
        streamed: whether its vector stores bypass the cache. It must not read them, and its vectors
            must begin at multiples of LINE.
        ordered: whether its long blocks keep the order of their IR.
    """
    library, name = function
    # A high-operation-count kernel is bound by latency, and an FMA takes a cycle longer; it
    # overwrites one of its operands, which costs copies with 16 registers. With 32, and vectors
    # that occupy each pipe twice, throughput is the limit.
    both = processor.both_pipes() and not (ordered and processor.vector_bytes() < 64)
    if not (streamed or both or ordered):
        return library, name
    suffix = ".streamed" if streamed else ".both" if both else ".ordered"
    # The wrapper's name ends with the loop's name: rename both.
    inner = name.removeprefix("cfunc.")
    text = library.get_llvm_str().replace(inner, inner + suffix)
    if both:
        text = on_both_pipes(text)
        if processor.shuffles_parts():
            text = upper_halves(text)
    if ordered:
        text = in_order(text)
    if streamed:
        text = past_the_cache(text)
    return Emitted(text, library, name), name + suffix

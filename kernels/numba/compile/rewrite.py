"""Rewrites of an optimised CPU loop that change no bit: pipes, order, and how it stores.

LLVM has vectorised the loop by then. Four things are left that it does not do by itself.

*Additions as fused multiply-adds.* AMD's Zen adds on two pipes and multiplies on two others. The
networks are nearly all additions, which leaves half of the processor idle; FMA(a, 1, b) is the same
rounding of the same number as a + b. So additions become that wherever fewer products than sums
came before, with a 1 that LLVM cannot see through.

*Upper halves of words by one shuffle.* What is stored as bf16 is the upper half of a 32-bit word.
LLVM shifts two vectors of words, cuts each and joins them, five instructions; of AVX-512's shuffles
one takes the 16-bit parts of two vectors that it is told.

*Long blocks in order.* Of a block of thousands of operations LLVM's scheduler makes one in which
interleaved chains come one after the other, out of reach of the processor's window.

*Stores past the cache.* A line that a loop writes in full need not be read from memory before. LLVM
has such stores only for vectors that are aligned, which it cannot know of a loop over elements.
"""

from __future__ import annotations

import re
from typing import Any

from mcf.kernels.numba.compile.emitted import Emitted
from mcf.kernels.numba.runtime import processor

_ONE = "1.000000e+00"
_FUNCTION = re.compile(r"^define .*?^}$", re.MULTILINE | re.DOTALL)
_DEFINITION = re.compile(r"^define ([^@]*)@\"?([^\"(]+)\"?\(.*?^}$", re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r"[\w.$-]+:")
_VALUE = r"%[\w.$-]+|zeroinitializer|splat \([^()]*\)"
# Without flags: what may be reordered is LLVM's.
_SUM = re.compile(
    rf" *(?P<to>%[\w.$-]+) = (?P<kind>fadd|fsub) <(?P<lanes>\d+) x (?P<type>float|double)> "
    rf"(?P<a>{_VALUE}), (?P<b>{_VALUE})$"
)
# How long the pipes of products are taken: by a division for as long as by several products.
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
# What takes a vector's registers; blocks of so many are long, and so many stand between two labels.
_VECTOR = re.compile(r" = (?:fadd|fsub|fmul|fdiv|(?:tail )?call .*@llvm\.fma\.v)")
_LONG, _STRETCH = 300, 16
_NOTE = "!999998"


class _Function:
    """One function's text, with every other addition of vectors as an FMA."""

    def __init__(self, text: str) -> None:
        first, *body = text.splitlines()
        self.lines: list[str] = []
        # The vectors of ones that it needs, and as (lanes, type).
        self.ones: dict[str, tuple[str, str]] = {}
        self.sums = self.products = 0
        for line in body:
            self._add(line)
        # The first block may go without its label.
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
            # A 1 that comes out of an instruction that LLVM does not know.
            f'  %one.{one}.x = call {kind} asm "", "=v,0"({kind} {_ONE})',
            f"  %one.{one}.y = insertelement {vector} poison, {kind} %one.{one}.x, i64 0",
            f"  %one.{one} = shufflevector {vector} %one.{one}.y, {vector} poison, "
            f"<{lanes} x i32> zeroinitializer",
        ]


def on_both_pipes(text: str) -> str:
    """A module with half of its vectors' additions as FMAs."""
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
    """A module in which the upper halves of 32 words are one shuffle of their 16-bit parts."""

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
    """A module whose long blocks of vectors are computed about in the order of its text.

    LLVM puts a block's instructions in the order that needs fewest registers, which of interleaved
    chains makes one after the other. It moves none across a label; these labels are nothing but
    that.
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
    """A block's lines, with labels among them if it is long."""
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
    """A module whose vectors are stored aligned and without a place in the cache.

    Each function ends with a fence: such stores wait for no other.
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
    """A module whose callback of this name reports no errors; None where there may be some.

    LLVM is not always aware that a long loop returns 0 and nothing else. What Numba would do then
    needs Python's interpreter, and with it addresses of this process.
    """
    functions = {found[2]: found[0] for found in re.finditer(_DEFINITION, text)}
    wrapper, inner = functions.get(name, ""), functions.get(name.removeprefix("cfunc."), "")
    returned = {line for line in inner.splitlines() if line.startswith("  ret ")}
    lines = wrapper.splitlines()
    calls = [k for k, line in enumerate(lines) if f"@{name.removeprefix('cfunc.')}(" in line]
    kind = re.match(r"define (\S+) @", wrapper)
    if returned != {"  ret i32 0"} or len(calls) != 1 or kind is None:
        return None
    # The callback's own result means nothing.
    short = [*lines[: calls[0] + 1], f"  ret {kind[1]} null", "}"]
    return text.replace(wrapper, "\n".join(short))


def rewritten(function: Any, *, streamed: bool = False, ordered: bool = False) -> tuple[Any, str]:
    """A compiled loop as this processor is to have it: its library and the name of it there.

    Args:
        function: as Numba compiled it.
        streamed: whether what it stores in vectors goes past the cache: it must not read that, and
            its vectors must begin at multiples of LINE.
        ordered: whether its long blocks stay in the order of their text.
    """
    library, name = function
    # A long formula waits for results, and an FMA's takes a cycle more; of two registers that it
    # reads it writes one, so it costs copies where there are 16. With 32, and vectors that take
    # each pipe twice, pipes are what is short.
    both = processor.both_pipes() and not (ordered and processor.vector_bytes() < 64)
    if not (streamed or both or ordered):
        return library, name
    suffix = ".streamed" if streamed else ".both" if both else ".ordered"
    # The loop's own name ends the wrapper's: both change.
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

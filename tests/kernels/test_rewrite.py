"""Rewrites of compiled loops: they are there, and change no bit.

*Exact*: each kernel's bits with and without its rewrites, on numbers, special values, wide
exponents and lengths that leave a rest. Mutant: a 1 that is none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mcf
from mcf.kernels import operations, operators, registry
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.numba import cpu
from mcf.kernels.numba.compile import rewrite
from mcf.kernels.numba.loops import element_loops
from mcf.kernels.numba.runtime import processor, streaming, team
from tests.helpers import assert_same_bits
from tests.helpers.draws import bell, power_of_two
from tests.helpers.everyday import everyday

llvm = pytest.importorskip("llvmlite.binding")
with_fma = pytest.mark.skipif(
    not llvm.get_host_cpu_features().get("fma", False),
    reason="this processor has no fused multiply-add of x86",
)

# All kinds of statements: additions only, products, quotients and roots; three arguments.
CASES = (
    (operators.ADD, FP64, 2),
    (operators.FMA, FP32, 2),
    (operators.MUL, FP64, 4),
    (operators.DIV, FP64, 3),
    (operators.SQRT, FP32, 4),
)
EVERYDAY = 2
SIZE = 3 * cpu.ITEM + 21


def tensors(fmt: Any, count: int, size: int = SIZE) -> list[Tensor]:
    """Numbers of wide exponents, with special values at the front, that begin at lines."""
    generator = torch.Generator().manual_seed(count)
    out = []
    for k in range(count):
        x = bell(size, generator)
        x = x * power_of_two(torch.randint(-60, 60, (size,), generator=generator))
        x[:8] = torch.tensor([0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 2.0**100])
        out.append(x.roll(k).to(fmt.dtype))
    return out


def results(address: int, spec: Elementwise, given: list[Tensor]) -> list[Tensor]:
    """What a compiled loop writes for given operands."""
    count = len(spec.results)
    size = given[0].numel()
    out = [torch.full((size + 1,), 7.0, dtype=given[0].dtype) for _ in range(count)]
    prepared = cpu.Launch(spec, [size])
    prepared._large = False
    prepared._loop = type("Loop", (), {"address": address})()
    prepared.run([[t.data_ptr()] for t in (*out, *given)], np.zeros((1, 0)))
    assert all(t[-1] == 7 for t in out)
    return out


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets whether the processor has pipes for products beside those for sums."""
    return lambda both: monkeypatch.setattr(processor, "both_pipes", lambda: both)


def kernel(case: tuple[Any, Any, int]) -> tuple[Elementwise, list[Tensor]]:
    operation, fmt, terms = case
    arguments = len(operation.arguments)
    return operators.kernel(operation, fmt, *[terms] * arguments), tensors(fmt, terms * arguments)


cases = everyday(
    [(c,) for c in CASES], lambda c: c in CASES[:EVERYDAY], id=lambda c: f"{c[0].name}{c[2]}"
)


@pytest.mark.sampled(every=3)
@with_fma
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("case", cases)
def test_rewrites_change_no_bit(case: Any, streamed: bool, pipes: Any) -> None:
    spec, given = kernel(case)
    function = element_loops.loop_of(spec).compiled()
    pipes(False)
    assert rewrite.rewritten(function) == function
    plain = function.library.get_pointer_to_function(function.name)
    pipes(True)
    library, name = rewrite.rewritten(function, streamed=streamed)
    changed = library.get_pointer_to_function(name)
    text = library.get_llvm_str()
    assert text.count("@llvm.fma.v") > function.library.get_llvm_str().count("@llvm.fma.v")
    assert ("!nontemporal" in text) == streamed
    for size in (SIZE, 5):
        some = [t[:size] for t in given]
        expected, actual = results(plain, spec, some), results(changed, spec, some)
        for k, (a, b) in enumerate(zip(actual, expected, strict=True)):
            assert_same_bits(a, b, f"component {k}, {size} elements")


@with_fma
def test_a_one_that_is_none_is_caught(pipes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, given = kernel(CASES[0])
    function = element_loops.loop_of(spec).compiled()
    expected = results(function.library.get_pointer_to_function(function.name), spec, given)
    pipes(True)
    monkeypatch.setattr(rewrite, "_ONE", "0x3FF0000000000001")
    library, name = rewrite.rewritten(function)
    changed = library.get_pointer_to_function(name)
    assert any(
        not torch.equal(a, b) for a, b in zip(results(changed, spec, given), expected, strict=True)
    )


@pytest.mark.parametrize(("lanes", "fused"), [(64, True), (32, False)])
def test_long_formulas_fuse_additions_where_there_are_32_registers(
    lanes: int, fused: bool, pipes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, _ = kernel(CASES[0])
    function = element_loops.loop_of(spec).compiled()
    pipes(True)
    monkeypatch.setattr(processor, "vector_bytes", lambda: lanes)
    before = function.library.get_llvm_str().count("@llvm.fma.v")
    for ordered, expected in ((False, True), (True, fused)):
        library, name = rewrite.rewritten(function, ordered=ordered)
        assert (library.get_llvm_str().count("@llvm.fma.v") > before) == expected
        assert name != function.name


def test_half_of_the_additions_stay() -> None:
    lines = "\n".join(f"  %r.{k} = fadd <8 x double> %a, %b" for k in range(9))
    text = rewrite.on_both_pipes(f"define void @f() {{\nentry:\n{lines}\n  ret void\n}}\n")
    assert (text.count(" fadd "), text.count(" call <8 x double>")) == (5, 4)
    assert text.count("declare <8 x double> @llvm.fma.v8f64(") == 1
    # Beside as many products additions are on pipes of their own.
    busy = lines.replace("fadd", "fmul") + "\n" + lines.replace("%r", "%s")
    text = rewrite.on_both_pipes(f"define void @f() {{\n{busy}\n  ret void\n}}\n")
    assert (text.count(" fadd "), text.count(" call ")) == (9, 0)
    # What may be reordered or has one lane stays.
    for line in ("%r = fadd reassoc <8 x double> %a, %b", "%r = fadd double %a, %b"):
        text = "\n".join(["define void @f() {", *["  " + line] * 9, "}", ""])
        assert rewrite.on_both_pipes(text) == text


def test_vectors_alone_are_stored_past_the_cache() -> None:
    text = "\n".join(
        [
            "define void @f() {",
            "  store <8 x double> %x, ptr %p, align 8, !alias.scope !1",
            "  store <4 x i16> %x, ptr %p, align 2",
            "  store double %x, ptr %p, align 8",
            "  ret void",
            "}",
        ]
    )
    lines = rewrite.past_the_cache(text).splitlines()
    assert re.fullmatch(r".*align 64, !nontemporal !\d+, !alias.scope !1", lines[1])
    assert lines[2:4] == text.splitlines()[2:4]
    assert lines[4] == "  fence seq_cst"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each launch stored past the cache, on a processor with a small one."""
    found: list[bool] = []
    native = team.native

    # Every launch looks its loop's function up, on one thread and on several.
    def watched(address: int) -> Callable[[int], None]:
        loops = {
            loop.__dict__["_streamed"].address
            for loop in element_loops._kernels.values()
            if "_streamed" in loop.__dict__
        }
        found.append(address in loops)
        return native(address)

    monkeypatch.setattr(streaming, "last_level", lambda: 1 << 20)
    monkeypatch.setattr(team, "native", watched)
    cpu._prepared.cache_clear()
    yield found
    cpu._prepared.cache_clear()


def test_large_results_are_stored_past_the_cache(launched: list[bool]) -> None:
    size = 1 << 16
    x, y = (tuple(tensors(FP64, 2, size)) for _ in range(2))
    out = tuple(torch.empty(size + 8, dtype=torch.float64)[:size] for _ in range(2))
    with mcf.executor("torch"):
        expected = operations.add(x, y)
    shifted = tuple(torch.empty(size + 8, dtype=torch.float64)[3 : size + 3] for _ in range(2))
    with mcf.executor("numba"):
        spec, none = operators.kernel(operators.ADD, FP64, 2, 2), torch.zeros(1, 0).double()
        registry.run(spec, [[*out, *x, *y]], none)
        registry.run(spec, [[*shifted, *x, *y]], none)
        operations.add(tuple(t[:64] for t in x), tuple(t[:64] for t in y))
    # A target that does not begin at a line, and a small one, go through the cache.
    assert launched == [True, False, False]
    for found in (out, shifted):
        for a, b in zip(found, expected, strict=True):
            assert_same_bits(a, b, "result")


@pytest.mark.parametrize(("items", "parts"), [(0, 1), (1, 1), (7, 2), (8, 3), (3, 3)])
def test_shares_hold_each_item_once(items: int, parts: int) -> None:
    words = team.shares(items, parts)
    found = []
    for part in range(1, parts + 1):
        found += range(words[8 * part], words[8 * part + 1])
    assert found == list(range(items))
    assert len(words) == 8 * (parts + 1)
    assert words[0] == 0


WORDS = """define void @f(i64 %a) {{
  %p = inttoptr i64 %a to ptr
  %words = load <32 x i32>, ptr %p, align 4
  %1 = lshr <32 x i32> %words, <{shift}>
  %2 = trunc <32 x i32> %1 to <32 x i16>
  %q = getelementptr i8, ptr %p, i64 128
  store <32 x i16> %2, ptr %q, align 2
  ret void
}}
"""


def halves(text: str) -> Tensor:
    """What the function makes of words whose halves are 0, ..., 63."""
    memory = torch.arange(96, dtype=torch.int16)
    native = rewrite.Emitted(text, type("Library", (), {"has_dynamic_globals": False}), "f")
    team.native(native.get_pointer_to_function("f"))(memory.data_ptr())
    return memory[64:]


def test_upper_halves_are_one_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    text = WORDS.format(shift=", ".join(["i32 16"] * 32))
    changed = rewrite.upper_halves(text)
    assert "trunc" not in changed
    expected = torch.arange(1, 64, 2, dtype=torch.int16)
    assert torch.equal(halves(text), expected)
    assert torch.equal(halves(changed), expected)
    # A shift by less is not of halves.
    other = WORDS.format(shift=", ".join(["i32 15"] * 32))
    assert rewrite.upper_halves(other) == other
    monkeypatch.setattr(rewrite, "_UPPER", rewrite._UPPER.replace("i32 63", "i32 62"))
    assert not torch.equal(halves(rewrite.upper_halves(text)), expected)


def _sums(count: int) -> str:
    lines = "\n".join(f"  %r.{k} = fadd <8 x double> %a, %b" for k in range(count))
    return f"define void @f(<8 x double> %a, <8 x double> %b) {{\nentry:\n{lines}\n  ret void\n}}\n"


def test_labels_in_long_blocks_alone() -> None:
    """A mutant that counts lines of other kinds, or begins in short blocks."""
    short = _sums(rewrite._LONG - 1)
    assert rewrite.in_order(short) == short
    text = rewrite.in_order(_sums(rewrite._LONG))
    llvm.parse_assembly(text).verify()
    marks = [k for k, line in enumerate(text.splitlines()) if "call void @llvm.codeview" in line]
    assert len(marks) == rewrite._LONG // rewrite._STRETCH
    assert set(np.diff(marks)) == {rewrite._STRETCH + 1}

"""Keys of compiled loops: whatever changes what is compiled changes the key.

*Exact*. Mutants: one constant, operator, callee, slot, option, file or version that is another.
"""

from __future__ import annotations

import dataclasses
import sys
import textwrap
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from mcf.kernels import fold, operators
from mcf.kernels.algorithms import transforms
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import BF16, FP16, FP32, FP64
from mcf.kernels.numba.cache import keys
from mcf.kernels.numba.compile import stored
from mcf.kernels.numba.compile.loop import Loop
from mcf.kernels.numba.loops import element_loops, fold_loops
from mcf.kernels.numba.runtime import processor

FORMULAS = """
def inner(a, b):
    return rn(a + b)

def middle(a, b):
    return inner(a, b)

def outer(a, b):
    return middle(a, b), rn(a * 2.0)
"""


def formulas(**changes: str) -> FunctionType:
    """`outer` of FORMULAS, with some of its text replaced, in a module of its own."""
    text = FORMULAS
    for old, new in changes.values():
        assert text.count(old) == 1
        text = text.replace(old, new)
    namespace: dict[str, Any] = {"__name__": "formulas"}
    exec(compile(text, "<formulas>", "exec"), namespace)
    return namespace["outer"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a + b", "a - b"),
        ("a + b", "b + a"),
        ("2.0", "2.0000000000000004"),
        ("2.0", "2"),
        ("2.0", "-2.0"),
        ("return inner(a, b)", "return inner(b, a)"),
        ("return rn(a + b)", "return rx(a + b)"),
    ],
)
def test_a_change_anywhere_below_changes_the_key(old: str, new: str) -> None:
    assert keys.algorithm(formulas()) == keys.algorithm(formulas())
    assert keys.algorithm(formulas(change=(old, new))) != keys.algorithm(formulas())


def test_a_callee_that_is_replaced_changes_the_key() -> None:
    function, other = formulas(), formulas(change=("a + b", "a - b"))
    before = keys.algorithm(function)
    function.__globals__["inner"] = other.__globals__["inner"]
    assert keys.algorithm(function) == keys.algorithm(other) != before


def test_slots_and_names_count() -> None:
    function = formulas()
    other = formulas(change=("a + b", "a - b")).__globals__["inner"]
    keyed = {keys.algorithm(function, slots) for slots in ((), (("inner", other),))}
    assert len(keyed) == 2
    # A name which nothing stands for is another one.
    assert keys.algorithm(formulas(change=("return rn(a + b)", "return rn(a + c)"))) not in keyed


def test_recursion_ends() -> None:
    namespace: dict[str, Any] = {"__name__": "recursive"}
    exec("def f(a):\n    return g(a)\ndef g(a):\n    return f(a)", namespace)
    assert keys.algorithm(namespace["f"]) == keys.algorithm(namespace["f"])


def test_parts_are_told_apart() -> None:
    groups = [
        *(("ab", "c"), ("a", "bc"), ("abc",), (["ab"], "c"), (["ab", "c"],), ("ab", b"c")),
        *((1,), (1.0,), (True,), ("1",), (0.0,), (-0.0,), (None,), (float("nan"),), ()),
        *((BF16,), (FP16,), (frozenset({1, 2}),), ((1, 2),)),
    ]
    assert len({keys.digest(*group) for group in groups}) == len(groups)
    assert keys.digest(frozenset({"a", "b"})) == keys.digest(frozenset({"b", "a"}))
    with pytest.raises(TypeError, match="no digest of object"):
        keys.digest(object())


def parts(spec: Elementwise) -> str:
    return keys.key(*element_loops.parts_of(spec))


def test_declarations() -> None:
    spec = operators.kernel(operators.ADD, FP32, 2, 2)
    again = dataclasses.replace(spec, serial=spec.serial + 1, name="another")
    assert parts(again) == parts(spec)
    others = [
        dataclasses.replace(spec, arithmetic=BF16),
        dataclasses.replace(spec, roundings=(("rv", BF16),)),
        dataclasses.replace(spec, slots=(("two_sum", transforms.fast_two_sum),)),
        dataclasses.replace(
            spec, fields=tuple(dataclasses.replace(f, format=BF16) for f in spec.fields)
        ),
        operators.kernel(operators.ADD, FP64, 2, 2),
        operators.kernel(operators.SUB, FP32, 2, 2),
        operators.kernel(operators.TWO_SUM, FP32),
    ]
    assert len({parts(s) for s in (spec, *others)}) == 1 + len(others)


@pytest.mark.parametrize("name", ["BLOCK", "CHUNK", "GROUP", "LANES", "STEP"])
def test_constants_of_other_files_count(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "native", lambda parts, make: keys.key(*parts))
    spec = fold.sum_fold(FP64, 2, 2)
    before = fold_loops._loop.__wrapped__(spec, "sum").native()
    assert fold_loops._loop.__wrapped__(spec, "sum").native() == before
    monkeypatch.setattr(fold_loops, name, 2 * getattr(fold_loops, name))
    assert fold_loops._loop.__wrapped__(spec, "sum").native() != before


@pytest.mark.parametrize(
    "change",
    [
        (processor, "name", lambda: "x86-64"),
        (processor, "features", lambda: "+sse2"),
        (processor, "both_pipes", lambda: not was_both),
        (keys, "_versions", lambda: ("another",)),
        (keys, "_told", [("NUMBA_OPT", "0")]),
        (keys, "_at_import", "another"),
        (sys.modules["mcf"], "__version__", "another"),
    ],
    ids=lambda change: change[1],
)
def test_processor_versions_and_files_count(
    change: tuple[Any, str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = keys.key("test")
    assert keys.key("test") == before
    monkeypatch.setattr(*change)
    assert keys.key("test") != before


def nothing_done(data: int) -> None:
    """Do nothing."""


was_both = processor.both_pipes()


def test_files_that_change_while_a_process_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keys.holds()
    here, deeper = tmp_path / "numba" / "cache", tmp_path / "numba" / "loops" / "rows"
    here.mkdir(parents=True)
    deeper.mkdir(parents=True)
    for name in ("bind.py", "cache_files.py", "statements.py"):
        (tmp_path / name).write_text("")
    (here / "keys.py").write_text("")
    monkeypatch.setattr(keys, "__file__", str(here / "keys.py"))
    monkeypatch.setattr(keys, "_at_import", keys._files())
    assert keys.holds()
    for folder in (here, deeper, tmp_path / "numba"):
        (folder / "another.py").write_text("")
        assert not keys.holds()
        (folder / "another.py").unlink()
    (deeper / "another.py").write_text("")
    # What is compiled then has parts of both, and is not kept.
    monkeypatch.setenv("MCF_CACHE_DIR", str(tmp_path / "cache"))
    Loop(nothing_done, whole=True).native()
    assert not (tmp_path / "cache").exists()
    # In an archive there are none.
    monkeypatch.setattr(
        keys, "__file__", str(tmp_path / "archive.zip" / "numba" / "cache" / "keys.py")
    )
    assert keys._files() == ""
    monkeypatch.setattr(keys, "_at_import", "")
    assert keys.key("test") == ""


def test_numbas_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numba = pytest.importorskip("numba")
    monkeypatch.setattr(numba.config, "CPU_NAME", "znver3")
    monkeypatch.setattr(numba.config, "CPU_FEATURES", "+fma,+avx2")
    assert (processor.name(), processor.features()) == ("znver3", "+fma,+avx2")
    assert processor.both_pipes()
    # Before Numba is imported they are read from where it reads them.
    monkeypatch.delitem(sys.modules, "numba")
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    monkeypatch.delenv("NUMBA_CPU_FEATURES", raising=False)
    assert (processor.name(), processor.features()) == ("generic", "")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx")
    assert processor.features() == "+avx"
    monkeypatch.chdir(tmp_path)
    told = keys._settings({"NUMBA_OPT": "0", "NUMBA_CACHE_DIR": "x", "PATH": "y"})
    assert told == [("NUMBA_OPT", "0")]
    (tmp_path / ".numba_config.yaml").write_text(textwrap.dedent("opt: 1\n"))
    assert keys._settings({}) == [("file", "opt: 1\n")]

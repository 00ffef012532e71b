"""Compiled loops on disk: found by the next process, with the same bits.

*Exact*: bits of a loop from the cache are those of the loop that Numba compiled and linked itself.
What is wrong with files and folders is in test_loop_cache_files.py.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mcf.kernels import cache_files, operators
from mcf.kernels.formats import FP32, FP64
from mcf.kernels.numba import cpu
from mcf.kernels.numba.cache import objects
from mcf.kernels.numba.compile import rewrite
from mcf.kernels.numba.loops import element_loops
from tests.helpers import assert_same_bits
from tests.kernels.loop_cache_cases import adds, compilations, emptied

pytestmark = pytest.mark.skipif(not cache_files.available(), reason="no owners of files here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return emptied(tmp_path, monkeypatch)


FIRST = """
import hashlib, json, os, sys
import torch
import mcf
from mcf.kernels.numba.compile import stored
from mcf.optim import AdamW

x = mcf.tensor([1.5, 2.5, 3.0], terms=2, dtype=torch.float64)
# A second of work, which nothing but torch.compile needs.
assert "torch._dynamo" not in sys.modules
w = torch.nn.Parameter(torch.arange(-500, 500).bfloat16())
w.grad = w.detach() / 8
optimizer = AdamW([w], lr=0.5)
optimizer.step()
found = [*(x + x).components, *x.sum().components, w.detach().float()]
bits = hashlib.sha256(b"".join(t.numpy().tobytes() for t in found)).hexdigest()
print(json.dumps([stored.compiled, bits, "numba" in sys.modules]))
"""


FORKED = """
from tests.kernels.loop_cache_cases import adds, added
children = []
for _ in range(4):
    child = os.fork()
    if child == 0:
        before = stored.compiled
        ok = added(stored.native(("forked",), adds(5))) == 45
        ok = ok and added(stored.native(("forked",), adds(-1))) == 45
        os._exit(0 if ok and stored.compiled <= before + 1 else 1)
    children.append(child)
print(json.dumps([os.waitpid(child, 0)[1] for child in children]))
"""


def process(text: str, **environment: str) -> list[Any]:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.mark.slow
def test_the_second_process_compiles_nothing(tmp_path: Path) -> None:
    where = {"MCF_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.getcwd()}
    (compiled, bits, numba), forked = process(FIRST + FORKED, **where)
    assert compiled > 0
    assert numba
    # Four processes that compile one loop at once leave one file, and nothing half done.
    assert forked == [0] * 4
    names = [path.name for path in (tmp_path / "cache" / "loops").iterdir()]
    assert len(names) == compiled + 1
    assert not [name for name in names if name.startswith(".")]
    assert process(FIRST, **where) == [[0, bits, False]]


@pytest.mark.parametrize(
    ("operation", "fmt", "terms"), [(operators.ADD, FP64, 2), (operators.DIV, FP32, 2)]
)
def test_bits_with_and_without_the_cache(operation: Any, fmt: Any, terms: int) -> None:
    spec = operators.kernel(operation, fmt, terms, terms)
    size = cpu.ITEM + 21
    numbers = torch.arange(-7919, size - 7919, dtype=torch.float64)
    given = [numbers.roll(31 * k).mul(3.0 ** (9 - k)).to(fmt.dtype) for k in range(2 * terms)]

    def results(address: int) -> list[torch.Tensor]:
        out = [torch.full((size,), 7.0, dtype=fmt.dtype) for _ in spec.results]
        prepared = cpu.Launch(spec, [size])
        prepared._loop = type("Loop", (), {"address": address})()
        prepared.run([[t.data_ptr()] for t in (*out, *given)], np.zeros((1, 0)))
        return out

    loop = element_loops.Loop(spec)
    function = element_loops.loop_of(spec).compiled()
    # Numba's engine makes machine code of its own out of the text.
    engine = function.library.get_pointer_to_function(function.name)
    for a, b in zip(results(loop.address), results(engine), strict=True):
        assert_same_bits(a, b, "component")


def test_numba_makes_no_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the file is all there is; Numba's would take a quarter of the compilation."""
    from mcf.kernels.numba.compile import callbacks

    made: list[str] = []
    add = callbacks.Library._add
    monkeypatch.setattr(callbacks.Library, "_add", lambda s: (made.append(s.name), add(s)))
    library, symbol = adds(5)()
    text = library.get_llvm_str()
    assert objects.load(objects.Code(symbol, rewrite.emit(text))) is not None
    assert not made
    assert library.get_pointer_to_function(symbol)
    assert made


def test_a_loop_is_compiled_once(folder: Path) -> None:
    assert [compilations() for _ in range(3)] == [1, 0, 0]
    assert compilations(("test", "other"), 3) == 1
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("value", ["", "0"])
def test_switched_off(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCF_CACHE_DIR", value)
    assert cache_files.root() is None
    assert [compilations() for _ in range(2)] == [1, 1]
    assert not folder.exists()


def test_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCF_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_files.root() == tmp_path / ".cache" / "mcf"
    # Another user's home: with sudo, or in a container.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache_files.root() is None
    monkeypatch.undo()
    monkeypatch.delenv("MCF_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_files.root() == tmp_path / "mcf"
    monkeypatch.setenv("MCF_CACHE_DIR", "here")
    assert cache_files.root() == Path.cwd() / "here"


def test_code_that_needs_the_process_is_not_loaded() -> None:
    library, symbol = adds(1)()
    elf = rewrite.emit(library.get_llvm_str())
    assert objects.undefined(elf) == set()
    assert objects.load(objects.Code(symbol, elf)) is not None
    assert objects.load(objects.Code("another", elf)) is None
    module = """
        declare void @{0}()
        define void @f(i64 %x) {{
          call void @{0}()
          ret void
        }}
    """
    machine = library.codegen._tm
    llvm = pytest.importorskip("llvmlite.binding")
    for name in ("PyErr_Clear", "system", "no_such_function", "memcpy"):
        elf = machine.emit_object(llvm.parse_assembly(module.format(name)))
        assert objects.undefined(elf) == {name}
        loaded = objects.load(objects.Code("f", elf))
        assert (loaded is not None) == (name == "memcpy")
    for cut in (0, 5, 70, len(elf) // 2):
        assert objects.undefined(elf[:cut]) is None


def test_least_recently_used_files_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_files, "_OFTEN", 1)
    for k in range(8):
        cache_files.write(f"{k}", bytes(100))
        os.utime(folder / f"{k}", (k, k))
    # What is read becomes recent.
    assert cache_files.read("0") == bytes(100)
    orphan, fresh = folder / ".orphan", folder / ".fresh"
    orphan.write_bytes(b"")
    os.utime(orphan, (0, 0))
    fresh.write_bytes(b"")
    unlink = os.unlink

    def raced(path: str, **options: Any) -> None:
        # Another process prunes at the same time.
        unlink(path, **options)
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", raced)
    monkeypatch.setattr(cache_files, "LIMIT", 800)
    cache_files.write("8", bytes(100))
    assert {path.name for path in folder.iterdir()} == {"0", "5", "6", "7", "8", "4", ".fresh"}
    monkeypatch.setattr(cache_files, "FILES", 5)
    cache_files.write("9", b"")
    assert {path.name for path in folder.iterdir()} == {"0", "8", "9", ".fresh"}


def test_all_kinds_of_loops_can_be_kept() -> None:
    from mcf.kernels import fold
    from mcf.kernels.numba.loops import fold_loops as folds
    from mcf.kernels.numba.loops import integer_sums

    sums = fold.sum_fold(FP64, 2, 2)
    loops = [
        integer_sums.digits_loop(),
        integer_sums.squares_loop(FP32, 28, 30),
        integer_sums.squares_loop(FP64, 28, 30),
        folds.compiled(sums, "sum"),
        folds.compiled(sums, "halving"),
        folds.compiled(fold.product_fold(FP64, 2, 2, 2), "product"),
    ]
    loops += [element_loops.Loop(operators.kernel(operators.TWO_SUM, FP32))._streamed]
    assert {type(loop.keep).__name__ for loop in loops} == {"ExecutionEngine"}

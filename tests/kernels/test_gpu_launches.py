"""Launches as a GPU would make them: Triton accepts their arguments and compiles their kernels.

The launches are those of public calls, on sizes that Triton could take for constants (1) or for
multiples (16), and on tensors that begin anywhere; see kernels/triton/stand_in.py. Mutants:
kernels whose sizes Triton specialises, and a product whose variables change their types.

`pytest --gpu-launches` does the same for the launches of any test; one slow test here runs it on
all tests of the default selection that use Triton.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

pytest.importorskip(
    "triton",
    minversion="3.6",
    reason="needs Linux, and a Triton that compiles what it has interpreted before (3.6 or newer)",
)

import mcf
from mcf.elementary import fused
from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import product_fold
from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.triton import fold_kernels, gpu, launching
from mcf.kernels.triton.stand_in import gpu_launches
from mcf.linalg import orthogonal_rows
from mcf.optim import AdamW
from tests.helpers.everyday import everyday

ROOT = Path(__file__).resolve().parents[2]
F32, F64, HALF, NARROW = torch.float32, torch.float64, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, mcf.executor("triton"):
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        yield


def of_shape(shape: tuple[int, ...], dtype: torch.dtype, terms: int) -> Any:
    """An expansion tensor whose matrices have 4 on their diagonals and 0 elsewhere."""
    return mcf.tensor(torch.eye(*shape[-2:], dtype=F64).expand(shape) * 4, terms, dtype)


def assert_compiled(launches: list[Any], count: int) -> None:
    """How many kernels of folds and panels were compiled, whatever the sizes."""
    assert len({kernel.hash for kernel in launches if kernel.name == "kernel"}) == count


FORMATS = [(d, n) for d in (NARROW, HALF, F32, F64) for n in range(1, 4 if d == HALF else 5)]


def products(dtype: torch.dtype, terms: int, sizes: tuple[int, ...]) -> list[Any]:
    """Launch matrix products of all shapes of some sizes."""
    with gpu_launches(run=False) as launches:
        for rows, inner, columns in itertools.product(sizes, repeat=3):
            left = mcf.tensor(torch.ones(rows, inner, dtype=F64), terms, dtype)
            left @ mcf.tensor(torch.ones(inner, columns, dtype=F64), terms, dtype)
    return launches


@pytest.mark.parametrize(
    ("dtype", "terms"), everyday(FORMATS, [(F32, 1), (NARROW, 1), (F64, 2)]), ids=str
)
def test_products_of_any_sizes_are_one_compilation(dtype: torch.dtype, terms: int) -> None:
    assert_compiled(products(dtype, terms, (1, 2, 16, 100)), 1)


@pytest.mark.parametrize(("dtype", "terms"), everyday(FORMATS, [(F32, 1)]), ids=str)
def test_sums_of_any_sizes_are_two_compilations(dtype: torch.dtype, terms: int) -> None:
    """One of lanes, and one of halvings."""
    with gpu_launches(run=False) as launches:
        for shape in itertools.product((1, 16, 300), (1, 16, 300, 20_000)):
            mcf.tensor(torch.ones(shape, dtype=F64), terms, dtype).sum(1)
    assert_compiled(launches, 2)


# Each with shapes: rows, columns or batches that are 1.
LINALG: dict[str, tuple[Callable[[Any], Any], tuple[tuple[int, ...], ...]]] = {
    "lu": (torch.linalg.lu_factor, ((1, 1), (16, 16), (2, 33, 1), (3, 1, 2))),
    "cholesky": (torch.linalg.cholesky, ((1, 1), (16, 16), (3, 5, 5))),
    "solve": (lambda a: torch.linalg.solve(a, a), ((1, 1), (16, 16), (3, 5, 5))),
    "inv": (torch.linalg.inv, ((1, 1), (4, 4))),
    "qr": (torch.linalg.qr, ((1, 1), (3, 1), (1, 3), (2, 4, 3))),
    "svd": (torch.linalg.svd, ((1, 1), (3, 1), (1, 3), (2, 4, 3))),
    "eigh": (torch.linalg.eigh, ((1, 1), (2, 2), (2, 3, 3))),
}
MATRICES = [
    (name, dtype, terms)
    for name in LINALG
    for dtype, terms in FORMATS
    if terms <= 2 or dtype == F64
]


@pytest.mark.parametrize(
    ("name", "dtype", "terms"),
    everyday(MATRICES, [("lu", F32, 1), ("qr", F64, 1)]),
    ids=str,
)
def test_factorisations_of_any_sizes_compile(name: str, dtype: torch.dtype, terms: int) -> None:
    call, shapes = LINALG[name]
    with gpu_launches() as launches:
        for shape in shapes:
            call(of_shape(shape, dtype, terms))
    assert any(kernel.name == "kernel" for kernel in launches)


@pytest.mark.parametrize("terms", everyday([(1,), (2,), (3,), (4,)], [(1,)]))
def test_rotations_of_any_sizes_compile(terms: int) -> None:
    """Rows of numbers of which the first one or more count."""
    with gpu_launches() as launches:
        for width in (1, 2, 16):
            rows = [torch.eye(2, 16, dtype=F64)[None] for _ in range(terms)]
            orthogonal_rows.orthogonalize(tuple(rows), width, 2.0 ** (4 - 53 * terms))
    assert_compiled(launches, 1)


def row_of(spec: Elementwise, count: int, offsets: list[int]) -> list[Tensor]:
    """Tensors that begin so many elements into their memory, which torch aligns."""
    return [
        torch.ones(count + offset, dtype=field.format.dtype)[offset:]
        for field, offset in zip(spec.fields, offsets, strict=True)
    ]


def launched(spec: Elementwise, count: int, offsets: list[int]) -> str:
    """Launch a kernel of one row; return the hash of what was compiled."""
    with gpu_launches(run=False) as launches:
        none = torch.zeros(1, len(spec.scalars), dtype=F64)
        gpu.EXECUTOR.run(spec, [row_of(spec, count, offsets)], none)
    [kernel] = launches
    return str(kernel.hash)


def test_elementwise_kernels_are_compiled_for_alignments_alone() -> None:
    spec = operators.kernel(operators.TWO_SUM, BF16)
    aligned, other = [0] * len(spec.fields), [1] * len(spec.fields)
    kernels = [[launched(spec, n, offsets) for n in (1, 16, 1000)] for offsets in (aligned, other)]
    assert [len(set(found)) for found in kernels] == [1, 1]
    assert kernels[0] != kernels[1]


def test_long_formulas_are_compiled_once() -> None:
    spec = fused.kernel("hypot", FP64, 2, 2)
    assert spec.long
    assert launched(spec, 16, [0] * len(spec.fields)) == launched(spec, 1, [1] * len(spec.fields))


@pytest.mark.parametrize("precision", everyday(["plus", "plain", "master", "8bit"], ["plus"]))
def test_a_step_of_many_tensors_compiles(precision: str) -> None:
    """Aligned tensors in one launch, the others in a second; a later step compiles nothing."""
    memory = torch.zeros(3000, dtype=NARROW)
    parts = [memory[:1], memory[16:32], memory[33:1100], memory[2048:]]
    params = [Parameter(part) for part in parts]
    optimizer = AdamW(params, precision=precision)
    with gpu_launches() as launches:
        for _ in range(2):
            for p in params:
                p.grad = torch.ones_like(p)
            optimizer.step()
    found = [kernel.hash for kernel in launches]
    assert found
    assert set(found[: len(found) // 2]) == set(found)


def test_specialised_sizes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: Triton makes constants of sizes that are 1, and looks for multiples of 16."""
    function = launching.triton.JITFunction
    monkeypatch.setattr(
        launching.triton, "JITFunction", lambda made, do_not_specialize=None: function(made)
    )
    monkeypatch.setattr(fold_kernels, "build", fold_kernels.build.__wrapped__)
    with pytest.raises(AssertionError):
        assert_compiled([*products(NARROW, 1, (2,)), *products(NARROW, 1, (16,))], 1)


def test_a_kernel_that_does_not_compile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: a variable is a block in one branch, and the literal 0.0 in the other."""
    source = fold_kernels.product_source
    spec = product_fold(FP32, 1, 1, 1)
    text = source(spec)
    assert "g0, g1," in text
    assert "t0, t1," in text
    changed = text.replace("t0", "g0").replace("t1", "g1")
    monkeypatch.setattr(fold_kernels, "product_source", lambda spec: changed)
    monkeypatch.setattr(fold_kernels, "build", fold_kernels.build.__wrapped__)
    x = [torch.ones(1, 1, 1)]
    with (
        gpu_launches(run=False),
        pytest.raises(RuntimeError, match=r"does not compile for .*\[1, 1"),
    ):
        fold_kernels.product(spec, x, x)


@pytest.mark.slow
def test_launches_of_the_default_tests_compile() -> None:
    """All launches of the default selection, in a process of its own."""
    command = [sys.executable, "-m", "pytest", "--gpu-launches", "-q", "-p", "no:cacheprovider"]
    chosen = "(triton or interpreted) and not compile and not gpu_launches"
    folders = [f"tests/{name}" for name in ("kernels", "mcf", "optim")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [*command, "-k", chosen, *folders],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert run.returncode == 0, run.stdout[-10_000:]
    assert " passed" in run.stdout


def test_launches_on_a_gpu_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "launch", lambda *given, **named: "compiled")
    with gpu_launches(run=False) as launches:
        assert launching.launch(torch.device("cuda"), lambda dialect: None, 1) == "compiled"
    assert launches == ["compiled"]

"""Kernels in float32 registers, compiled for a GPU that need not be there: no float64 in them.

Mutant: the same folds in float64 registers.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from triton.compiler import ASTSource

from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import Fold, product_fold, sum_fold
from mcf.kernels.formats import BF16, FP16, FP32, FP64
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.element_kernels import build
from mcf.kernels.triton.launching import options
from tests.kernels import machine_code as code
from tests.kernels import test_triton_compile_fold as folds

TARGET = "sm_90"


def has_float64(ptx: str) -> bool:
    """Whether an instruction computes with, converts or loads float64."""
    found = [opcode for _, opcode in code.ptx_instructions(ptx)]
    assert len(found) > 20
    return any("f64" in opcode for opcode in found)


def fold_ptx(spec: Fold, kind: str) -> str:
    source = folds.source(spec, kind, TARGET)
    out = "p" if kind == "halving" else "out_ptr"
    signature = source.signature | {out: f"*{spec.register.name}"}
    source = ASTSource(fn=source.fn, signature=signature, constexprs=source.constants)
    chosen = options(code.TARGETS[TARGET])
    return str(code.compile_source(source, TARGET, chosen).asm["ptx"])


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (product_fold(FP32, 2, 2, 2, FP32), "sum"),
        (product_fold(FP32, 2, 2, 2, FP32), "halving"),
        pytest.param(product_fold(FP32, 4, 4, 4, FP32), "product", marks=pytest.mark.slow),
        pytest.param(product_fold(FP16, 3, 3, 3, FP32), "product", marks=pytest.mark.slow),
        pytest.param(sum_fold(BF16, 2, 2, FP32), "sum", marks=pytest.mark.slow),
    ],
    ids=lambda c: getattr(c, "name", c),
)
def test_folds(spec: Fold, kind: str) -> None:
    assert not has_float64(fold_ptx(spec, kind))


def test_the_check_sees_float64() -> None:
    assert has_float64(fold_ptx(product_fold(FP32, 2, 2, 2, FP64), "halving"))


def element_ptx(spec: Elementwise) -> str:
    """As `gpu._launch` hands it over: scalars have the registers' format."""
    signature = {f"{f.name}_ptr": f"*{f.format.name}" for f in spec.fields}
    signature |= {"scalars_ptr": "*fp32", "sums_ptr": "*fp64", "n": "i32"}
    function = build(spec, Dialect.of(code.TARGETS[TARGET]))
    source = ASTSource(fn=function, signature=signature, constexprs={})
    return str(code.compile_source(source, TARGET, options(code.TARGETS[TARGET])).asm["ptx"])


@pytest.mark.parametrize(
    "spec",
    [
        operators.kernel(operators.RSQRT, FP32, 2),
        operators.settle_kernel(2, register=FP32),
        pytest.param(operators.kernel(operators.MUL, FP32, 4, 4), marks=pytest.mark.slow),
        pytest.param(operators.kernel(operators.SQRT, BF16, 3), marks=pytest.mark.slow),
    ],
    ids=lambda spec: spec.name,
)
def test_operations_of_elements(spec: Elementwise) -> None:
    assert not has_float64(element_ptx(spec))

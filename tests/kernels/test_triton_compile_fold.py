"""The kernels of folds, compiled for GPUs that need not be there, and read.

They must hold exactly the FMAs that their products ask for: one contracted addition more would give
other bits. Mutant: the same kernels with fusion on. Those in float32 registers, and elementwise
kernels there, have no float64 in them. Mutant: the same folds in float64 registers.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from triton.compiler import ASTSource

from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.fold import GROUP, LANES, Fold, product_fold, sum_fold
from mcf.kernels.formats import BF16, FP16, FP32, FP64
from mcf.kernels.triton import fold_kernels as fold
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.launching import THREADS
from tests.helpers.everyday import everyday
from tests.kernels import machine_code as code

SPECS = {
    "sum_bf16": sum_fold(BF16, 2, 2),
    "sum_fp64": sum_fold(FP64, 2, 2),
    "product_bf16": product_fold(BF16, 2, 2, 2),
    "product_fp32": product_fold(FP32, 4, 4, 4),
    "product_fp64": product_fold(FP64, 2, 2, 2),
    "product4_fp64": product_fold(FP64, 4, 4, 4),
}
# A group of terms twice and a single one twice stand in the text of a kernel.
COPIES = 2 * GROUP + 2
FMAS = {"product_fp64": 1, "product4_fp64": 6}
EVERYDAY = {("product_bf16", "sum"), ("product_fp64", "sum"), ("product_fp64", "product")}


def source(spec: Fold, kind: str, target: str) -> ASTSource:
    """A kernel as a launch hands it to Triton's compiler."""
    if kind == "halving":
        signature = {"p": f"*{spec.register.name}", **dict.fromkeys(fold.HALVING_SIZES, "i32")}
    else:
        signature = {
            f"p_{o}_{c}": f"*{fmt.name}"
            for o, (count, fmt) in enumerate(zip(spec.components, spec.formats, strict=True))
            for c in range(count)
        }
        sizes = fold.PRODUCT_SIZES if kind == "product" else fold.SUM_SIZES
        signature |= {"out_ptr": f"*{spec.register.name}", **dict.fromkeys(sizes, "i32")}
    function = fold.build(spec, kind, Dialect.of(code.TARGETS[target]))
    return ASTSource(fn=function, signature=signature, constexprs={})


def compiled(spec: Fold, kind: str, target: str, **changes: Any) -> str:
    """The kernel's assembly."""
    asm = code.compile_launch(source(spec, kind, target), target, **changes)
    return str(asm["ptx"] if "ptx" in asm else asm["amdgcn"])


def fmas(text: str) -> int:
    return len(re.findall(r"\bfma\.rn\.f64|\bv_(?:pk_)?fma\w*_f64|\bv_fmac_f64", text))


def expected(name: str, kind: str) -> set[int]:
    """How many FMAs there may be; compilers may make one of the two single terms of a product."""
    elements = {"sum": LANES, "product": fold.ROWS * fold.COLUMNS, "halving": 0}[kind]
    copy = FMAS.get(name, 0) * elements // THREADS
    return {COPIES * copy, (COPIES - (kind == "product")) * copy}


CASES = everyday(
    [
        (name, kind, target)
        for target in code.TARGETS
        for name, spec in SPECS.items()
        for kind in ("sum", "halving" if spec.name.startswith("sum") else "product")
    ],
    lambda name, kind, target: (name, kind) in EVERYDAY and target == "sm_90",
)


@pytest.mark.sampled(every=48)
@pytest.mark.parametrize(("name", "kind", "target"), CASES)
def test_no_addition_is_contracted(name: str, kind: str, target: str) -> None:
    text = compiled(SPECS[name], kind, target)
    assert fmas(text) in expected(name, kind)
    assert not re.search(r"\.approx|\.ftz", text)


def test_with_fusion_the_check_fails() -> None:
    text = compiled(SPECS["product_fp64"], "sum", "sm_90", enable_fp_fusion=True)
    assert fmas(text) not in expected("product_fp64", "sum")


def has_float64(ptx: str) -> bool:
    """Whether an instruction computes with, converts or loads float64."""
    found = [opcode for _, opcode in code.ptx_instructions(ptx)]
    assert len(found) > 20
    return any("f64" in opcode for opcode in found)


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
def test_folds_in_float32_have_no_float64(spec: Fold, kind: str) -> None:
    assert not has_float64(compiled(spec, kind, "sm_90"))


def test_the_check_sees_float64() -> None:
    assert has_float64(compiled(product_fold(FP32, 2, 2, 2, FP64), "halving", "sm_90"))


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
def test_operations_of_elements_have_no_float64(spec: Elementwise) -> None:
    assert not has_float64(code.compile_kernel(spec, "sm_90").asm["ptx"])

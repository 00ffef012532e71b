"""The kernels of panels, compiled for GPUs that need not be there, and read.

They must hold as many FMAs as products ask for, and no more: one contracted addition would give
other bits. Mutant: the same kernels with fusion on.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton has wheels for Linux only")

from triton.compiler import ASTSource

from mcf.kernels.elimination import KINDS, elimination
from mcf.kernels.formats import BF16, FP32, FP64
from mcf.kernels.reflection import reflection
from mcf.kernels.rotation import rotations
from mcf.kernels.triton import elimination_kernels, reflection_kernels, rotation_kernels
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.launching import options
from tests.helpers.everyday import everyday
from tests.kernels import machine_code as code

FORMATS = {"bf16": BF16, "fp32": FP32, "fp64": FP64}


def source(kind: str, fmt: str, terms: int, target: str) -> ASTSource:
    """A kernel as a launch hands it to Triton's compiler."""
    dialect = Dialect.of(code.TARGETS[target])
    if kind in ("reflection", "rotations"):
        return _of_float64(kind, terms, dialect)
    kind, _, numbers = kind.partition(" ")
    spec = elimination(kind, FORMATS[fmt], terms, 2 if numbers else 1)
    terms = spec.terms
    operands = "ax" if kind == "substitution" else "a"
    signature = {f"p_{o}_{k}": f"*{fmt}" for o in operands for k in range(terms)}
    many = elimination_kernels.sizes(terms)
    if kind == "substitution":
        words = elimination_kernels.SUBSTITUTION
        constants = {"UPPER": 1, "UNIT": 0, "COLUMNS": many}
    else:
        signature |= {"pivots": "*i32", "info": "*i32"}
        words = elimination_kernels.WORDS
        constants = {"EXCHANGE": int(kind == "lu"), "ROWS": many}
        constants["SEARCHED"] = elimination_kernels.SEARCHED
    constants["WIDTH"] = elimination_kernels.WIDTH
    signature |= dict.fromkeys(words, "i32") | dict.fromkeys(constants, "constexpr")
    return ASTSource(
        fn=elimination_kernels.kernel(spec, dialect), signature=signature, constexprs=constants
    )


def _of_float64(kind: str, terms: int, dialect: Dialect) -> ASTSource:
    """Reflections, or rotations of 64 rows."""
    if kind == "reflection":
        words = reflection_kernels.WORDS
        constants = {"ROWS": reflection_kernels.sizes(terms), "WIDTH": reflection_kernels.WIDTH}
        signature = {f"p_{o}_{k}": "*fp64" for o in "avt" for k in range(terms)}
        kernel = reflection_kernels.kernel(reflection(terms), dialect)
    else:
        words = rotation_kernels.WORDS
        constants = rotation_kernels.sizes(64, terms)
        signature = {f"p_x_{k}": "*fp64" for k in range(terms)}
        signature |= {f"p_t_{k}": "*fp64" for k in range(3)}
        signature |= {"places": "*i64", "done": "*i64"}
        kernel = rotation_kernels.kernel(rotations(terms), dialect)
    signature |= dict.fromkeys(words, "i32") | dict.fromkeys(constants, "constexpr")
    return ASTSource(fn=kernel, signature=signature, constexprs=constants)


def compiled(kind: str, fmt: str, terms: int, target: str, **changes: Any) -> tuple[int, str]:
    """How many FMAs LLVM was given, and the assembly."""
    reason = code.unavailable(target)
    if reason is not None:
        pytest.skip(reason)
    chosen = options(code.TARGETS[target]) | changes
    asm = code.compile_source(source(kind, fmt, terms, target), target, chosen).asm
    return code.llvm_operations(asm["llir"])["fma"], str(asm["ptx"])


CASES = [
    (kind, fmt, terms, target)
    for target in ("sm_90", "sm_80", "sm_100")
    for kind, fmt, terms in (
        *(("lu", "fp64", 2), ("cholesky", "fp64", 2), ("substitution", "fp64", 2)),
        *(("lu", "fp32", 2), ("lu", "bf16", 2), ("substitution", "fp64", 4)),
        *((f"{kind} complex", "fp64", 2) for kind in KINDS),
        *(("reflection", "fp64", 1), ("reflection", "fp64", 2)),
        *(("rotations", "fp64", 1), ("rotations", "fp64", 2)),
    )
]
EVERYDAY = ("lu", "fp64", 2, "sm_90")


@pytest.mark.parametrize(
    ("kind", "fmt", "terms", "target"),
    everyday(CASES, [EVERYDAY]),
)
def test_no_addition_is_contracted(kind: str, fmt: str, terms: int, target: str) -> None:
    wanted, text = compiled(kind, fmt, terms, target)
    assert len(re.findall(r"\bfma\.rn\.f(?:32|64)", text)) == wanted
    assert not re.search(r"\.approx|\.ftz", text)
    assert "bar.sync" in text


def test_with_fusion_the_check_fails() -> None:
    wanted, text = compiled("substitution", "fp64", 2, "sm_90", enable_fp_fusion=True)
    assert len(re.findall(r"\bfma\.rn\.f64", text)) > wanted

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
from tests.helpers.everyday import everyday
from tests.kernels import machine_code as code

FORMATS = {"bf16": BF16, "fp32": FP32, "fp64": FP64}


def source(kind: str, fmt: str, terms: int, target: str) -> ASTSource:
    """A kernel as a launch hands it to Triton's compiler; rotations of 64 rows."""
    dialect = Dialect.of(code.TARGETS[target])
    kind, _, numbers = kind.partition(" ")
    if kind == "reflection":
        module, spec, operands = reflection_kernels, reflection(terms), dict.fromkeys("avt", terms)
        words, pointers = module.WORDS, {}
        constants = {"ROWS": module.sizes(terms), "WIDTH": module.WIDTH}
    elif kind == "rotations":
        module, spec, operands = rotation_kernels, rotations(terms), {"x": terms, "t": 3}
        words, pointers = module.WORDS, {"places": "*i64", "done": "*i64"}
        constants = module.sizes(64, terms)
    else:
        module, spec = (
            elimination_kernels,
            elimination(kind, FORMATS[fmt], terms, 2 if numbers else 1),
        )
        operands = dict.fromkeys("ax" if kind == "substitution" else "a", spec.terms)
        many, constants = module.sizes(spec.terms), {"WIDTH": module.WIDTH}
        if kind == "substitution":
            words, pointers = module.SUBSTITUTION, {}
            constants |= {"UPPER": 1, "UNIT": 0, "COLUMNS": many}
        else:
            words, pointers = module.WORDS, {"pivots": "*i32", "info": "*i32"}
            constants |= {"EXCHANGE": int(kind == "lu"), "ROWS": many}
            constants["SEARCHED"] = module.SEARCHED
    signature = {f"p_{o}_{k}": f"*{fmt}" for o, count in operands.items() for k in range(count)}
    signature |= pointers | dict.fromkeys(words, "i32") | dict.fromkeys(constants, "constexpr")
    return ASTSource(fn=module.kernel(spec, dialect), signature=signature, constexprs=constants)


def compiled(kind: str, fmt: str, terms: int, target: str, **changes: Any) -> tuple[int, str]:
    """How many FMAs LLVM was given, and the assembly."""
    asm = code.compile_launch(source(kind, fmt, terms, target), target, **changes)
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

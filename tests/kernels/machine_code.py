"""Compile a kernel for GPUs that need not be there, and read what the compilers made of it."""

from __future__ import annotations

import collections
import dataclasses
import functools
import pathlib
import re
import subprocess
import tempfile
from typing import Any

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from mcf.kernels import operators
from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32
from mcf.kernels.triton.dialect import Dialect
from mcf.kernels.triton.element_kernels import TABLES, block, build
from mcf.kernels.triton.launching import THREADS, options

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_POINTERS = {
    "int16": "*i16",
    "int8": "*i8",
    "uint8": "*u8",
    "uint4": "*u8",
    "bf16": "*bf16",
    "fp16": "*fp16",
    "fp32": "*fp32",
    "fp64": "*fp64",
}


def elements(spec: Elementwise) -> int:
    """How many elements a thread computes."""
    return 1 if spec.few else block(spec) // THREADS


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What the compilers made, by Triton's name of the stage, and from what."""

    asm: dict[str, Any]
    target: str
    options: dict[str, Any]
    many: bool = False


def compile_kernel(
    spec: Elementwise,
    target: str,
    *,
    aligned: bool = True,
    size: str = "i32",
    many: bool = False,
    **changes: Any,
) -> Compiled:
    """A kernel as a launch compiles it.

    Args:
        spec: the kernel.
        target: a key of TARGETS.
        aligned: whether the tensors start at multiples of 16 bytes.
        size: Triton's type of the number of elements, "i64" from 2**31 elements on.
        many: the kernel of many rows of tensors, or that of one.
        changes: other options than a launch's; None leaves the option at Triton's default.

    Skips the test where this installation of Triton cannot compile for the target.
    """
    reason = unavailable(target)
    if reason is not None:
        pytest.skip(reason)
    return _compile_kernel(spec, target, aligned, size, many, changes)


def _compile_kernel(
    spec: Elementwise, target: str, aligned: bool, size: str, many: bool, changes: dict[str, Any]
) -> Compiled:
    chosen = options(TARGETS[target], spec.few) | changes
    chosen = {k: v for k, v in chosen.items() if v is not None}
    source = kernel_source(spec, target, aligned=aligned, size=size, many=many)
    return dataclasses.replace(compile_source(source, target, chosen), many=many)


def kernel_source(
    spec: Elementwise, target: str, *, aligned: bool = True, size: str = "i32", many: bool = False
) -> ASTSource:
    """A kernel as a launch hands it to Triton's compiler; see `compile_kernel`."""
    if many:
        kinds = ["*i64"] * 4 + [_POINTERS[spec.register.name], "*fp64"]
        return ASTSource(
            fn=build(spec, Dialect.of(TARGETS[target]), many=True),
            signature=dict(zip(TABLES, kinds, strict=True)) | {"ALIGNMENT": "constexpr"},
            constexprs={"ALIGNMENT": 16 if aligned else 1},
        )
    names = [f"{f.name}_ptr" for f in spec.fields]
    signature = {n: _POINTERS[f.format.name] for n, f in zip(names, spec.fields, strict=True)}
    signature |= {"scalars_ptr": _POINTERS[spec.register.name], "sums_ptr": "*fp64", "n": size}
    divisible = {(k,): [["tt.divisibility", 16]] for k in range(len(names))}
    return ASTSource(
        fn=build(spec, Dialect.of(TARGETS[target])),
        signature=signature,
        constexprs={},
        # A launch of a long formula does not ask where tensors begin.
        attrs=divisible if aligned and not spec.long else {},
    )


def compile_source(source: Any, target: str, chosen: dict[str, Any]) -> Compiled:
    """Compile a function, or a file of Triton's IR, whose path is given."""
    compiled = triton.compile(source, target=TARGETS[target], options=chosen)
    return Compiled(dict(compiled.asm), target, chosen)


def compile_launch(source: ASTSource, target: str, **changes: Any) -> dict[str, Any]:
    """Compile a source with the options of a launch; skip where Triton cannot."""
    reason = unavailable(target)
    if reason is not None:
        pytest.skip(reason)
    return compile_source(source, target, options(TARGETS[target]) | changes).asm


# The divisions and roots of Triton's IR, each with a stand-in that compiles to no expansion.
_STAND_INS = {
    r"(?<== )(tt\.precise_divf|arith\.divf)\b": "arith.addf",
    r"(?<== )(tt\.precise_sqrt|math\.sqrt)\b": "math.absf",
    r'(?<=inline_asm ")div\.rn\.f32\b': "add.rn.f32",
    r'(?<=inline_asm ")sqrt\.rn\.f32\b': "abs.f32",
}


def without_divisions(compiled: Compiled) -> Compiled:
    """The kernel with additions for divisions and absolute values for square roots.

    The correctly rounded division and root expand to sequences full of FMAs; what is contracted
    among the other operations shows in the machine code of this kernel.
    """
    ttir = compiled.asm["ttir"]
    for operation, stand_in in _STAND_INS.items():
        ttir = re.sub(operation, stand_in, ttir)
    if ttir == compiled.asm["ttir"]:
        return compiled
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "kernel.ttir"
        path.write_text(ttir)
        return compile_source(str(path), compiled.target, compiled.options)


def ptx_instructions(ptx: str) -> list[tuple[bool, str]]:
    """(predicated, opcode) of each instruction."""
    found = re.findall(r"^\s*(@!?%p\d+\s+)?([a-z][\w.:]*)\s[^;\n]*;", ptx, re.M)
    return [(bool(predicate), opcode) for predicate, opcode in found]


def _tool(name: str) -> str:
    return str(pathlib.Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name)


def _run_on_cubin(tool: str, arguments: tuple[str, ...], cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        command = [_tool(tool), *arguments, f.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def listing(cubin: bytes) -> str:
    """Return the disassembly for an NVIDIA GPU, with labels."""
    return _run_on_cubin("nvdisasm", ("-c", "-ndf"), cubin)


@functools.lru_cache(maxsize=8)
def sass_instructions(cubin: bytes) -> list[tuple[str, list[str]]]:
    """Return (opcode, operands) of each machine instruction of an NVIDIA GPU."""
    found = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][\w.]*)([^;]*);", listing(cubin))
    return [(op, [x.strip() for x in rest.split(",")]) for op, rest in found]


def stack_bytes(cubin: bytes) -> int:
    """Bytes of stack and local memory per thread: what is spilled."""
    used = _usage(cubin)
    return used["STACK"] + used["LOCAL"]


def registers(cubin: bytes) -> int:
    """Registers of a thread."""
    return _usage(cubin)["REG"]


def _usage(cubin: bytes) -> dict[str, int]:
    text = _run_on_cubin("cuobjdump", ("-res-usage",), cubin)
    found = {key: int(value) for key, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    assert len(found) == 3, f"no resource usage in {text!r}"
    return found


def sass_contractions(cubin: bytes) -> int:
    """How many elements' multiplications and additions are fused.

    The assembler also moves, multiplies and adds by FMA instructions with a factor of 0 or 1 or an
    addend of 0; those round once like what they stand for.
    """
    count = 0
    for op, operands in sass_instructions(cubin):
        # FFMA, DFMA, HFMA2 and relatives; integers have IMAD.
        kind = re.match(r"U?[FHD]+MA(2?)\b", op)
        if kind is None or any(re.match(r"-?U?RZ\b", x) for x in operands[1:]):
            continue
        if "1" in operands[1:3] or operands[2:4] == ["1", "1"]:
            continue
        count += 2 if kind[1] else 1
    return count


@functools.cache
def unavailable(target: str) -> str | None:
    """Why this installation of Triton cannot compile for a target; None where it can."""
    spec = operators.kernel(operators.TWO_SUM, FP32)
    try:
        _compile_kernel(spec, target, True, "i32", False, {})
    except Exception as error:
        # Before 3.5 Triton brought no linker for AMD GPUs.
        if "lld" not in str(error):
            raise
        return f"this Triton cannot link for {target}: {error}"
    return None


def amd_instructions(assembly: str) -> list[tuple[str, list[str]]]:
    """(opcode, operands) of each machine instruction of an AMD GPU."""
    found = re.findall(r"^\s+([a-z]+_[a-z0-9_]+)(?:[ \t]+([^;\n]*))?", assembly, re.M)
    return [(op, [x.strip() for x in rest.split(",")]) for op, rest in found]


def amd_contractions(assembly: str) -> int:
    """How many elements' multiplications and additions are fused."""
    fused = re.compile(r"v_(pk_)?(fma|mad|mac|fmac)(k|ak|mk)?(_mix|_mixlo|_mixhi)?_f(16|32|64)")
    hits = (fused.match(op) for op, _ in amd_instructions(assembly))
    return sum(2 if hit[1] else 1 for hit in hits if hit)


def conversions_to_64_bits(llir: str) -> int:
    """Conversions of floating-point numbers to 64-bit integers in LLVM's IR."""
    found = re.findall(r"= fpto[su]i (?:<(\d+) x )?(?:float|double)\b.* to (?:<\d+ x )?i64", llir)
    return sum(int(lanes or 1) for lanes in found)


def llvm_operations(llir: str) -> collections.Counter[str]:
    """Floating-point operations of LLVM's IR, elements of vectors counted."""
    counts: collections.Counter[str] = collections.Counter()
    pattern = (
        r"= (?:tail )?(?:call )?(?:<(\d+) x )?(?:half|bfloat|float|double)>? "
        r"@llvm\.(sqrt|fma|fmuladd)\."
        r"|= (fdiv) [a-z ]*(?:<(\d+) x)?"
    )
    for lanes, intrinsic, division, width in re.findall(pattern, llir):
        counts[intrinsic or division] += int(lanes or width or 1)
    return counts

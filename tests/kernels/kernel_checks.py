"""What compiled kernels must hold and must not: each check lists what is wrong."""

from __future__ import annotations

import collections
import re

from mcf.kernels.elementwise import Elementwise
from mcf.kernels.formats import FP32, INT8, UINT4, UINT8
from tests.kernels import machine_code as code
from tests.kernels.kernel_table import asked

# Bytes of stack that a formula may take whose numbers do not find room in 255 registers, and in
# ptxas's order of its operations; a quotient of complex fp16 pairs has eight elements in a thread,
# so that its accesses have 16 bytes. All others may take none.
SPILLED = {"y1_2_fp64": 208, "expansion_complex_div_2222_fp16": 200}


def paths(spec: Elementwise) -> int:
    """How often a kernel holds its formula: once if it is long, or for full blocks and the last."""
    return 1 if spec.long else 2


def check(compiled: code.Compiled, spec: Elementwise) -> None:
    """All checks of a kernel compiled for a target; fails with everything that is wrong."""
    asm, plain = compiled.asm, code.without_divisions(compiled).asm
    problems = check_ttir(asm["ttir"], spec) + check_flags(asm["llir"])
    problems += check_llir(plain["llir"], spec, compiled.target)
    if "ptx" in asm:
        problems += check_ptx(asm["ptx"], spec, compiled.many, compiled.target)
        problems += check_sass(asm["cubin"], plain["cubin"], spec, compiled.target)
    else:
        conversions = code.conversions_to_64_bits(plain["llir"])
        problems += check_amdgcn(asm["amdgcn"], plain["amdgcn"], spec, conversions)
    assert not problems, "\n".join([f"{spec.name} on {compiled.target}:", *problems])


def repeated(spec: Elementwise, what: str, target: str = "") -> int:
    """Return how often a thread's code holds an operation that the formula asks for."""
    return asked(spec, target)[what] * code.elements(spec) * paths(spec)


def full_block_accesses(spec: Elementwise) -> tuple[int, int]:
    """16-byte loads and stores that a thread needs for its share of a full block."""
    loads = stores = 0
    for field in spec.fields:
        if field.uniform:
            continue
        assert field.format.dtype is not None
        accesses = int(field.format.itemsize * code.elements(spec) // 16)
        loads += accesses * field.read
        stores += accesses * field.written
    return loads, stores


def _differs(what: str, found: object, expected: object) -> list[str]:
    return [] if found == expected else [f"{what}: {found} where {expected} is expected"]


def _fmas(what: str, found: int, spec: Elementwise, target: str) -> list[str]:
    """Check that there are as many FMAs as the formula asks for.

    A formula of hundreds may have fewer: LLVM makes sums of products with 1 and literals of
    literals, which are exact.
    """
    asked = repeated(spec, "fma", target)
    expected = min(found, asked) if spec.long else asked
    return _differs(what, found, expected)


def _found(what: str, names: list[str], pattern: str) -> list[str]:
    bad = collections.Counter(n for n in names if re.search(pattern, n))
    return [f"{what}: {dict(bad)}"] if bad else []


def check_ttir(ttir: str, spec: Elementwise) -> list[str]:
    """Precise operations only, 64-bit offsets, no `0 - x` for `-x`: that loses the sign of +0."""
    # On float32 these are approximate, or as precise as the target likes.
    vague = re.findall(r"= ((?:arith\.divf|math\.(?!fma|absf)\w+) .*f32>?) loc", ttir)
    problems = [f"imprecise operation in Triton's IR: {line}" for line in vague]
    problems += _found("fast-math flags in Triton's IR", re.findall(r"fastmath<\w+", ttir), "")
    texts = re.findall(r'inline_asm "([^"]+)"', ttir)
    lines = (line for text in texts for line in re.split(r"\\0A|;", text.strip("{}")))
    assembly = [line.split()[0] for line in lines if line.strip()]
    known = (
        r"(mov|ld\.global\.nc)\.b..|cvt\.rn\.bf16x2\.f32|(div|sqrt)\.rn\.f32|v_cvt_f16_f32"
        # Codes of few bits; see tests/kernels/test_assembly.py.
        r"|\.reg|(prmt|and|or|xor|shl)\.b32|shr\.u32|cvt\.rn\.f16x2\.e4m3x2|mul\.rn\.f16x2"
        r"|cvt\.f32\.f16"
    )
    unknown = [op for op in assembly if not re.fullmatch(known, op)]
    problems += _differs("unknown inline assembly", unknown, [])
    offsets = re.findall(r"tt\.addptr .*tensor<\d+x!tt\.ptr<\w+>>, tensor<\d+x(i\d+)>", ttir)
    full = [f for f in spec.fields if not f.uniform]
    assert len(offsets) >= len(full) * paths(spec), "offsets not found"
    # Beside float32 registers indices of tables are words; a table has some hundred entries.
    words = asked(spec)["gather"] * paths(spec) if spec.register == FP32 else 0
    # Pointers of a long formula advance once, by the row's length in the width of that argument.
    words += len(full) if spec.long else 0
    short = offsets.count("i32")
    kinds = set(offsets) - {"i32"} if 0 < short <= words else set(offsets)
    problems += _differs("types of offsets", kinds, {"i64"})
    # The block's start must not be computed in 32 bits either.
    block = re.search(r"(%\w+) = tt\.get_program_id x", ttir)
    assert block, "block's number not found"
    uses = re.findall(rf"= (arith\.\w+) .*{re.escape(block[1])}(?![\w#])", ttir)
    narrow = sum(use != "arith.extsi" for use in uses)
    problems += _differs("32-bit uses of the block's number", narrow, 0)
    if spec.long:
        # Components that are zero are literals there, and differences from them what they say.
        return problems
    for zero in re.findall(r"(%\w+) = arith\.constant (?:dense<)?0\.0+e\+00", ttir):
        found = re.findall(rf"arith\.subf {re.escape(zero)},.*", ttir)
        problems += [f"0 - x in place of a negation: {line}" for line in found]
    return problems


def check_flags(llir: str) -> list[str]:
    """No permission to contract, reassociate or approximate.

    That a product is no NaN (`nnan`) LLVM says where it has found it to be so, as of integers,
    which changes no number; that nobody else says it is seen in Triton's IR (`check_ttir`).
    """
    flags = "reassoc|nnan|ninf|nsz|arcp|contract|afn|fast"
    found = re.finditer(rf"= (?:tail )?[a-z]+ ((?:(?:{flags}) )+).*", llir)
    lines = [match[0] for match in found if match[1] != "nnan "]
    problems = [f"fast-math flags in {len(lines)} operations: {lines[0]}"] if lines else []
    if "!fpmath" in llir:
        problems.append("approximate operations allowed in LLVM's IR (!fpmath)")
    return problems


def check_llir(llir: str, spec: Elementwise, target: str = "") -> list[str]:
    """In a kernel without divisions and roots no approximations, and FMAs only as asked for."""
    calls = re.findall(r"call [^@\n]*@(llvm\.[\w.]+|__\w+)", llir)
    approximate = r"approx|ftz|full|\.(rcp|rsq|sqrt|exp|exp2|log|sin|cos)\b|\.fdiv|^__"
    problems = _found("approximate operations in LLVM's IR", calls, approximate)
    problems += _found("FMAs at LLVM's choice", calls, "fmuladd")
    count = code.llvm_operations(llir)["fma"]
    return problems + _fmas("FMAs in LLVM's IR", count, spec, target)


def check_ptx(ptx: str, spec: Elementwise, many: bool = False, target: str = "") -> list[str]:
    """FMA, division, root and rounding as the source asks; full blocks by 16 bytes; no spills."""
    instructions = code.ptx_instructions(ptx)
    names = [op for _, op in instructions]
    approximate = r"\.(approx|full|ftz)\b|^(rcp|rsqrt)\."
    problems = _found("approximate or flushing instructions in PTX", names, approximate)
    # The assembler contracts what does not say how it rounds.
    unrounded = r"^(add|sub|mul|div|sqrt)\.(b?f\d\d(x2)?)$|^mad\.f"
    problems += _found("arithmetic without a rounding in PTX", names, unrounded)
    # The CPU rounds a bf16 product below float32's normal range twice.
    narrowed = r"^(add|sub|mul|fma)\.(rn\.)?bf16"
    problems += _found("arithmetic narrowed to bf16 in PTX", names, narrowed)
    problems += _found("local memory in PTX", names, r"\.local\b")
    for what, pattern in {"fma": r"fma\.", "div": r"div\.rn\.f", "sqrt": r"sqrt\.rn\.f"}.items():
        hits = [n for n in names if re.match(pattern, n)]
        count = sum(2 if n.endswith("x2") else 1 for n in hits)
        if what == "fma":
            problems += _fmas("fma instructions in PTX", count, spec, target)
        else:
            problems += _differs(f"{what} instructions in PTX", count, repeated(spec, what))

    def unmasked(kind: str) -> collections.Counter[bool]:
        found = [op for masked, op in instructions if op.startswith(kind) and not masked]
        return collections.Counter(op.endswith((".v4.b32", ".v2.b64")) for op in found)

    loads, stores = unmasked("ld.global"), unmasked("st.global")
    needed_loads, needed_stores = full_block_accesses(spec)
    problems += _differs("16-byte loads of a full block in PTX", loads[True], needed_loads)
    problems += _differs("16-byte stores of a full block in PTX", stores[True], needed_stores)
    # Besides, each scalar and uniform tensor is loaded once, and what has one byte an element moves
    # by 8 bytes, two in a byte by 4.
    short = [f for f in spec.fields if f.format in (INT8, UINT4, UINT8)]
    short_loads = sum(f.read for f in short)
    once = len(spec.scalars) + sum(f.uniform for f in spec.fields)
    # Each entry of a table is loaded by itself, without a mask.
    once += repeated(spec, "gather")
    # Of many tensors a block finds its row, its place, the size and each tensor's address.
    tables = 3 + len(spec.fields) if many else 0
    # With one element for each thread all are narrow.
    alone = sum(f.read for f in spec.fields) if spec.few else short_loads
    if loads[False] > once + alone + tables:
        problems.append(f"narrow loads of a full block in PTX: {loads[False]}")
    stored = len(spec.stores) if spec.few and not spec.long else sum(f.written for f in short)
    return problems + _differs("narrow stores of a full block in PTX", stores[False], stored)


def check_sass(cubin: bytes, plain: bytes, spec: Elementwise, target: str = "") -> list[str]:
    """The same in NVIDIA machine code; `plain` is the kernel without divisions and roots."""
    stack, most = code.stack_bytes(cubin), SPILLED.get(spec.name, 0)
    problems = _differs("bytes of stack", stack, min(stack, most))
    names = [op for op, _ in code.sass_instructions(cubin)]
    if not most:
        problems += _found("local memory in machine code", names, r"^(LDL|STL)\b")
    loads, stores = full_block_accesses(spec)
    wide = collections.Counter(n[:3] for n in names if re.match(r"(LDG|STG)\..*128", n))
    problems += _differs("16-byte loads in machine code", wide["LDG"], loads)
    problems += _differs("16-byte stores in machine code", wide["STG"], stores)
    contractions = code.sass_contractions(plain)
    problems += _fmas("FMAs in machine code", contractions, spec, target)
    rest = [op for op, _ in code.sass_instructions(plain)]
    return problems + _found("approximations in machine code", rest, r"^MUFU")


def check_amdgcn(assembly: str, plain: str, spec: Elementwise, conversions: int = 0) -> list[str]:
    """The same in an AMD GPU's assembly; `conversions` are those of LLVM's IR to 64 bits."""
    spills = re.findall(r"(\w*spill_count|private_segment_fixed_size): +(\d+)", assembly)
    assert len(spills) >= 3, f"no spill counts in the assembly, only {spills}"
    # A scalar that finds no room is kept in a lane of a vector register, in no memory: formulas of
    # hundreds of operations have more conditions than there are scalar registers.
    lanes = "sgpr_spill_count" if spec.long else None
    problems = [f"spills: {n} is {count}" for n, count in spills if count != "0" and n != lanes]
    names = [op for op, _ in code.amd_instructions(assembly)]
    for what, needed in zip(("load", "store"), full_block_accesses(spec), strict=True):
        wide = sum(bool(re.fullmatch(rf"(global|buffer)_{what}_dwordx4", n)) for n in names)
        problems += _differs(f"16-byte {what}s in the assembly", wide, needed)
    # Each correctly rounded division ends in one of these.
    fixups = sum(n.startswith("v_div_fixup") for n in names)
    needed = repeated(spec, "div")
    if spec.few and fixups == needed // paths(spec):
        # Two paths of one element each may join before they divide.
        needed = fixups
    if spec.long:
        # LLVM divides once by what two branches divide by; what is approximate is looked for below.
        needed = min(needed, fixups)
    problems += _differs("divisions in the assembly", fixups, needed)
    narrowed = r"^v_(pk_)?(add|sub|mul|fma|mad|mac|fmac|div_fixup)(_mix|_mixlo|_mixhi)?_f16"
    problems += _found("arithmetic narrowed to fp16 in the assembly", names, narrowed)
    contractions = code.amd_contractions(plain)
    # A conversion to 64 bits has one of its own; LLVM makes one of equal ones, so it is asked.
    problems += _fmas("FMAs in the assembly", contractions - conversions, spec, "gfx942")
    rest = [op for op, _ in code.amd_instructions(plain)]
    approximate = r"^v_(rcp|rsq|sqrt|exp|log|sin|cos)_"
    return problems + _found("approximations in the assembly", rest, approximate)

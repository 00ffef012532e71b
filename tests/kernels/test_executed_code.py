"""Instructions that a full block executes: of small listings, and of AdamW's kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mcf.kernels.elementwise import Elementwise
from mcf.optim import AdamW
from mcf.optim.step.kernel import kernel
from tests.kernels import executed_code

pytest.importorskip("triton", reason="triton has wheels for Linux only")

import triton

from tests.helpers.everyday import everyday
from tests.kernels import machine_code

# Executed instructions per parameter, rounded, and those of the ALU pipe, of which a clock takes
# half as many. The numbers are those of the assembler that the pinned Triton brings; another one
# may need a few more or fewer, so they are checked for these versions alone. docs/gpu.md shows them
# with what follows from them: after a change of a kernel put the new ones here and run
# `python benchmarks/gpu_page.py`.
VERSIONS = ("3.6.0", "3.7.1")
EXECUTED = {
    "plain": (49, 11),
    "plus": (66, 20),
    "bf16_sr": (80, 30),
    "8bit": (110, 55),
    "4bit": (122, 62),
    "light": (57, 15),
    "split16": (62, 20),
    "stochastic": (66, 21),
    "master": (52, 10),
}


def step(precision: str) -> Elementwise:
    optimizer = AdamW([torch.nn.Parameter(torch.zeros(2, 2).bfloat16())], precision=precision)
    group = optimizer.param_groups[0]
    arith = optimizer._arithmetic(group, group["params"][0], "params[0]")
    return kernel(optimizer._rule(group), arith, False)


# A compilation takes half a second.
@pytest.mark.parametrize("precision", everyday(EXECUTED, list(EXECUTED)[:5]))
def test_executed_instructions_of_a_step_are_those_of_the_table(precision: str) -> None:
    if triton.__version__ not in VERSIONS:
        pytest.skip(f"numbers are known for the assemblers of Triton {', '.join(VERSIONS)}")
    spec = step(precision)
    cubin = machine_code.compile_kernel(spec, "sm_90").asm["cubin"]
    path = executed_code.executed(machine_code.listing(cubin))
    each = machine_code.elements(spec)
    alu = executed_code.by_pipe(path)["ALU"]
    assert (round(len(path) / each), round(alu / each)) == EXECUTED[precision]


LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/               @P0 BRA `(.L_x_0) ;
        /*0020*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0030*/                   BSSY B0, `(.L_x_1) ;
        /*0040*/                   MUFU.RSQ R5, R4 ;
        /*0050*/              @!P1 BRA `(.L_x_2) ;
        /*0060*/                   MOV R6, 0x80 ;
        /*0070*/                   CALL.REL.NOINC `($__slow) ;
        /*0080*/                   BRA `(.L_x_3) ;
.L_x_2:
        /*0090*/                   FMUL.FTZ R5, R4, R5 ;
.L_x_3:
        /*00a0*/                   BSYNC B0 ;
.L_x_1:
        /*00b0*/               @P2 BRA `(.L_x_4) ;
.L_x_5:
        /*00c0*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*00d0*/                   EXIT ;
.L_x_0:
        /*00e0*/              @!P3 LDG.E.U16 R4, desc[UR4][R2.64] ;
        /*00f0*/                   IMAD R4, R4, R4, RZ ;
        /*0100*/              @!P3 STG.E.U16 desc[UR4][R2.64], R4 ;
        /*0110*/                   EXIT ;
.L_x_4:
        /*0120*/                   MOV R6, 0x130 ;
        /*0130*/                   CALL.REL.NOINC `($__slow) ;
        /*0140*/                   BRA `(.L_x_5) ;
        .weak   $__slow
$__slow:
        /*0150*/                   LOP3.LUT R5, R5, R5, RZ, 0xc0, !PT ;
        /*0160*/                   RET.REL.NODEC R6 `(kernel) ;
.L_x_6:
        /*0170*/                   BRA `(.L_x_6);
"""


def test_executed_follows_the_full_block_around_slow_paths() -> None:
    path = executed_code.executed(LISTING)
    assert [i.base for i in path] == [
        "LDC", "BRA", "LDG", "BSSY", "MUFU", "BRA", "FMUL", "BSYNC", "BRA", "STG", "EXIT",
    ]  # fmt: skip
    counts = executed_code.by_pipe(path)
    assert counts == {"memory": 3, "control": 6, "XU": 1, "FMA": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LISTING.replace("@!P3 ", ""), "2 paths"),
        (LISTING.replace("  LDG.E.128", "@P4 LDG.E.128"), "0 paths"),
        (LISTING.replace("@P2 BRA `(.L_x_4)", "BRA `(.L_x_3)"), "a loop"),
    ],
)
def test_executed_of_an_unknown_flow_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        executed_code.executed(text)


def test_pipe_of_an_unknown_opcode_is_refused() -> None:
    assert executed_code.pipe("FFMA.FTZ") == "FMA"
    with pytest.raises(KeyError, match="QMMA"):
        executed_code.pipe("QMMA.16832")


def test_the_page_of_gpus_shows_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "gpu.md"
    shown = re.findall(r"^\| `(\w+)` +\|[^|]+\|[^|]+\| (\d+) ", page.read_text("utf-8"), re.M)
    assert {name: int(count) for name, count in shown} == {k: v[0] for k, v in EXECUTED.items()}

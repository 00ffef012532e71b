"""Count the machine instructions that a full block of a kernel executes on sm_90, by pipe.

A kernel holds more code than it runs: a second, masked body for the last block, and slow paths of
roots and quotients, which ordinary numbers do not enter. Here the disassembly is followed from its
entry: a branch around a call of a slow path is taken, and of the two bodies the one without
predicated loads and stores is the full block's.
"""

from __future__ import annotations

import collections
import re
from typing import NamedTuple

# Lanes a clock of a multiprocessor of compute capability 9.0 (CUDA C++ Programming Guide,
# "Throughput of Native Arithmetic Instructions"). Which opcode belongs to which row of that table
# is our reading of it.
ISSUE = 128
RATES = {"FMA": 128, "ALU": 64, "IMAD": 64, "XU": 16}
_PIPES = {
    "FMA": "FFMA FMUL FADD HFMA2 HADD2 HMUL2",
    "ALU": "LOP3 SHF ISETP FSEL FSETP FMNMX IADD3 VIADD LEA SEL PRMT PLOP3 P2R R2P F2FP SGXT "
    "VIMNMX VIADDMNMX IABS BMSK I2FP LOP CS2R",
    "IMAD": "IMAD",
    "XU": "MUFU F2F F2I I2F FCHK FRND POPC FLO BREV",
    "memory": "LDG STG LDC LDS STS SHFL",
    "control": "BRA BSSY BSYNC CALL RET EXIT NOP WARPSYNC BAR",
    "other": "MOV ULDC USHF S2R UMOV S2UR R2UR UIADD3 ULOP3 UIMAD ULEA USEL UISETP",
}
_PIPE_OF = {opcode: pipe for pipe, opcodes in _PIPES.items() for opcode in opcodes.split()}


class Instruction(NamedTuple):
    """One instruction of nvdisasm's listing."""

    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.split(".")[0]


def pipe(opcode: str) -> str:
    """Return the pipe of an opcode; raise KeyError for one that no table here has."""
    return _PIPE_OF[opcode.split(".")[0]]


def parsed(text: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a listing, and the index that each label stands for."""
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*([.$][\w.$]+):", line):
            labels[label[1]] = len(found)
        elif code := re.search(r"/\*[0-9a-f]{4,}\*/\s+(@\S+\s+)?([A-Z][\w.]*)([^;]*)", line):
            found.append(Instruction((code[1] or "").strip(), code[2], code[3].strip()))
    return found, labels


class _Listing:
    def __init__(self, text: str) -> None:
        self.code, self.labels = parsed(text)

    def target(self, k: int) -> int:
        label = re.search(r"\.L_x_\d+", self.code[k].operands)
        if label is None:
            raise ValueError(f"no target in {self.code[k]}")
        return self.labels[label[0]]

    def calls(self, k: int) -> bool:
        """Return whether a call comes before any other change of the flow."""
        while self.code[k].base not in ("BRA", "EXIT", "RET", "CALL"):
            k += 1
        return self.code[k].base == "CALL"

    def paths(self, k: int, seen: tuple[Instruction, ...] = ()) -> list[tuple[Instruction, ...]]:
        """Return the paths from an instruction to an exit that enter no slow path."""
        passed = list(seen)
        while True:
            now = self.code[k]
            passed.append(now)
            always = now.predicate in ("", "@PT")
            if now.base == "EXIT" and always:
                return [tuple(passed)]
            if now.base != "BRA":
                k += 1
                continue
            target = self.target(k)
            if target <= k:
                raise ValueError(f"a loop: {now}")
            if always or self.calls(k + 1):
                k = target
            elif self.calls(target):
                k += 1
            else:
                return self.paths(k + 1, tuple(passed)) + self.paths(target, tuple(passed))


def executed(text: str) -> tuple[Instruction, ...]:
    """Return what a thread of a full block executes, of nvdisasm's listing of an element kernel.

    Raises:
        ValueError: where the listing has a loop, or not exactly one path without predicated
            accesses of the memory.
    """
    full = [path for path in _Listing(text).paths(0) if not any(map(_predicated_access, path))]
    if len(full) != 1:
        raise ValueError(f"{len(full)} paths have no predicated loads and stores; 1 is expected")
    return full[0]


def _predicated_access(instruction: Instruction) -> bool:
    return bool(instruction.predicate) and instruction.base in ("LDG", "STG")


def by_pipe(instructions: tuple[Instruction, ...]) -> collections.Counter[str]:
    """Return how many instructions each pipe gets."""
    return collections.Counter(pipe(i.opcode) for i in instructions)

"""docs/gpu.md, between its markers: what the compilers made of the steps, and what GPUs measured.

    python benchmarks/gpu_page.py

The first table is an estimate: each byte moved once, and each instruction of the machine code
issued once, at the speeds of an H100's data sheet; registers, stack and instructions are those that
Triton and ptxas make for sm_90, on any machine with Linux. The others are those of
benchmarks/results/gpu-day-*.csv.
"""

# The compiler of the tests is imported from beside this folder.
# ruff: noqa: E402

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pages
from gpu_sections import PRECISIONS
from harness import table

import mcf.plan
from mcf.kernels.triton.element_kernels import THREADS
from mcf.optim import AdamW
from mcf.optim.step.kernel import kernel
from tests.kernels import machine_code

PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- written by benchmarks/gpu_page.py -->\n", "<!-- end -->\n"
PARAMS = 2**30
# Of a multiprocessor of sm_90: registers, and warps at most (CUDA C++ Programming Guide, 16.2).
REGISTERS, WARPS = 65536, 64
# Instructions of a lane a second: half of the 67e12 float32 operations of an H100 SXM, which counts
# an FMA as two.
INSTRUCTIONS = 33.5e12
BLOCK_WARPS = THREADS // 32


def estimate() -> str:
    """A row for each precision of AdamW on bf16 matrices."""
    plan = {row.name: row for row in mcf.plan.rows(PARAMS)}
    rows = []
    for precision in PRECISIONS:
        optimizer = AdamW([torch.nn.Parameter(torch.zeros(64, 64).bfloat16())], precision=precision)
        group = optimizer.param_groups[0]
        arith = optimizer._arithmetic(group, group["params"][0], "params[0]")
        spec = kernel(optimizer._rule(group), arith, False)
        cubin = machine_code.compile_kernel(spec, "sm_90").asm["cubin"]
        used = machine_code.registers(cubin)
        each = machine_code.elements(spec)
        instructions = len(machine_code.sass_instructions(cubin)) / each
        moved = plan[precision].seconds * mcf.plan.BANDWIDTHS["h100"] / PARAMS
        # Registers are handed out to a warp by 256, and warps come in blocks.
        warps = min(WARPS, REGISTERS // (-(-used * 32 // 256) * 256))
        rows.append(
            {
                "precision": f"`{precision}`",
                "bytes moved per parameter": f"{moved:.3g}",
                "ms to move": f"{1e3 * plan[precision].seconds:.1f}",
                "instructions per parameter": f"{instructions:.0f}",
                "ms to issue": f"{1e3 * instructions * PARAMS / INSTRUCTIONS:.1f}",
                "registers a thread": used,
                "warps": warps // BLOCK_WARPS * BLOCK_WARPS,
                "bytes of stack": machine_code.stack_bytes(cubin),
            }
        )
    return table(rows, list(rows[0]))


def measured(path: Path) -> str:
    """The tables of one results file."""
    about, rows = pages.results(path)
    told = [f"### {about['device']}\n"]
    versions = ", ".join(f"{k} {v}" for k, v in about.items() if k not in ("device", "command"))
    told.append(f"`{about['command']}`: {versions} ([rows](../{path.relative_to(ROOT)})).\n")
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        columns = list(dict.fromkeys(row["quantity"] for row in own if row["case"] != section))
        cases = {row["case"]: {"case": row["case"], **dict.fromkeys(columns, "")} for row in own}
        for row in own:
            cases[row["case"]][row["quantity"]] = row["value"]
        ended = cases.pop(section)
        told.append(f"**{section}**: {ended['ended']}, {ended['seconds']} s.\n")
        told.append(table(cases.values(), ["case", *columns]) + "\n")
    return "\n".join(told)


def main() -> None:
    """Write the page anew."""
    files = sorted((ROOT / "benchmarks" / "results").glob("gpu-day-*.csv"))
    parts = [
        "## Estimated from machine code\n",
        estimate() + "\n",
        "## Measured\n",
        *[measured(path) for path in files],
    ]
    if not files:
        parts.append(
            "Nothing yet: no GPU has run `make bench-gpu`. What stands above is an estimate.\n"
        )
    pages.write_between(PAGE, BEGIN, END, "\n".join(parts))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()

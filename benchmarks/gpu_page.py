"""Write docs/gpu.md between its markers: an estimate of the steps, and what GPUs measured.

    python benchmarks/gpu_page.py

The estimate compiles the steps for sm_90, which needs Linux and no GPU, and counts what a full
block executes. The measured tables are those of benchmarks/results/gpu-day-*.csv.
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
from harness import table

import mcf.plan
from mcf.kernels.triton.launching import THREADS
from mcf.optim import AdamW
from mcf.optim.step.kernel import kernel
from tests.kernels import executed_code, machine_code

PAGE = ROOT / "docs" / "gpu.md"
BEGIN, END = "<!-- written by benchmarks/gpu_page.py -->\n", "<!-- end -->\n"
PARAMS = 2**30
# Of a multiprocessor of sm_90: registers, and warps at most (CUDA C++ Programming Guide, 16.2).
REGISTERS, WARPS = 65536, 64
# An H100 SXM has these multiprocessors, and keeps this clock under load; its highest is 1980 MHz.
MULTIPROCESSORS, CLOCK = 132, 1.755e9
BLOCK_WARPS = THREADS // 32
PRECISIONS = (
    "plain", "light", "plus", "split16", "stochastic", "bf16_sr", "8bit", "4bit", "master",
)  # fmt: skip


def milliseconds(instructions: float, lanes: int) -> float:
    """Return the time of so many instructions per parameter at so many lanes a clock."""
    return 1e3 * instructions * PARAMS / (lanes * MULTIPROCESSORS * CLOCK)


def estimate() -> str:
    """Return a table with a row for each precision of AdamW on bf16 matrices."""
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
        path = executed_code.executed(machine_code.listing(cubin))
        counts = executed_code.by_pipe(path)
        pipes = {
            name: milliseconds(counts[name] / each, lanes)
            for name, lanes in executed_code.RATES.items()
            if name in counts
        }
        busiest = max(pipes, key=lambda name: pipes[name])
        moved = plan[precision].seconds * mcf.plan.BANDWIDTHS["h100"] / PARAMS
        # A warp gets registers in units of 256, and warps come in blocks.
        warps = min(WARPS, REGISTERS // (-(-used * 32 // 256) * 256))
        rows.append(
            {
                "precision": f"`{precision}`",
                "bytes moved per parameter": f"{moved:.3g}",
                "ms to move": f"{1e3 * plan[precision].seconds:.1f}",
                "instructions per parameter": f"{len(path) / each:.0f}",
                "ms to issue": f"{milliseconds(len(path) / each, executed_code.ISSUE):.1f}",
                "ms of the busiest pipe": f"{pipes[busiest]:.1f} ({busiest})",
                "registers a thread": used,
                "warps": warps // BLOCK_WARPS * BLOCK_WARPS,
                "bytes of stack": machine_code.stack_bytes(cubin),
            }
        )
    return table(rows, list(rows[0]))


def measured(path: Path) -> str:
    """Return the tables of one results file."""
    about, rows = pages.results(path)
    lines = [f"### {about['device']}\n"]
    versions = ", ".join(f"{k} {v}" for k, v in about.items() if k not in ("device", "command"))
    lines.append(f"`{about['command']}`: {versions} ([rows](../{path.relative_to(ROOT)})).\n")
    for section in dict.fromkeys(row["section"] for row in rows):
        own = [row for row in rows if row["section"] == section]
        columns = list(dict.fromkeys(row["quantity"] for row in own if row["case"] != section))
        cases = {row["case"]: {"case": row["case"], **dict.fromkeys(columns, "")} for row in own}
        for row in own:
            cases[row["case"]][row["quantity"]] = row["value"]
        about_section = cases.pop(section, {"case": section})
        said = [f"{k} {v}" for k, v in about_section.items() if k != "case" and v]
        lines.append(f"**{section}**: {'; '.join(said)}.\n")
        if cases:
            lines.append(table(cases.values(), ["case", *columns]) + "\n")
    return "\n".join(lines)


def main() -> None:
    """Write the page again."""
    files = sorted((ROOT / "benchmarks" / "results").glob("gpu-day-*.csv"))
    parts = [
        "## Estimated from machine code\n",
        estimate() + "\n",
        "## Measured\n",
        *[measured(path) for path in files],
    ]
    if not files:
        parts.append(
            "Nothing yet: no GPU has run `benchmarks/gpu_day.py`. The table above is an estimate.\n"
        )
    pages.write_between(PAGE, BEGIN, END, "\n".join(parts))
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()

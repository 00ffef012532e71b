"""Everything that wants a GPU, in one command of less than eight minutes: `make bench-gpu`.

    python benchmarks/gpu_day.py             # on a GPU
    python benchmarks/gpu_day.py --small     # the same work in small, on any machine
    python benchmarks/gpu_page.py            # docs/gpu.md from the results

Sections run one after another, each a process with a time limit of its own, which takes memory and
faults with it; what it had found by then is kept. All results stand in one file, written after
each section.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from gpu_sections import FULL, SECTIONS, SMALL, Row, environment
from harness import environment as described
from harness import machine, merge_csv, table
from tqdm import tqdm

KEY = ("section", "case", "quantity")


def section(name: str, device: torch.device, small: bool) -> None:
    """Run one section here; a line of JSON for each row."""
    compute, _ = SECTIONS[name]
    for row in compute(device, SMALL if small else FULL):
        print(json.dumps(row), flush=True)


def in_process(name: str, small: bool, seconds: float) -> list[dict[str, object]]:
    """Rows of a section that has so much time; a row says how it ended."""
    command = [sys.executable, __file__, "--section", name, *(["--small"] if small else [])]
    start = time.perf_counter()
    found: dict[tuple[str, str], float | str] = {}
    with (
        # A group of its own: the tests' workers end with their section.
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        ) as run,
        tqdm(desc=name, file=sys.stderr, leave=False, unit="row") as bar,
    ):
        timer = threading.Timer(seconds, os.killpg, (run.pid, signal.SIGKILL))
        timer.start()
        assert run.stdout is not None
        for line in run.stdout:
            # A line may be another library's word, or cut.
            try:
                row = Row(*json.loads(line))
            except (ValueError, TypeError):
                continue
            # Later counts replace earlier ones.
            found[row.case, row.quantity] = row.value
            bar.set_description(f"{name}: {row.case}")
            bar.update()
    late = not timer.is_alive()
    timer.cancel()
    status = f"exit status {run.returncode}" if run.returncode else "complete"
    found[name, "ended"] = "time was up" if late else status
    found[name, "seconds"] = time.perf_counter() - start
    return [
        {"section": name, "case": case, "quantity": quantity,
         "value": f"{value:.4g}" if isinstance(value, float) else value}
        for (case, quantity), value in found.items()
    ]  # fmt: skip


def main() -> int:
    """Parse the options, run sections, print and save; 1 where something failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--small", action="store_true", help="little work, on a CPU too")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=tuple(SECTIONS))
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out",
        type=Path,
        help="the CSV; by default named after the GPU, or runs/gpu-day-small.csv",
    )
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.section:
        section(options.section, device, options.small)
        return 0
    if device.type == "cpu" and not options.small:
        parser.error("there is no GPU here; --small does the same work in small on a CPU")
    path = options.out or Path("runs/gpu-day-small.csv")
    if not (options.out or options.small):
        path = Path(__file__).parent / "results" / f"gpu-day-{machine(device)}.csv"
    command = " ".join(["python benchmarks/gpu_day.py", *sys.argv[1:]])
    failed = False
    for name in options.sections:
        rows = in_process(name, options.small, SECTIONS[name][1])
        print(table(rows, ["section", "case", "quantity", "value"]) + "\n", flush=True)
        merge_csv(path, rows, {"command": command, **described(device)}, KEY)
        wrong = ("OTHER BITS", "failed", "error", "exit status")
        failed |= any(str(r["value"]).startswith(wrong) for r in rows)
        failed |= any(r["quantity"] in ("failed", "error") for r in rows)
    print(f"saved {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

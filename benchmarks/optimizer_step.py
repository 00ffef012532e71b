"""Time one AdamW step: ours under every precision, torch's, optimi's and torchao's, in one run.

    python benchmarks/optimizer_step.py                    # CPU here, CUDA where there is one
    python benchmarks/optimizer_step.py --sizes 1M 300x    # a quick look

Every variant steps once a round, in turn, so that noise meets all alike; the table gives the median
over rounds and its ratio to torch's fused float32 AdamW and to option D (float32 master weights by
hand) in the same run. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import torch
from harness import Timing, environment, in_turn, machine, save_csv, table
from optimizer_variants import FUSED, OPTION_D, Variant, variants
from tqdm import tqdm

MILLION = 2**20

COLUMNS = [
    "size", "family", "variant", "ns/param", "p20", "p80", "GB/s", "ratio to fused fp32",
    "ratio to option D", "bytes/param", "rounds",
]  # fmt: skip


def small_transformer(width: int, blocks: int = 30) -> list[torch.Size]:
    """Return blocks of ten matrices and vectors: 15 M elements of width 192, 100 M of 528."""
    w = width
    block = [(w, 3 * w), (3 * w,), (w, w), (w,), (w, 4 * w), (4 * w,), (4 * w, w), (w,), (w,), (w,)]
    return [torch.Size(s) for s in block * blocks]


def shapes_of(size: str) -> list[torch.Size]:
    """Return the tensors of a size: one matrix, or for "300x" a model of 300 tensors.

    Under precisions of 8 bits the moments of its vectors are wider.
    """
    if size == "300x":
        return small_transformer(192)
    return [torch.Size([int(size.removesuffix("M")), MILLION])]


def batches(found: list[Variant], count: int, limit: float) -> list[list[Variant]]:
    """Variants that fit in memory together; the two that ratios refer to are in each batch."""
    common = [v for v in found if v.name in (FUSED, OPTION_D)]
    # Eager steps need room for intermediate results too.
    weight = {v.name: count * (v.bytes_held + (0 if v.bytes_moved else 16)) for v in found}
    base = sum(weight[v.name] for v in common)
    result: list[list[Variant]] = []
    used = limit
    for v in found:
        if v in common:
            continue
        if used + weight[v.name] > limit:
            result.append(list(common))
            used = base
        result[-1].append(v)
        used += weight[v.name]
    return result


def run_size(
    size: str, found: list[Variant], options: argparse.Namespace, device: torch.device
) -> list[dict[str, Any]]:
    """Time all variants at one size and return the table's rows."""
    shapes = shapes_of(size)
    count = sum(s.numel() for s in shapes)
    rows = []
    done = set()
    for batch in batches(found, count, options.memory * 1e9):
        with tqdm(desc=f"{size}: building", file=sys.stderr, leave=False) as bar:
            steps = {v.name: v.make(shapes, device) for v in batch}

            def show(name: str, bar: tqdm = bar) -> None:
                bar.set_description(f"{size}: {name}")
                bar.update()

            times = in_turn(
                steps, rounds=options.rounds, seconds=options.seconds, device=device, on_call=show
            )
        del steps
        for v in batch:
            if v.name not in done:
                done.add(v.name)
                rows.append(row(size, count, v, times))
    return rows


def row(size: str, count: int, v: Variant, times: dict[str, Timing]) -> dict[str, Any]:
    """One line of the table; ratios are of medians in the same batch."""
    timing = times[v.name]
    spread = {
        name: f"{timing.quantile(q) / count * 1e9:.3f}" for name, q in (("p20", 0.2), ("p80", 0.8))
    }
    moved = f"{v.bytes_moved * count / timing.median / 1e9:.1f}" if v.bytes_moved else "-"
    return {
        "size": size,
        "family": v.family,
        "variant": v.name,
        "ns/param": f"{timing.median / count * 1e9:.3f}",
        **spread,
        "GB/s": moved,
        "ratio to fused fp32": f"{timing.median / times[FUSED].median:.2f}",
        "ratio to option D": f"{timing.median / times[OPTION_D].median:.2f}",
        "bytes/param": v.bytes_held,
        "rounds": len(timing.seconds),
    }


def main() -> None:
    """Parse the options, run every size, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--sizes", nargs="+", default=["1M", "16M", "64M", "300x"], metavar="SIZE",
        help="parameters in units of 2**20, as 16M, or 300x for a model of 300 tensors",
    )  # fmt: skip
    parser.add_argument(
        "--variants", nargs="+", metavar="NAME",
        help="rows of the table, beside those that ratios refer to (default: all)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=21, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=6.0,
        help="a variant that has used this much time at a size stops early (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--memory", type=float, default=12.0, help="GB to use at a time (12)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    for size in options.sizes:
        if not re.fullmatch(r"[1-9]\d*M|300x", size):
            parser.error(f"argument --sizes: {size!r} is not a size such as 1M, 16M or 300x")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    there = {name: importlib.util.find_spec(name) is not None for name in ("optimi", "torchao")}
    for name in there:
        if not there[name]:
            print(f"{name} is not installed; its rows are left out", file=sys.stderr)
    found = variants(**there)
    names = [v.name for v in found]
    unknown = sorted(set(options.variants or ()) - set(names))
    if unknown:
        parser.error(f"argument --variants: {unknown} are not among {names}")
    if options.variants:
        found = [v for v in found if v.name in {FUSED, OPTION_D, *options.variants}]
    rows = []
    for size in options.sizes:
        rows += run_size(size, found, options, device)
        print(table([r for r in rows if r["size"] == size], COLUMNS) + "\n", flush=True)
    path = options.out / f"optimizer_step-{machine(device)}.csv"
    command = "python benchmarks/optimizer_step.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(device)})
    print(f"saved {path}")


if __name__ == "__main__":
    main()

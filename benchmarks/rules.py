"""Time one step of each update rule beside torch's optimizer of the name, in one run.

    python benchmarks/rules.py                  # CPU here, CUDA where there is one
    python benchmarks/rules.py --size 1 --rounds 5    # a quick look

Ours are on bf16 parameters under their default precision, torch's on float32 parameters, fused
where torch has that, else foreach (Muon has neither). Every variant steps once a round, in turn;
the table gives the median over rounds, and its ratio to our AdamW and to torch's optimizer of the
name in the same run, "-" for a rule that torch does not have. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from harness import Timing, environment, in_turn, machine, save_csv, table

import mcf.optim

MILLION = 2**20

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {"weight_decay": 0.1}),
    "AdamW amsgrad": ("AdamW", {"weight_decay": 0.1, "amsgrad": True}),
    "Adam": ("Adam", {"weight_decay": 0.1}),
    "NAdam": ("NAdam", {"weight_decay": 0.1}),
    "RAdam": ("RAdam", {"weight_decay": 0.1}),
    "Adamax": ("Adamax", {"weight_decay": 0.1}),
    "Lion": ("Lion", {"weight_decay": 0.1}),
    "Muon": ("Muon", {"weight_decay": 0.1}),
    "AdEMAMix": ("AdEMAMix", {"weight_decay": 0.1}),
    "Adan": ("Adan", {"weight_decay": 0.1}),
    "StableAdamW": ("StableAdamW", {"weight_decay": 0.1}),
    "ScheduleFreeAdamW": ("ScheduleFreeAdamW", {"weight_decay": 0.1}),
    "SGD momentum": ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
}
FUSED = {"AdamW", "Adam", "SGD"}

COLUMNS = ["rule", "ns/param", "p20", "p80", "ratio to AdamW", "torch ns/param", "ratio to torch"]


def optimizer(
    make: Any, dtype: torch.dtype, count: int, device: torch.device, options: dict[str, Any]
) -> Callable[[], object]:
    """The step of an optimizer on one square matrix with a gradient."""
    generator = torch.Generator(device).manual_seed(0)
    side = round(count**0.5)
    values = torch.randn(side, side, generator=generator, device=device)
    p = torch.nn.Parameter((values * 0.02).to(dtype))
    p.grad = (values.flip(0) * 1e-2).to(dtype)
    step: Callable[[], object] = make([p], **options).step
    return step


def variants(count: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Ours and torch's, by the name of the rule."""
    found = {}
    for rule, (name, options) in RULES.items():
        make = getattr(mcf.optim, name)
        found[rule] = optimizer(make, torch.bfloat16, count, device, options)
        theirs = getattr(torch.optim, name, None)
        if theirs is not None:
            how = {} if name == "Muon" else {"fused" if name in FUSED else "foreach": True}
            found[f"torch {rule}"] = optimizer(
                theirs, torch.float32, count, device, {**options, **how}
            )
    return found


def row(rule: str, times: dict[str, Timing], count: int) -> dict[str, Any]:
    """One line of the table."""
    per = 1e9 / count
    mine, theirs = times[rule], times.get(f"torch {rule}")
    return {
        "rule": rule,
        "ns/param": f"{mine.median * per:.3f}",
        "p20": f"{mine.quantile(0.2) * per:.3f}",
        "p80": f"{mine.quantile(0.8) * per:.3f}",
        "ratio to AdamW": f"{mine.median / times['AdamW'].median:.2f}",
        "torch ns/param": f"{theirs.median * per:.3f}" if theirs else "-",
        "ratio to torch": f"{mine.median / theirs.median:.2f}" if theirs else "-",
        "rounds": len(mine.seconds),
    }


def main() -> None:
    """Parse the options, time, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--size", type=int, default=16, help="parameters in units of 2**20 (16)")
    parser.add_argument("--rounds", type=int, default=21, help="rounds (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="time for a variant (6)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    if options.size < 1:
        parser.error(f"argument --size: {options.size} is not a whole number from 1")
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    count = options.size * MILLION
    times = in_turn(
        variants(count, device), rounds=options.rounds, seconds=options.seconds, device=device
    )
    rows = [row(rule, times, count) for rule in RULES]
    print(table(rows, COLUMNS))
    path = options.out / f"rules-{machine(device)}.csv"
    command = "python benchmarks/rules.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(device)})
    print(f"saved {path}")


if __name__ == "__main__":
    main()

"""The sections of a GPU day that are cases, each timed on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from gpu_measure import Case, Row, Size, forget, measured
from gpu_operations import arithmetic, functions, products
from gpu_steps import many, steps
from gpu_training import peers, training

Cases = Callable[[torch.device, Size], Iterator[Case]]

CASES: dict[str, Cases] = {
    "steps": steps,
    "training": training,
    "many": many,
    "arithmetic": arithmetic,
    "functions": functions,
    "products": products,
    "peers": peers,
}


def run(name: str, device: torch.device, size: Size) -> Iterator[Row]:
    """Measure the cases of a section, each after the one before."""
    failed: set[str] = set()
    for case in CASES[name](device, size):
        # A peer that cannot step cannot train either.
        if any(case.name.endswith(f", {other}") for other in failed if not case.ours):
            continue
        for row in measured(case, device, size):
            if row.quantity in ("error", "left out"):
                failed.add(row.case)
            yield row
    forget(device)

"""Where the examples are, and the smallest pretraining that still has every part."""

from __future__ import annotations

from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"

TINY = [
    "--layers=1", "--width=16", "--heads=2", "--context=16", "--batch-size=2", "--steps=7",
    "--eval-every=3", "--eval-windows=4", "--checkpoint-every=3", "--device=cpu", "--threads=1",
]  # fmt: skip

"""Estimate the memory and time of AdamW: `python -m mcf.plan --params 7e9 --gpus 8`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import NamedTuple

from mcf.optim import PRECISIONS, Precision

# Memory bandwidth in bytes per second, from the manufacturers' data sheets.
BANDWIDTHS = {
    "a100": 2.039e12,
    "h100": 3.35e12,
    "h200": 4.8e12,
    "b200": 8e12,
    "mi300x": 5.3e12,
}
# Parameters, gradients and two moments in float32.
FLOAT32 = "float32 (torch.optim.AdamW)"
# Bytes of a bf16 gradient, which a step reads and does not write.
GRADIENT = 2


class Row(NamedTuple):
    """One way to store a model under AdamW.

    Attributes:
        name: of the precision.
        per_param: bytes of parameter, gradient and moments.
        held: bytes of those on one device.
        seconds: that a step takes at least, all of it moved once at the memory's speed.
    """

    name: str
    per_param: float
    held: float
    seconds: float


def rows(
    params: float, gpus: int = 1, bandwidth: float = BANDWIDTHS["h100"], release: bool = False
) -> list[Row]:
    """Return bytes and time of every precision of AdamW, fewest bytes first.

    A step reads parameter, gradient and states and writes all but the gradient: with b bytes
    per parameter of which g are the gradient's it moves 2 b - g. Vectors, which precisions of 8
    bits keep wider, are not counted apart, nor are activations.

    Args:
        params: number of parameters, all in bf16.
        gpus: among which parameters, gradients and states are divided (FSDP).
        bandwidth: bytes per second.
        release: gradients are freed as soon as they are used (`mcf.optim.GradientRelease`).

    Raises:
        ValueError: for an argument that is not positive and finite.
    """
    for name, value in (("params", params), ("gpus", gpus), ("bandwidth", bandwidth)):
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {value!r}")
    bytes_of = {name: (Precision.of(name).bytes_per_param, GRADIENT) for name in PRECISIONS}
    bytes_of[FLOAT32] = (16.0, 4)
    found = []
    for name, (each, gradient) in bytes_of.items():
        mine = params / gpus
        kept = each - gradient * release
        found.append(Row(name, kept, kept * mine, (2 * each - gradient) * mine / bandwidth))
    return sorted(found, key=lambda row: row.per_param)


def text(found: Sequence[Row]) -> str:
    """Return the rows as a table."""
    width = max(len(row.name) for row in found)
    lines = [f"{'precision':{width}}  bytes/param  GiB per device  ms per step at least"]
    lines += [
        f"{row.name:{width}}  {row.per_param:11.4g}  {row.held / 2**30:14.4g}"
        f"  {1e3 * row.seconds:20.4g}"
        for row in found
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m mcf.plan",
        description="Bytes per device and time of a step of AdamW in every precision, on paper: "
        "bf16 parameters and gradients, divided among the devices, each byte moved once.",
    )
    add = parser.add_argument
    add("--params", type=float, required=True, help="number of parameters: 7e9")
    add("--gpus", type=int, default=1, help="devices among which all is divided (default 1)")
    add("--device", choices=BANDWIDTHS, default="h100", help="whose memory (default h100)")
    add("--bandwidth", type=float, help="GB/s of the memory, instead of --device")
    add("--gradient-release", action="store_true", help="gradients are freed when used")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table for the command-line arguments."""
    parser = _parser()
    given = parser.parse_args(arguments)
    speed = BANDWIDTHS[given.device] if given.bandwidth is None else 1e9 * given.bandwidth
    try:
        found = rows(given.params, given.gpus, speed, given.gradient_release)
    except ValueError as error:
        parser.error(str(error))
    print(text(found))


if __name__ == "__main__":
    main()

"""Time one AdamW step over a model of 300 tensors against one flat tensor of the same size.

    python benchmarks/many_tensors.py                  # CPU here, CUDA where there is one
    python benchmarks/many_tensors.py --seconds 1      # a quick look

The model is 30 blocks of a small transformer, 15 M elements in matrices and vectors. "mixed" keeps
its vectors in float32 and its matrices in bf16; flat, that is one tensor of each. All variants step
in turn. The bar is a ratio of 1.3 on a CPU and 1.1 on a GPU. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from harness import environment, in_turn, machine, save_csv, table
from optimizer_step import shapes_of
from optimizer_variants import HYPER, Step

from mcf.optim import AdamW

COLUMNS = ["variant", "tensors", "ms", "p20", "p80", "ratio to flat", "rounds"]

Shaped = list[tuple[torch.Size, torch.dtype]]


def model(kind: str) -> Shaped:
    """The shapes and dtypes of the 300 tensors."""
    vectors = torch.float32 if kind in ("mixed", "fp32") else torch.bfloat16
    matrices = torch.float32 if kind == "fp32" else torch.bfloat16
    return [(s, vectors if len(s) == 1 else matrices) for s in shapes_of("300x")]


def flat(shaped: Shaped) -> Shaped:
    """One tensor of each dtype with as many elements."""
    sizes: dict[torch.dtype, int] = {}
    for shape, dtype in shaped:
        sizes[dtype] = sizes.get(dtype, 0) + shape.numel()
    return [(torch.Size([n]), dtype) for dtype, n in sizes.items()]


def parameters(shaped: Shaped, device: torch.device) -> list[torch.nn.Parameter]:
    """Seeded parameters with gradients."""
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for shape, dtype in shaped:
        values = torch.randn(shape, generator=generator, device=device)
        p = torch.nn.Parameter((values * 0.02).to(dtype))
        p.grad = (values * 1e-2).to(dtype)
        made.append(p)
    return made


def variants(device: torch.device) -> dict[str, tuple[Shaped, Step]]:
    """Each step, by name; a flat one follows that of 300 tensors."""
    found: dict[str, tuple[Shaped, Step]] = {}
    for kind, metrics in (("bf16", False), ("mixed", False), ("bf16", True), ("mixed", True)):
        for shaped in (model(kind), flat(model(kind))):
            step = AdamW(
                parameters(shaped, device), precision="plus", track_metrics=metrics, **HYPER
            ).step
            name = f"plus, {kind}{', metrics' if metrics else ''}"
            found[name if len(shaped) > 2 else f"{name}, flat"] = (shaped, step)
    for shaped in (model("fp32"), flat(model("fp32"))):
        step = torch.optim.AdamW(parameters(shaped, device), fused=True, **HYPER).step
        name = "torch fused fp32"
        found[name if len(shaped) > 2 else f"{name}, flat"] = (shaped, step)
    return found


def main() -> None:
    """Parse the options, time, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="rounds (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=6.0,
        help="a variant that has used this much time stops early (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    found = variants(device)
    # Plans and lazily made buffers are there from the second step on.
    for _, step in found.values():
        step()
    times = in_turn(
        {name: step for name, (_, step) in found.items()},
        rounds=options.rounds,
        seconds=options.seconds,
        device=device,
    )
    rows = []
    for name, (shaped, _) in found.items():
        timing = times[name]
        reference = times[f"{name.removesuffix(', flat')}, flat"]
        rows.append(
            {
                "variant": name,
                "tensors": len(shaped),
                "ms": f"{timing.median * 1e3:.3f}",
                "p20": f"{timing.quantile(0.2) * 1e3:.3f}",
                "p80": f"{timing.quantile(0.8) * 1e3:.3f}",
                "ratio to flat": f"{timing.median / reference.median:.2f}",
                "rounds": len(timing.seconds),
            }
        )
    print(table(rows, COLUMNS), flush=True)
    path = options.out / f"many_tensors-{machine(device)}.csv"
    command = "python benchmarks/many_tensors.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(device)})
    print(f"saved {path}")


if __name__ == "__main__":
    main()

"""Time an AdamW step on parameters shared by processes (DTensor) against plain ones of their size.

    python benchmarks/sharded_step.py                  # CPU here, CUDA where there is one
    python benchmarks/sharded_step.py --seconds 1      # a quick look

This process has what one of 8 has: the others are torch's "fake" process group, whose collectives
return at once, so that a step's own time is seen and no network's. "small" are 300 tensors of 64
elements here, where the host's work is nearly all; "model" 300 of the sizes of a small transformer;
"rows" and "columns" four matrices of 4096 x 4096 cut along their first or their second dimension,
rounded stochastically. The bars are ratios: 1.3 of a plain step for 300 tensors, 2 of rows for
columns. Results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from harness import environment, in_turn, machine, save_csv, table
from optimizer_step import shapes_of
from optimizer_variants import HYPER
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from mcf.optim import AdamW

COLUMNS = ["variant", "tensors", "ms", "p20", "p80", "against", "ratio", "rounds"]
WORLD = 8

Step = Callable[[], object]


def parameters(
    shapes: Sequence[Sequence[int]], device: torch.device, mesh: Any, dim: int | None, dtype: Any
) -> list[torch.nn.Parameter]:
    """Parameters with gradients, of which parts of some shapes are here; plain without a mesh."""
    generator = torch.Generator(device).manual_seed(0)
    made = []
    for shape in shapes:
        values = torch.randn(*shape, generator=generator, device=device)
        t, g = (values * 0.02).to(dtype), (values * 1e-2).to(dtype)
        if mesh is not None:
            place = Replicate() if dim is None else Shard(dim)
            t, g = (DTensor.from_local(x, mesh, [place], run_check=False) for x in (t, g))
        p = torch.nn.Parameter(t)
        p.grad = g
        made.append(p)
    return made


def variants(device: torch.device, mesh: Any) -> dict[str, tuple[int, Step, str]]:
    """Each step by name, with its number of tensors and the variant it is compared with."""
    bf16 = torch.bfloat16
    found: dict[str, tuple[int, Step, str]] = {}
    small = [(8, 8)] * 300
    model = [(max(s[0] // WORLD, 1), *s[1:]) for s in shapes_of("300x")]
    options: dict[str, dict[str, Any]] = {
        "plus": {"precision": "plus"},
        "plus, clipped": {"precision": "plus", "max_grad_norm": 1.0},
        "plus, metrics": {"precision": "plus", "track_metrics": True},
        "stochastic": {"precision": "stochastic"},
    }
    for size, shapes in (("small", small), ("model", model)):
        for name, more in options.items():
            plain = f"{size}, {name}, plain"
            for label, where, dim in ((plain, None, None), (f"{size}, {name}, sharded", mesh, 0)):
                params = parameters(shapes, device, where, dim, bf16)
                step = AdamW(params, **more, **HYPER).step
                found[label] = (len(shapes), step, plain)
        plain = f"{size}, torch foreach bf16, plain"
        for label, where in ((plain, None), (f"{size}, torch foreach bf16, sharded", mesh)):
            params = parameters(shapes, device, where, 0, bf16)
            found[label] = (
                len(shapes),
                torch.optim.AdamW(params, foreach=True, **HYPER).step,
                plain,
            )
    for name, shape, dim in (("rows", (512, 4096), 0), ("columns", (4096, 512), 1)):
        params = parameters([shape] * 4, device, mesh, dim, bf16)
        step = AdamW(params, precision="stochastic", **HYPER).step
        found[f"matrices, stochastic, {name}"] = (4, step, "matrices, stochastic, rows")
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
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
    found = variants(device, init_device_mesh(device.type, (WORLD,)))
    # What repeats is there from the second step on.
    for _, step, _ in found.values():
        step()
    times = in_turn(
        {name: step for name, (_, step, _) in found.items()},
        rounds=options.rounds,
        seconds=options.seconds,
        device=device,
    )
    rows = []
    for name, (count, _, against) in found.items():
        timing = times[name]
        rows.append(
            {
                "variant": name,
                "tensors": count,
                "ms": f"{timing.median * 1e3:.3f}",
                "p20": f"{timing.quantile(0.2) * 1e3:.3f}",
                "p80": f"{timing.quantile(0.8) * 1e3:.3f}",
                "against": against,
                "ratio": f"{timing.median / times[against].median:.2f}",
                "rounds": len(timing.seconds),
            }
        )
    print(table(rows, COLUMNS), flush=True)
    path = options.out / f"sharded_step-{machine(device)}.csv"
    command = "python benchmarks/sharded_step.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(device)})
    print(f"saved {path}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""Which functions of torch take two float64 numbers as one, here and in torch-dd, digit by digit.

    pip install --no-deps torch-dd==0.1.1    # before Python 3.12 with --ignore-requires-python
    python benchmarks/peer_functions.py                  # torch.nn.functional
    python benchmarks/peer_functions.py --prefix ""      # all of torch's list, some minutes

Each function of torch's own list of functions with sample inputs (torch.testing) is called with
numbers of random digits in both components. Reference is the same function on four components, of
the same inputs. "right" are results within 2^-80 of the largest one in every sample (106 bits, less
26 for conditioning), "rounded" those beyond in one of them, or in plain float64, "refused" errors,
"in part" errors for some of the samples, empty tensors and scalars among them. torch-dd's extension
is not compiled: its authors say that the bits are the same without.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

sys.path.insert(0, str(Path(__file__).parents[1]))
import mcf
from tests.mcf.expansions import every_function as cases

RIGHT, PARTLY, ROUNDED, REFUSED = "right", "in part", "rounded", "refused"
BOUND = 2.0**-80


def _is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and x.layout is torch.strided


def inputs(sample: Any) -> Any:
    """The arguments, floats as pairs with random digits in both components."""
    generator = torch.Generator().manual_seed(0)

    def pair(x: Any) -> Any:
        if not _is_float(x):
            return x
        low = torch.randint(-(2**52), 2**52, x.shape, generator=generator).double() * 2.0**-106
        high = x.detach().double()
        # Whole numbers stay: they are sizes, probabilities 0 and 1, ties that are meant.
        low = torch.where(high.isfinite() & (high != high.round()), low * high.abs(), 0.0)
        return mcf.from_components((high, low))

    return tree_map(pair, (sample.input, list(sample.args), dict(sample.kwargs)))


def judged(
    call: Callable[[Any], Any], given: Any, want: list[Any], read: Callable[..., Any]
) -> str:
    """What a function does with inputs of a kind, beside the reference."""
    try:
        torch.manual_seed(1)
        got = tree_flatten(call(given))[0]
        if len(got) != len(want):
            return ROUNDED
        for x, y in zip(got, want, strict=True):
            if not isinstance(y, mcf.MCFTensor):
                continue
            value = read(x)
            if value is None:
                return ROUNDED
            finite = y.isfinite() & value.isfinite()
            error = torch.where(finite, (value - y).abs(), 0)
            size = torch.where(finite, y.abs(), 0)
            if error.numel() and not error.amax() <= BOUND * size.amax().clamp_min(1e-3):
                return ROUNDED
    except Exception:
        return REFUSED
    return RIGHT


def survey(prefix: str, count: int) -> dict[str, list[str]]:
    """For each function the verdicts on ours and on torch-dd."""
    import torch_dd
    from torch_dd import native

    native._load_error = RuntimeError("not compiled")

    def theirs(x: Any) -> Any:
        return torch_dd.DDTensor(*x.components) if isinstance(x, mcf.MCFTensor) else x

    def read_theirs(x: Any) -> Any:
        if not isinstance(x, torch_dd.DDTensor):
            return None
        return mcf.from_components((x.hi.detach(), x.lo.detach())).to(terms=4)

    def read_ours(x: Any) -> Any:
        return x.detach().to(terms=4) if isinstance(x, mcf.MCFTensor) else None

    found: dict[str, list[str]] = {}
    for op in cases.functions():
        name = cases.name_of(op)
        if not name.startswith(prefix) or name in cases.RANDOM or name in ("bfloat16", "half"):
            continue
        verdicts: list[set[str]] = [set(), set()]
        for sample in cases.samples(op, count):
            given = inputs(sample)

            def call(g: Any, op: Any = op) -> Any:
                return op(g[0], *g[1], **g[2])

            wide = tree_map(lambda x: x.to(terms=4) if isinstance(x, mcf.MCFTensor) else x, given)
            try:
                torch.manual_seed(1)
                want = tree_flatten(call(wide))[0]
            except Exception:
                continue
            verdicts[0].add(judged(call, given, want, read_ours))
            verdicts[1].add(judged(call, tree_map(theirs, given), want, read_theirs))
        if not all(verdicts):
            found[name] = [REFUSED, "not compared"]
            continue
        found[name] = [
            ROUNDED if ROUNDED in seen else PARTLY if len(seen) > 1 else next(iter(seen))
            for seen in verdicts
        ]
        print(f"{name:60} {found[name][0]:10} {found[name][1]}", flush=True)
    return found


def main() -> None:
    """Print the verdicts, their counts and the functions on which they differ."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prefix", default="nn.functional.", help="of the functions' names")
    parser.add_argument("--samples", type=int, default=3, help="inputs of each function")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with mcf.executor("torch"):
        found = survey(options.prefix, options.samples)
    for k, who in enumerate(("mcf", "torch-dd")):
        counts = {
            v: sum(pair[k] == v for pair in found.values()) for v in (RIGHT, ROUNDED, REFUSED)
        }
        print(who, counts)
    for verdict in (PARTLY, ROUNDED, REFUSED):
        names = [n for n, pair in found.items() if pair[1] == verdict]
        print(f"torch-dd, {verdict}:", ", ".join(names))


if __name__ == "__main__":
    main()

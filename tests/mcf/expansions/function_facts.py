"""Facts about each function of `docs/functions.md`, found by calling it, for the site's table.

    python -m tests.mcf.expansions.function_facts

Writes `docs/results/functions.csv`: in which formats a function of torch gives a result, whether
it takes complex expansions, its bound for pairs of float64, whether its result has a derivative,
and whether it needs kernels, which Triton has, or PyTorch's operations alone.
"""

from __future__ import annotations

import csv
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import mcf
from mcf.kernels import registry
from tests.mcf.expansions import every_function as cases

DOCS = Path(__file__).parents[3] / "docs"
TABLE = DOCS / "results" / "functions.csv"
FIELDS = ("function", "formats", "complex", "bound", "differentiable", "GPU")
FORMATS = {
    "bf16": (torch.bfloat16, 3),
    "fp16": (torch.float16, 2),
    "float32": (torch.float32, 2),
    "float64": (torch.float64, 2),
}
# Names of `mcf.bound` where they are not the last part of torch's.
BOUNDS = {
    "__radd__": "add", "__rmul__": "mul", "__rsub__": "sub", "__rdiv__": "div", "rsub": "sub",
    "div.no_rounding_mode": "div", "true_divide": "div", "special.bessel_j0": "j0",
    "special.bessel_j1": "j1", "special.bessel_y0": "y0", "special.bessel_y1": "y1",
    "special.modified_bessel_i0": "i0", "special.modified_bessel_i1": "i1",
    "special.modified_bessel_k0": "k0", "special.modified_bessel_k1": "k1",
    "special.scaled_modified_bessel_k0": "k0e", "special.scaled_modified_bessel_k1": "k1e",
    "nn.functional.gelu": "gelu", "special.ndtr": "normal_cdf", "mm": "matmul", "mv": "matmul",
    "bmm": "matmul", "inner": "dot", "vdot": "dot", "linalg.vecdot": "dot",
    "linalg.vector_norm": "norm", "fft.fft": "fft", "fft.rfft": "rfft", "fft.ifft": "fft",
    "mvlgamma.mvlgamma_p_1": "lgamma", "polygamma.polygamma_n_0": "digamma",
    "polygamma.polygamma_n_1": "trigamma",
}  # fmt: skip
# Operations of the registry that run a kernel.
KERNELS = (
    "run", "prepare", "fold", "fold_within", "fold_columns", "fold_deviations", "prepare_fold",
    "prepare_product", "product", "rows", "prepare_rows",
)  # fmt: skip
LENGTH = 1000


def bound(name: str) -> str:
    """Return the bound of `mcf.bound` for pairs of float64, in units of u^2 = 2^-106, if any."""
    # `mean` of a masked tensor is another function than `mean`.
    last = BOUNDS.get(name) or (name.removeprefix("special.") if "masked" not in name else "")
    for count in (None, LENGTH):
        try:
            found = mcf.bound(last, 2, torch.float64, count=count)
        except (ValueError, TypeError, NotImplementedError):
            continue
        if not found.relative and not found.of_terms:
            return "exact"
        parts = [f"{found.relative * 2.0**106:.3g} u^2"] if found.relative else []
        if found.of_terms:
            parts.append(f"{found.of_terms * 2.0**106:.3g} u^2 of T")
        return " + ".join(parts) + (f" ({count} terms)" if count else "")
    return ""


def samples_of(op: Any) -> list[Any]:
    """Return samples with numbers in them: torch's first samples are often empty."""
    found = list(cases.samples(op, 6))
    sized = [s for s in found if any(x.numel() > 1 for x in cases.floats((s.input, s.args)))]
    return sized or found


def works(op: Any, given: tuple[Any, Any, Any], what: type) -> bool:
    """Return whether a call gives an expansion, numbers that are exact, or nothing at all."""
    try:
        got = cases.attempt(lambda: op(given[0], *given[1], **given[2]))
    except (RuntimeError, ValueError, IndexError, NotImplementedError, TypeError, AttributeError):
        return False
    leaves = tree_flatten(got, is_leaf=lambda x: isinstance(x, torch.Tensor))[0]
    return not isinstance(got, str) and (
        what is torch.Tensor or any(isinstance(x, what) for x in leaves)
    )


def complex_sample(op: Any) -> tuple[Any, Any, Any] | None:
    """Return a complex sample of torch as complex expansions, if there is one."""
    if torch.complex128 not in op.supported_dtypes("cpu"):
        return None
    torch.manual_seed(0)

    def expansion(x: Any) -> Any:
        is_number = isinstance(x, torch.Tensor) and x.is_complex() and x.layout is torch.strided
        return mcf.complex_tensor(x.detach(), 2, torch.float64) if is_number else x

    for sample in op.sample_inputs("cpu", torch.complex128, requires_grad=False):
        given = (sample.input, list(sample.args), dict(sample.kwargs))
        if any(x.numel() > 1 for x in tree_flatten(given)[0] if isinstance(x, torch.Tensor)):
            ours: tuple[Any, Any, Any] = tree_map(expansion, given)
            return ours
    return None


def method(name: str) -> Any:
    """Return a function that calls a method by its name."""
    return lambda x, *rest, **options: getattr(x, name)(*rest, **options)


class _Observed:
    """An executor that notes which of its kernels are used."""

    def __init__(self, executor: Any, launched: list[str]) -> None:
        self._executor, self._launched = executor, launched

    def __getattr__(self, name: str) -> Any:
        if name in KERNELS:
            self._launched.append(name)
        return getattr(self._executor, name)


def run_of(op: Any, sample: Any) -> tuple[bool, bool]:
    """Return whether a result has a derivative, and whether kernels were launched for it."""
    ours = cases.both(sample, torch.float32, 2)[0]
    for x in cases.floats(ours):
        x.requires_grad_()
    launched: list[str] = []
    with registry.observed(lambda executor: _Observed(executor, launched)):
        try:
            got = cases.attempt(lambda: op(ours[0], *ours[1], **ours[2]))
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            got = None
    return any(y.requires_grad for y in cases.floats(got)), bool(launched)


def facts(name: str, op: Any) -> dict[str, str]:
    """Return the row of a function."""
    samples = samples_of(op)
    found = [
        label
        for label, (dtype, terms) in FORMATS.items()
        if works(op, cases.both(samples[0], dtype, terms)[0], torch.Tensor)
    ]
    complexes = complex_sample(op)
    # torch's wrappers of operators take tensors alone.
    called = method(name) if name.startswith("__") else op
    slopes = kernels = False
    for sample in samples[:4]:
        has = run_of(op, sample)
        slopes, kernels = slopes or has[0], kernels or has[1]
    return {
        "function": name,
        "formats": "all" if len(found) == len(FORMATS) else " ".join(found),
        "complex": "yes" if complexes and works(called, complexes, torch.Tensor) else "",
        "bound": bound(name),
        "differentiable": "yes" if slopes and name not in cases.RANDOM else "",
        "GPU": "kernels" if kernels else "PyTorch",
    }


def supported() -> list[str]:
    """Return the names of the page's list."""
    page = (DOCS / "functions.md").read_text()
    listed = page.split("## Supported")[1].split("## Refused")[0]
    return re.findall(r"`([^`]+)`", listed)


def main() -> None:
    """Write the table."""
    warnings.simplefilter("ignore")
    ops = {cases.name_of(op): op for op in cases.functions()}
    with mcf.executor("torch"), TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for name in supported():
            if name in ops:
                writer.writerow(facts(name, ops[name]))
                file.flush()


if __name__ == "__main__":
    main()

"""Elementary functions as one kernel: the bits of their programs over tensors, on every executor.

*Exact*: the program on the torch executor is the oracle. Mutants caught: a condition inverted, a
table's entries shifted by one component, a rounding to float32 left out, a component that is absent
taken for another.
"""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf.elementary
from mcf.elementary import fused, recording
from mcf.elementary.statements import UnrecordableError
from mcf.elementary.tables import Components, table
from mcf.kernels import FP32, FP64, exact, registry
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import inputs

# Arguments whose results are subnormal or beyond the range, in either format.
EDGES = (-745.0, -720.5, -708.75, -104.0, -95.25, -87.5, 88.75, 709.75, 1024.0, 1e300)


def _bits(x: Tensor) -> Tensor:
    return x.view({4: torch.int32, 8: torch.int64}[x.element_size()])


def arguments(name: str, fmt: Format, terms: int, count: int) -> list[Components]:
    """Arguments of all sizes, special values and edges in turn."""
    more = torch.cat([specials(fmt), torch.tensor(EDGES, dtype=torch.float64).to(fmt.dtype)])
    given = [batch[0] for batch in inputs(name, fmt, terms, count, seed=7)]
    alone = (more, *(torch.zeros_like(more) for _ in range(terms - 1)))
    return [tuple(map(torch.cat, zip(*given, alone, strict=True)))]


def check(name: str, fmt: Format, terms: int, executor: str, count: int = 40) -> None:
    spec = fused.kernel(name, fmt, terms)
    tables = [table(f.name, torch.device("cpu")) for f in spec.fields if f.table]
    for x in arguments(name, fmt, terms, count):
        with registry.executor("torch"):
            expected = getattr(mcf.elementary, name)(x)
        found = [torch.empty_like(c) for c in x]
        with registry.executor(executor):
            registry.run(spec, [[*found, *x, *tables]], torch.zeros(1, 0, dtype=torch.float64))
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(_bits(a), _bits(b)), (name, fmt.name, terms)


@pytest.mark.parametrize("executor", ["torch", "triton"])
@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
@pytest.mark.parametrize("name", sorted(fused.FUNCTIONS))
def test_formula_has_the_bits_of_the_program(name: str, fmt: Format, executor: str) -> None:
    if executor == "triton":
        pytest.importorskip("triton", reason="triton has wheels for Linux only")
    check(name, fmt, 2, executor)


_SHAPES = [(FP32, 1), (FP32, 2), (FP32, 3), (FP32, 4), (FP64, 1), (FP64, 2)]


# A kernel takes 2 to 5 s to compile.
@pytest.mark.parametrize(
    ("name", "fmt", "terms"),
    [
        pytest.param(n, f, t, marks=[] if (n, f, t) == ("exp", FP32, 2) else [pytest.mark.slow])
        for n in sorted(fused.FUNCTIONS)
        for f, t in _SHAPES
    ],
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_compiled_loop_has_the_bits_of_the_program(name: str, fmt: Format, terms: int) -> None:
    check(name, fmt, terms, "numba", 2000)


@pytest.mark.parametrize("fmt", [FP32, FP64], ids=lambda f: f.name)
def test_formula_in_rationals(fmt: Format) -> None:
    """exp of 0.75 + 2**-30 and others: what is computed is the formula, and nothing else rounds."""
    spec = fused.kernel("exp", fmt, 2)
    formula = exact.bind(spec.function, FP64, roundings={"rc": FP64, "narrow": fmt})
    rows = [
        [Fraction(v) for v in table(f.name, torch.device("cpu")).flatten().tolist()]
        for f in spec.fields
        if f.table
    ]
    leading = torch.tensor([0.75, -3.5, 20.0, -700.25, -720.5], dtype=fmt.dtype)
    x = (leading, leading * 2.0**-30)
    with registry.executor("torch"):
        found = mcf.elementary.exp(x)
    for k in range(len(leading)):
        given = tuple(Fraction(c[k].item()) for c in x)
        assert list(formula(given, *rows)) == [Fraction(c[k].item()) for c in found]


def test_a_launch_runs_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the program, which is gone."""
    x = (torch.linspace(-3, 3, 7), torch.zeros(7))
    fused.kernel("exp", FP32, 2)
    with registry.executor("torch"):
        expected = mcf.elementary.exp(x)
    monkeypatch.delitem(fused.PROGRAMS, "exp")
    with registry.executor("numba"):
        found = mcf.elementary.exp(x)
    assert [c.tolist() for c in found] == [c.tolist() for c in expected]


def test_nan_behind_a_number_reads_inside_the_table() -> None:
    """Components that are no expansion: the result is of no use, and no memory but ours is read."""
    x = torch.tensor([1.0, math.inf, -1e30])
    with registry.executor("numba"):
        assert mcf.elementary.exp((x, torch.full_like(x, math.nan)))[0].shape == (3,)


def _looks(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    ((x,),) = arguments
    return (x * x.sum().item(),)


def _mixes(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    ((x,),) = arguments
    return (x.flip(0),)


@pytest.mark.parametrize("program", [_looks, _mixes])
def test_what_is_no_formula_is_refused(program: fused.Compute) -> None:
    with pytest.raises(UnrecordableError):
        recording.formula("f", program, ("x",), FP64, (1,))


def test_recorded_in_inference_mode() -> None:
    """Below autograd, where operations come whole that are made of others elsewhere."""
    compute = fused.PROGRAMS["exp"].compute
    texts = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            function, _ = recording.formula("exp", compute, ("x",), FP32, (2,))
        texts.append((function.__code__.co_code, function.__code__.co_names))
    assert texts[0] == texts[1]

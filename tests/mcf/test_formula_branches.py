"""Steps that a formula runs only for blocks of elements that need them.

*Bit for bit*: a block in which none, one or all elements need a step has the results of the
program, which is run on the torch executor. Mutants caught: a branch that is never taken, or taken
where the condition holds for the last element alone; results used before they are chosen; a loop
that runs every step for every block.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import mcf.elementary
from mcf.elementary import fused
from mcf.kernels import FP64, registry
from mcf.kernels.algorithms.primitives import ONE, ZERO, div, gather, long, rn, where, whole
from mcf.kernels.bind import NEEDED, weight
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.numba.compile import sweeps
from mcf.kernels.numba.loops import element_loops
from mcf.kernels.numba.runtime import processor
from mcf.kernels.statements import Statement, branched


def test_few_elements_that_need_a_step() -> None:
    """Subnormal results, in blocks by themselves, at their ends, and alone."""
    x = torch.linspace(-4, 4, 160, dtype=torch.float64)
    for place in (0, 15, 17, 31, 47, 63, 120, 159):
        x[place] = -740.0 - place / 64
    x[64:96] = -720.5
    given = (x, torch.zeros_like(x))
    found = {}
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            found[executor] = mcf.elementary.exp(given)
    assert all(map(torch.equal, found["torch"], found["numba"]))


@pytest.mark.slow
def test_few_powers_that_are_exact() -> None:
    """Whole exponents, roots of squares and powers of two among powers that are none of these."""
    n = 192
    x = (torch.arange(n, dtype=torch.float64) + 64) / 128
    y = torch.full_like(x, 2.375)
    exact = ((0, 7.0, 3.0), (15, 81.0, 0.5), (40, 0.25, 1.5), (63, 3.0, 40.0), (64, 8.0, 2.375))
    exact += ((100, 15129.0, 2.5), (120, 1 + 2.0**-50, 2.0), (143, 5.0, 255.0), (191, 2.0, -3.0))
    for place, base, power in exact:
        x[place], y[place] = base, power
    rest = x * 2.0**-54
    rest[::2] = 0.0
    rest[[place for place, *_ in exact]] = 0.0
    given = (x, rest), (y, torch.zeros_like(y))
    found = {}
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            found[executor] = mcf.elementary.pow(*given)
    assert all(map(torch.equal, found["torch"], found["numba"]))
    assert found["numba"][0][15] == 9.0
    assert found["numba"][0][63] + 0.0 == 3.0**40
    assert found["numba"][1][63] == 3**40 - int(found["numba"][0][63].item())


def test_what_makes_powers_exact_is_in_steps() -> None:
    """The last bits of a base come by way of integers, without AVX-512 one by one."""
    spec = fused.kernel("pow", FP64, 2, 2)
    assert "gather" in spec.function.__code__.co_names
    assert "floating" not in spec.function.__code__.co_names


@pytest.mark.parametrize("name", ["exp", "sin", "pow"])
def test_formulas_have_steps(name: str) -> None:
    spec = fused.kernel(name, FP64, *[2] * len(fused.PROGRAMS[name].arguments))
    names = spec.function.__globals__
    steps = [n for n in spec.function.__code__.co_names if n.startswith(spec.function.__name__)]
    assert steps
    assert all(names[n].__code__.co_varnames[0] == NEEDED for n in steps)


def step(needed, x):  # type: ignore[no-untyped-def]
    """What negative numbers need: a division is not computed where nobody asks for it."""
    for _ in range(8):
        x = div(ONE, rn(x + x))
    return (x,)


def chosen(x):  # type: ignore[no-untyped-def]
    """A formula with a step."""
    down = x < ZERO
    (y,) = step(down, x)
    return (where(down, y, x),)


def test_loops_go_around_steps() -> None:
    spec = Elementwise(
        name="chosen",
        function=chosen,
        results=("r",),
        fields=(Field("x", FP64), Field("r", FP64, read=False, written=True)),
        stores=(("r", "r"),),
        arithmetic=FP64,
        long=True,
    )
    loop = element_loops.loop_of(spec).compiled()
    lines = loop.library.get_llvm_str().splitlines()
    label = next(k for k, line in enumerate(lines) if re.match(r"needed(\.i)*:", line))
    assert not any(" fdiv " in line for line in lines[:label])
    assert sum(" fdiv " in line for line in lines[label:]) >= 8


def entries(x, t):  # type: ignore[no-untyped-def]
    """Two numbers at one index."""
    at = long(x)
    return (rn(gather(t, at + whole(1)) + gather(t, at + whole(5))),)


def test_lanes_of_an_index_are_taken_out_once() -> None:
    spec = Elementwise(
        name="entries",
        function=entries,
        results=("r",),
        fields=(
            Field("x", FP64),
            Field("t", FP64, uniform=True, table=True),
            Field("r", FP64, read=False, written=True),
        ),
        stores=(("r", "r"),),
        arithmetic=FP64,
        long=True,
    )
    loop = element_loops.loop_of(spec).compiled()
    text = loop.library.get_llvm_str()
    lanes = processor.vector_bytes() // 8 * sweeps.VECTORS
    assert text.count(" extractelement ") == lanes
    assert text.count(" load double") == 2 * lanes
    x = torch.tensor([0.0, 3, 1, 2, 2], dtype=torch.float64)
    t = torch.arange(9, dtype=torch.float64) ** 3
    r = torch.empty_like(x)
    with registry.executor("numba"):
        registry.run(spec, [[x, t, r]], fused.NO_SCALARS)
    assert r.tolist() == [(k + 1) ** 3 + (k + 5) ** 3 for k in x.tolist()]


def test_a_step_may_be_one_long_operation() -> None:
    """Sums of floats of which many bits cancel are a step inside that of angles beyond pi/4."""
    spec = fused.kernel("sin", FP64, 2)
    steps = [n for n in spec.function.__code__.co_names if n.startswith(spec.function.__name__)]
    inner = [
        function for outer in steps for function in _steps_of(spec.function.__globals__[outer])
    ]
    assert max(map(weight, inner)) > 500


def _steps_of(function: Any) -> list[Any]:
    """The steps that a step calls."""
    names = [n for n in function.__code__.co_names if n.startswith(function.__name__)]
    return [function.__globals__[n] for n in names]


def _chain(start: str, first: int, count: int) -> list[Statement]:
    """v{first} = start + start and so on."""
    out = []
    for k in range(first, first + count):
        out.append(Statement((f"v{k}",), "+", (start, start)))
        start = f"v{k}"
    return out


def _choice(made: str, condition: str, chosen: str, other: str) -> Statement:
    return Statement((made,), "where", (condition, chosen, other))


def test_what_a_step_takes() -> None:
    """Only what its selections alone need; a step that uses what another chose comes after it."""
    statements = [
        *_chain("x", 0, 20),
        _choice("a", "c", "v19", "x"),
        *_chain("a", 20, 20),
        _choice("b", "c", "v39", "a"),
        *_chain("x", 40, 20),
        _choice("d", "e", "v59", "b"),
    ]
    found, steps = branched(statements, ["d"], {"c", "e"}, {}, "f")
    assert len(steps) == 3
    places = [
        k
        for name in ("v19", "a", "v39", "b", "d")
        for k, statement in enumerate(found)
        if name in statement.results
    ]
    assert places == sorted(places)
    assert len(places) == 5
    # What others need too stays where it is.
    both = [*statements[:21], *_chain("v19", 70, 1)]
    shared, none = branched(both, ["a", "v70"], {"c"}, {}, "g")
    assert not none
    assert len(shared) == 22

"""Elementary functions as one kernel: the bits of their programs over tensors, on every executor.

*Exact*: the program on the torch executor is the oracle, in float64 and float32 registers, with
special values, subnormal results and angles of all sizes. In float32 registers Triton's kernels
have no instruction on float64. Mutants caught: a condition inverted, a table's entries shifted by
one component, a rounding to float32 left out, a component that is absent taken for another; a table
of the other width is refused.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

import mcf
import mcf.elementary
from mcf.elementary import formula_recording, fused
from mcf.elementary.declarations import Program
from mcf.elementary.format import computing_in
from mcf.elementary.formula_recording import UnrecordableError
from mcf.elementary.operator import IN_FLOAT32, with_kernels
from mcf.elementary.tables import Components, lookup, table
from mcf.kernels import BF16, FP16, FP32, FP64, exact, registry
from mcf.kernels.elementwise import Elementwise, Field
from mcf.kernels.formats import Format
from tests.helpers.adversarial import specials
from tests.helpers.elementary import Inputs, inputs
from tests.helpers.everyday import everyday
from tests.helpers.special import often

# Arguments whose results are subnormal or beyond the range, in either format.
EDGES = (-745.0, -720.5, -708.75, -104.0, -95.25, -87.5, 88.75, 709.75, 1024.0, 1e300)


def _bits(x: Tensor) -> Tensor:
    if x.element_size() == 2:
        # Which NaN a conversion to 16 bits makes is the processor's choice.
        x = torch.where(x.isnan(), math.nan, x.float())
    return x.view({4: torch.int32, 8: torch.int64}[x.element_size()])


# Functions with a step that their formulas lack.
STEPS = ("airy_ai", "sin", "cos", "tan", "j0", "j1", "y0", "y1", "spherical_bessel_j0")
# Those of whole numbers and their neighbours.
WHOLE = ("ceil", "floor", "round", "trunc")


def _batches(name: str, fmt: Format, terms: int, count: int) -> list[tuple[Components, ...]]:
    if name not in WHOLE:
        return inputs(name, fmt, terms, count, seed=7)
    d = Inputs(fmt, terms, seed=7)
    halves = d.expansion(d.rng.integers(-40, 40, count) / 2)
    return [(d.between(-3, fmt.p * terms, count),), (halves,)]


def arguments(name: str, fmt: Format, terms: int, count: int) -> list[Components]:
    """Arguments of all sizes, special values, in pairs, and edges in turn."""
    more = torch.cat([specials(fmt), torch.tensor(EDGES, dtype=torch.float64).to(fmt.dtype)])
    heads = [more]
    if len(fused.PROGRAMS[name].arguments) == 2:
        # Powers that are exact: of whole exponents, halves, and powers of two.
        short = torch.tensor([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 9.0, -1.0, -2.0, -7.5])
        more = torch.cat([specials(fmt), short.to(fmt.dtype)])
        heads = list(torch.cartesian_prod(more, more).unbind(1))
    alone = [(h, *(torch.zeros_like(h) for _ in range(terms - 1))) for h in heads]
    batches = [*_batches(name, fmt, terms, count), alone]
    return [tuple(map(torch.cat, zip(*given, strict=True))) for given in zip(*batches, strict=True)]


def _rare(spec: Elementwise, given: list[Tensor]) -> Tensor:
    """Which elements need what the formula lacks; in float32 registers it lacks nothing."""
    if spec.sums is None:
        return torch.zeros(given[0].shape, dtype=torch.bool)
    alone = dataclasses.replace(
        spec,
        fields=(Field("r", FP64, read=False, written=True), *(f for f in spec.fields if f.read)),
        stores=(("rare", "r"),),
        sums=None,
        sum_count=0,
        counts=0,
        serial=-1,
    )
    out = torch.empty(given[0].shape, dtype=torch.float64)
    with registry.executor("torch"):
        registry.run(alone, [[out, *given]], torch.zeros(1, 0, dtype=torch.float64))
    return out > 0


def check(
    name: str, fmt: Format, terms: int, executor: str, count: int = 40, register: Format = FP64
) -> None:
    arguments_terms = [terms] * len(fused.PROGRAMS[name].arguments)
    spec = fused.kernel(name, fmt, *arguments_terms, register=register)
    with computing_in(register):
        tables = [table(f.name, torch.device("cpu")) for f in spec.fields if f.table]
    x = arguments(name, fmt, terms, count)
    dtype = fused.stored(fmt).dtype
    given = [*(c.to(dtype) for each in x for c in each), *tables]
    with registry.executor("torch"), mcf.registers("float32" if register is FP32 else "float64"):
        expected = getattr(mcf.elementary, name)(*x)
    found = [torch.empty_like(c, dtype=dtype) for c in x[0]]
    with registry.executor(executor):
        none = torch.zeros(1, 0, dtype=torch.float64)
        counted = registry.run(spec, [[*found, *given]], none)
    rare = _rare(spec, given)
    # Of many elements, which threads share, it is known whether there are any.
    assert (0 if counted is None else counted) in (rare.sum(), rare.any())
    left_out = register is FP64 and name in STEPS
    assert rare.any() == left_out, "what the inputs are to have"
    for a, b in zip(expected, found, strict=True):
        assert torch.equal(_bits(a)[~rare], _bits(b.to(fmt.dtype))[~rare]), (name, fmt.name, terms)


# Each function, formats of its components and of the registers.
CASES = [
    (name, fmt, register)
    for name in with_kernels()
    for register in (FP64, FP32)
    for fmt in (FP64, FP32, BF16, FP16)
    if register is FP64 or (name in IN_FLOAT32 and fmt is not FP64)
]
by_kernel = pytest.mark.parametrize(
    ("name", "fmt", "register"),
    everyday(CASES, lambda name, fmt, register: often(name)),
    ids=lambda c: getattr(c, "name", str(c)),
)


@pytest.mark.sampled(every=100)
@by_kernel
def test_formula_has_the_bits_of_the_program(name: str, fmt: Format, register: Format) -> None:
    check(name, fmt, 2, "torch", register=register)


@pytest.mark.sampled(every=140)
@by_kernel
def test_triton_has_the_bits_of_the_program(name: str, fmt: Format, register: Format) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    check(name, fmt, 2, "triton", register=register)


_FAST = [("exp", FP32, FP64, 2), ("sin", FP32, FP64, 2), ("log", FP32, FP32, 2)]


# A kernel takes half a second to some seconds to compile. Asked for are one or two of the many
# of a function, others of each; all are one source with numbers filled in.
@pytest.mark.sampled(slow=8)
@pytest.mark.parametrize(
    ("name", "fmt", "register", "terms"),
    everyday([(*case, n) for case in CASES for n in (1, 2, 3, 4)], _FAST),
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_compiled_loop_has_the_bits_of_the_program(
    name: str, fmt: Format, register: Format, terms: int
) -> None:
    check(name, fmt, terms, "numba", 2000, register=register)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp", "log"])
def test_ptx_has_no_float64(name: str) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    from tests.kernels import machine_code
    from tests.kernels.test_triton_compile_fold import has_float64

    terms = [2] * len(fused.PROGRAMS[name].arguments)
    narrow = fused.kernel(name, FP32, *terms, register=FP32)
    assert not has_float64(machine_code.compile_kernel(narrow, "sm_90").asm["ptx"])
    if name == "exp":
        wide = fused.kernel(name, FP32, *terms)
        assert has_float64(machine_code.compile_kernel(wide, "sm_90").asm["ptx"])


@pytest.mark.slow
@pytest.mark.parametrize("fmt", [BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", sorted({*with_kernels()} - {"atan2", "hypot", "pow"}))
def test_every_number_of_16_bits(name: str, fmt: Format) -> None:
    """Of one component, with all infinities, zeros and NaN, through the public function."""
    x = (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(fmt.dtype),)
    found = {}
    for executor in ("torch", "numba"):
        with registry.executor(executor):
            (found[executor],) = getattr(mcf.elementary, name)(x)
    assert torch.equal(*(_bits(c) for c in found.values()))


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


@pytest.mark.parametrize("registers", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_launch_runs_the_kernel(registers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the program, which is gone; by plan and by the operator."""
    x = mcf.tensor([0.7, -1.3, 2.0], 2)
    with mcf.registers(registers):
        with mcf.executor("torch"):
            expected = x.exp().components
        fused.kernel("exp", FP32, 2, register={"float64": FP64, "float32": FP32}[registers])
        gone = Program(None, ("x",))  # type: ignore[arg-type]
        monkeypatch.setitem(fused.PROGRAMS, "exp", gone)
        with mcf.executor("numba"):
            found = [x.exp().components, mcf.elementary.exp(x.components)]
    for components in found:
        assert [c.tolist() for c in components] == [c.tolist() for c in expected]


# A length that is no multiple of a vector's, a whole block of vectors, and more than an item.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 16384 + 5])
def test_every_element_of_a_stretch(count: int) -> None:
    x = torch.linspace(-3, 3, count), torch.zeros(count)
    with registry.executor("torch"):
        expected = mcf.elementary.exp(x)
    with registry.executor("numba"):
        found = mcf.elementary.exp(x)
    assert all(map(torch.equal, found, expected))


@pytest.mark.slow
def test_large_angles_run_the_program() -> None:
    """Which no formula computes; also beside others, and where components are not contiguous."""
    x = torch.linspace(-2990, 2990, 41).repeat_interleave(2)[::2]
    for large in (False, True):
        x[7] = 1e30 if large else 0.0
        with registry.executor("torch"):
            expected = mcf.elementary.sin((x, 0 * x))
        with registry.executor("numba"):
            found = mcf.elementary.sin((x, 0 * x))
        assert all(map(torch.equal, found, expected))


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


def _rounds_otherwise(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
    """`torch.sqrt` is rounded correctly on some processors only."""
    ((x,),) = arguments
    return (x.sqrt(),)


@pytest.mark.parametrize("program", [_looks, _mixes, _rounds_otherwise])
def test_what_is_no_formula_is_refused(program: fused.Compute) -> None:
    with pytest.raises(UnrecordableError):
        formula_recording.formula("f", program, ("x",), FP64, (1,))


def test_recorded_in_inference_mode() -> None:
    """Below autograd, where operations come whole that are made of others elsewhere."""
    compute = fused.PROGRAMS["exp"].compute
    texts = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            function, *_ = formula_recording.formula("exp", compute, ("x",), FP32, (2,))
        texts.append((function.__code__.co_code, function.__code__.co_names))
    assert texts[0] == texts[1]


def test_a_table_of_the_other_width_is_refused() -> None:
    def mixed(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        ((x,),) = arguments
        return (x * table("tens", x.device)[0][x.round().to(torch.int64)].to(x.dtype),)

    def right(arguments: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        ((x,),) = arguments
        return (x * lookup("tens", x.round().to(torch.int64), 1)[0],)

    formula_recording.formula("f", right, ("x",), FP32, (1,), FP32)
    with pytest.raises(UnrecordableError):
        formula_recording.formula("f", right, ("x",), FP64, (1,), FP32)
    with pytest.raises(UnrecordableError):
        formula_recording.formula("f", mixed, ("x",), FP64, (1,), FP32)

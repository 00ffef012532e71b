"""Elementary functions in float32 registers as one kernel each: the bits of their programs.

*Exact*: the program on the torch executor is the oracle, with special values, subnormal results and
angles of all sizes. Triton's kernels have no instruction on float64. Mutants: the same kernels in
float64 registers; a table of the other width is refused.
"""

from __future__ import annotations

import pytest
import torch

import mcf
from mcf.elementary import formula_recording, fused
from mcf.elementary.declarations import Program
from mcf.elementary.formula_recording import UnrecordableError
from mcf.elementary.operator import IN_FLOAT32, with_kernels
from mcf.elementary.tables import Components, lookup, table
from mcf.kernels.formats import BF16, FP16, FP32, FP64, Format
from tests.helpers.everyday import everyday
from tests.mcf.test_elementary_fused import check

NAMES = sorted(IN_FLOAT32 & {*with_kernels()})
_SHAPES = [(f, n) for f in (BF16, FP16, FP32) for n in (1, 2, 3, 4)]


@pytest.mark.sampled(every=144)
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_formula_has_the_bits_of_the_program(name: str, fmt: Format) -> None:
    check(name, fmt, 2, "torch", register=FP32)


@pytest.mark.sampled(every=192)
@pytest.mark.parametrize("fmt", [FP32, BF16, FP16], ids=lambda f: f.name)
@pytest.mark.parametrize("name", NAMES)
def test_triton_has_the_bits_of_the_program(name: str, fmt: Format) -> None:
    pytest.importorskip("triton", reason="triton has wheels for Linux only")
    check(name, fmt, 2, "triton", register=FP32)


# Some seconds to compile each; asked for are one or two of the twelve of a function.
@pytest.mark.sampled(slow=7)
@pytest.mark.parametrize(
    ("name", "fmt", "terms"),
    everyday([(n, f, t) for n in NAMES for f, t in _SHAPES], [("log", FP32, 2)]),
    ids=lambda c: getattr(c, "name", str(c)),
)
def test_compiled_loop_has_the_bits_of_the_program(name: str, fmt: Format, terms: int) -> None:
    check(name, fmt, terms, "numba", 2000, register=FP32)


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
def test_a_launch_runs_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the program, which is gone; by plan and by the operator."""
    x = mcf.tensor([0.7, -1.3, 2.0], 2)
    with mcf.registers("float32"):
        with mcf.executor("torch"):
            expected = x.exp().components
        fused.kernel("exp", FP32, 2, register=FP32)
        gone = Program(None, ("x",))  # type: ignore[arg-type]
        monkeypatch.setitem(fused.PROGRAMS, "exp", gone)
        with mcf.executor("numba"):
            found = [x.exp().components, mcf.elementary.exp(x.components)]
    for components in found:
        assert [c.tolist() for c in components] == [c.tolist() for c in expected]


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

"""Tables that are made while a formula is recorded are no part of it."""

from __future__ import annotations

from fractions import Fraction

import torch

from mcf.elementary import formula_recording
from mcf.elementary.tables import Components, rows
from mcf.kernels.formats import FP32, Format


def test_what_a_table_leaves_out_the_formula_does_not() -> None:
    """Conversions count what hardly any number needs, as formulas do; the kernel counted it too."""

    def compute(given: tuple[Components, ...], fmt: Format, terms: int) -> Components:
        made = rows([Fraction(k, 97) for k in range(1, 97)])
        torch.ops.mcf.convert(list(made.unbind()), torch.float32, len(made))
        return (given[0][0] + 1.0,)

    found = formula_recording.formula("sum", compute, ("x",), FP32, (1,), FP32)
    assert not found.partial
    assert found.results == 1

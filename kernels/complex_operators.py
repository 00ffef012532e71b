"""Operators on the parts of complex expansions: three or four operands, two results, one kernel."""

from __future__ import annotations

from mcf.kernels.algorithms import complex_numbers, complex_quotients
from mcf.kernels.operators import Operation

PARTS = ("a", "b", "c", "d")


def _sum(name: str, family: complex_numbers.Formulas) -> Operation:
    """Return an operation whose second operand may have single floats as parts."""
    count = len(family.parameters)
    return Operation(
        f"complex_{name}",
        PARTS[:count],
        family.usual,
        family.special,
        floats=PARTS[2:count],
        parts=2,
    )


ADD = _sum("add", complex_numbers.ADD)
SUB = _sum("sub", complex_numbers.SUB)
MUL = _sum("mul", complex_numbers.MUL)
# Products and quotients by a real number.
SCALE = _sum("scale", complex_numbers.SCALE)
UNSCALE = _sum("unscale", complex_numbers.UNSCALE)
DIV = Operation(
    "complex_div", PARTS, complex_quotients.DIV, parts=2, narrow=complex_quotients.DIV_NARROW
)

COMPLEX = (ADD, SUB, MUL, SCALE, UNSCALE, DIV)

"""Whether an expansion is the nearest one of the number that it is, and zeros as it has them."""

from mcf.kernels.algorithms.families import written
from mcf.kernels.algorithms.primitives import ZERO, const, rn


def _usual(n):
    """Of `mcf.convert.rounding`: what its `canonical` leaves as it is."""
    names = [f"h{k}" for k in range(n)]
    lines = [f"{', '.join(names)} = x", "found = rn(h0 - h0) == ZERO"]
    for k in range(n - 1):
        lines.append(f"found = found & (rn(h{k} + h{k + 1}) == h{k})")
    # Half the gap to a neighbour, to which what follows may lead.
    for k in range(n - 2):
        lines.append(f"twice = rn(const(2.0) * h{k + 1})")
        lines.append(f"apart = rn(rn(h{k} + twice) - h{k}) != twice")
        lines.append(f"found = found & (apart | (h{k + 1} == ZERO) | (h{k + 2} == ZERO))")
    doc = "Whether x is finite and each component the rounding of itself and those below it."
    lines.append("return found")
    return written(f"usual{n}", "x", lines, doc, rn=rn, const=const, ZERO=ZERO)


def _tidy(n):
    cells = "".join(f"rn(x[{k}] + ZERO), " for k in range(1, n))
    lines = [f"return x[0], {cells}"]
    return written(f"tidy{n}", "x", lines, "x, its low zeros positive.", rn=rn, ZERO=ZERO)


USUAL = {n: _usual(n) for n in (2, 3, 4)}
TIDY = {n: _tidy(n) for n in (2, 3, 4)}

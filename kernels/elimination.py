"""Declare Gaussian elimination of a panel, from which executors generate loops.

Multiples of each row of a panel P are subtracted from later rows. For j = 0, 1, ...

1. h = P[j, j], or 1 if it is 0 ("lu"); its square root, or 1 if it is not positive ("cholesky");
   A[j, j] of a separate triangular matrix ("substitution").
2. w = P[j, c] / h replaces P[j, c]. In a substitution with a unit diagonal w = P[j, c].
3. P[k, c] = P[k, c] - m w[c] for all rows k > j, where m is P[k, j] ("lu"), w[k] ("cholesky"),
   A[k, j] ("substitution").

In "lu" and "cholesky" P is the transpose of some columns of the matrix, c goes from j + 1 on, and
"lu" first exchanges columns j and c of P for the first of the largest |P[j, c]|, c >= j; a NaN is
larger than all others. For complex numbers the magnitude is |Re| + |Im|; "cholesky" uses
m = conj(w[k]) and assumes a real diagonal.

An "lu" of a whole square matrix may also solve systems and return determinants:

4. The rows of X are exchanged as those of A were, and L Y = X and U Z = Y are solved in place, the
   second from the last row to the first, in the order of a substitution.
5. The determinant is U's diagonal, whose first number has the sign of the exchanges, multiplied by
   halves: terms k < m // 2 and m - m // 2 + k are combined until one is left.

The operations on an element and their order do not depend on other rows and columns, so launches of
`div`, `fma` and `sqrt`, one for each j, give the same bits as one loop.
"""

from __future__ import annotations

import dataclasses
import functools
from types import ModuleType
from typing import Any

from mcf.kernels.algorithms import complex_elimination as complex_formulas
from mcf.kernels.algorithms import elimination as formulas
from mcf.kernels.algorithms import reflection
from mcf.kernels.bind import Algorithm
from mcf.kernels.formats import FP32, Format

KINDS = ("lu", "cholesky", "substitution")


# Compared and hashed by identity, as `Elementwise`.
@dataclasses.dataclass(frozen=True, eq=False)
class Elimination:
    """Elimination in a panel of expansions; the order is that of this module's docstring.

    Args:
        kind: "lu", "cholesky" or "substitution".
        format: the format of the components and of the arithmetic.
        terms: the number of components; a complex number has those of the real part first.
        head: maps a diagonal element to the divisor of its row; not for "substitution".
        quotient: (x, h) -> x / h.
        update: (z, m, w) -> z - m w, or z - conj(m) w for "cholesky".
        magnitude: x -> |x|, of which the largest is the pivot.
        product: (x, y) -> x y, of determinants.
        first_bad: (index or 0, d, i) -> i where the index is 0 and d has no head, else the index.
        signed: (odd, x) -> -x where odd is not 0, else x.
        chosen: (condition, x, y) -> x where it holds, else y.
    """

    kind: str
    format: Format
    terms: int
    head: Algorithm
    quotient: Algorithm
    update: Algorithm
    magnitude: Algorithm
    product: Algorithm
    first_bad: Algorithm
    signed: Algorithm
    chosen: Algorithm

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """The algorithms by the names that loops give them."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[3:]}
        return own | formulas.SELECTION


@functools.cache
def elimination(kind: str, fmt: Format, terms: int, parts: int = 1) -> Elimination:
    """Return the elimination of a kind for a format and a number of components.

    Args:
        kind: see `Elimination`.
        fmt: the format of the components.
        terms: components of a real number, or of each part of a complex one.
        parts: 1 for real numbers, 2 for complex ones.
    """
    f: ModuleType = complex_formulas if parts == 2 else formulas
    quotient, update = f.QUOTIENT, f.LESS_PRODUCT
    if parts == 2 and kind == "cholesky":
        quotient, update = f.OVER_REAL, f.LESS_CONJUGATE
    elif parts == 2 and fmt.register == FP32:
        quotient = f.QUOTIENT_NARROW
    heads = f.ROOT_OF_POSITIVE if kind == "cholesky" else f.NONZERO_OR_ONE
    first = f.FIRST_NOT_POSITIVE if kind == "cholesky" else f.FIRST_ZERO
    used = (heads, quotient, update, f.MAGNITUDE, f.PRODUCT, first, f.SIGNED)
    own: list[Any] = [family[terms] for family in used]
    return Elimination(kind, fmt, parts * terms, *[*own, reflection.CHOSEN[parts * terms]])

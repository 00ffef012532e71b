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

from mcf.kernels.algorithms import complex_elimination as complex_formulas
from mcf.kernels.algorithms import elimination as formulas
from mcf.kernels.algorithms import reflection
from mcf.kernels.bind import Formulas
from mcf.kernels.formats import FP32, Format

KINDS = ("lu", "cholesky", "substitution")


@dataclasses.dataclass(frozen=True, eq=False)
class Elimination(Formulas):
    """Elimination in a panel of expansions; the order is that of this module's docstring.

    Args:
        kind: "lu", "cholesky" or "substitution".
        format: the format of the components and of the arithmetic.
    """

    kind: str
    format: Format


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
    quotient, update = f.quotient, f.less_product
    if parts == 2 and kind == "cholesky":
        quotient, update = f.over_real, f.less_conjugate
    elif parts == 2 and fmt.register == FP32:
        quotient = f.quotient_narrow
    cholesky = kind == "cholesky"
    families = {
        # The divisor of a row, from its diagonal element; not for "substitution".
        "head": f.root_of_positive if cholesky else f.nonzero_or_one,
        # (x, h) -> x / h
        "quotient": quotient,
        # (z, m, w) -> z - m w, or z - conj(m) w for "cholesky"
        "update": update,
        # x -> |x|, of which the largest is the pivot
        "magnitude": f.magnitude,
        # (x, y) -> x y, of determinants
        "product": f.product,
        # (index or 0, d, i) -> i where the index is 0 and d has no head, else the index
        "first_bad": f.first_not_positive if cholesky else f.first_zero,
        # (odd, x) -> -x where odd is not 0, else x
        "signed": f.signed,
    }
    own = {name: family[terms] for name, family in families.items()}
    own |= {"chosen": reflection.chosen[parts * terms], **formulas.SELECTION}
    return Elimination(parts * terms, parts, own, kind, fmt)

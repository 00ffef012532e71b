"""Elementary functions on tuples of components.

Every function takes expansions as tuples of 1 to 4 tensors (bfloat16, float16, float32, float64),
largest component first and normalised, of one dtype and device, which broadcast; it returns as many
components as the longest argument, normalised. Special values are those of C99 (Annex F).

The result is computed with some 10 bits more than it has and rounded once, so that its error is
little above that of the rounding itself: `mcf.bound` has the bounds.
Four components of float64 are computed with no more than themselves. Results below the smallest
normal number times u**(1 - n) lose the bits that have no place above the smallest subnormal one;
results beyond the largest number are infinite. All executors give the same bits.

Raises, all of them: `TypeError` for other dtypes, mixed dtypes or devices; `ValueError` for shapes
that do not broadcast or a wrong number of components; `RuntimeError` for tensors that require grad
while grad mode is on: derivatives belong to `mcf.MCFTensor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Modules that declare the functions.
from mcf.elementary import airy as airy
from mcf.elementary import bessel as bessel
from mcf.elementary import bessel_jy as bessel_jy
from mcf.elementary import complex_functions as complex_functions
from mcf.elementary import error as error
from mcf.elementary import gamma as gamma
from mcf.elementary import gelu_forms as gelu_forms
from mcf.elementary import hyperbolic as hyperbolic
from mcf.elementary import integral_parts as integral_parts
from mcf.elementary import inverse_error as inverse_error
from mcf.elementary import polygamma as polygamma
from mcf.elementary import power as power
from mcf.elementary import remainders as remainders
from mcf.elementary import trigonometric as trigonometric
from mcf.elementary.operator import FUNCTIONS
from mcf.elementary.softmax import log_softmax as log_softmax
from mcf.elementary.softmax import logsumexp as logsumexp
from mcf.elementary.softmax import softmax as softmax

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...

else:
    globals().update(FUNCTIONS)

"""Operators whose derivatives under torch.func would be rounded to double precision: they say so.

Above autograd these functions have derivatives of ours. A transform of torch.func takes torch's,
whose constants are doubles (1 / log(2), 2 / sqrt(pi), 2 / (count - 1)) or which cancel, and nothing
of that is seen where the operators are computed: only who calls.
"""

from __future__ import annotations

from typing import Any

import torch

from mcf.kernels.formats import format_of

# Ways above autograd keep the operators that they find: no transform goes them, so it is those that
# look at no caller.
from mcf.tensor import shortcuts as shortcuts
from mcf.tensor import shortcuts_of_formulas as shortcuts_of_formulas
from mcf.tensor import shortcuts_of_kernels as shortcuts_of_kernels
from mcf.tensor import shortcuts_of_rows as shortcuts_of_rows
from mcf.tensor.recorded import DERIVATIVES, FORWARD, transformed
from mcf.tensor.registry import OPERATORS, UnsupportedError, readable
from mcf.tensor.tensor import MCFTensor

aten = torch.ops.aten

# The bits of the constants.
_DOUBLE = 53


_CONSTANTS = "has constants of double precision"


def _refused(
    func: Any, callers: frozenset[str], where: str, bits: int = _DOUBLE, why: str = _CONSTANTS
) -> None:
    implementation = OPERATORS[func]

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, MCFTensor) and x.terms * format_of(x.dtype).p > bits:
            if transformed(callers):
                raise UnsupportedError(
                    f"{readable(func)} of {x.terms} components of {x.dtype} under {where}: torch's "
                    f"derivative {why}; use backward or torch.autograd.grad, which have all "
                    "components"
                )
        return implementation(x, *args, **kwargs)

    OPERATORS[func] = run


for _func in (
    aten.log2.default, aten.log10.default, aten.erf.default, aten.erfc.default,
    aten.erfinv.default, aten.special_erfcx.default, aten.special_ndtri.default,
    aten.special_log_ndtr.default, aten.sinc.default, aten.deg2rad.default, aten.rad2deg.default,
    aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction,
):  # fmt: skip
    _refused(_func, DERIVATIVES, "torch.func.grad, vjp or jvp")
_refused(aten.logcumsumexp.default, FORWARD, "torch.func.jvp")
_refused(
    aten.trace.default, DERIVATIVES - FORWARD, "torch.func.grad or vjp",
    bits=0, why="is a plain tensor (x.diagonal().sum() has one of expansions)",
)  # fmt: skip

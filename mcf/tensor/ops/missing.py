"""Special functions that expansions lack, and what there is in their place."""

from __future__ import annotations

from typing import Any

import torch

from mcf.tensor.registry import UnsupportedError, implements

aten = torch.ops.aten

_BESSEL = (
    "there are the Bessel functions mcf.j0, j1, y0, y1, i0, i0e, i1, i1e, k0, k0e, k1 and k1e, of "
    "whole orders"
)
_GAMMA = (
    "there are mcf.lgamma, digamma, trigamma, torch.polygamma and, for a = 1/2, mcf.erf and erfc "
    "of the root of x"
)


def _refuse(name: str, operator: Any, instead: str) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise UnsupportedError(
            f"{name} is not there for mcf.MCFTensor; {instead}; x.to_plain() rounds to one plain "
            "tensor, for which torch has it"
        )

    implements(operator)(refuse)


_refuse("torch.special.airy_ai", aten.special_airy_ai.default, _BESSEL)
_refuse("torch.special.gammainc (igamma)", aten.igamma.default, _GAMMA)
_refuse("torch.special.gammaincc (igammac)", aten.igammac.default, _GAMMA)

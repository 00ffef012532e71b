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


def _refuse(name: str, operator: Any, instead: str) -> None:
    def refuse(*given: Any, **options: Any) -> Any:
        raise UnsupportedError(
            f"{name} is not there for mcf.MCFTensor; {instead}; x.to_plain() rounds to one plain "
            "tensor, for which torch has it"
        )

    implements(operator)(refuse)


_refuse("torch.special.airy_ai", aten.special_airy_ai.default, _BESSEL)

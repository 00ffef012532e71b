"""Programs of elementary functions call none of torch's that processors round differently.

`torch.sqrt` is MKL's on x86, which is wrong in the last bit of one root in a hundred.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.elementary import fused
from mcf.elementary.format import computing_in
from mcf.elementary.operator import with_kernels
from mcf.kernels.formats import FP64
from tests.helpers.everyday import everyday

aten = torch.ops.aten
# Of float arguments only what IEEE 754 rounds is the same everywhere.
VAGUE = {
    getattr(aten, name)
    for name in (
        "sqrt rsqrt exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh "
        "cosh tanh erf erfc lgamma digamma sigmoid addcmul addcdiv lerp sum mean dot mv mm"
    ).split()
}


class _Watch(TorchDispatchMode):
    """Collects the calls that are in `VAGUE`, of floats."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        floats = args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point()
        if func.overloadpacket in VAGUE and floats:
            self.seen.add(str(func))
        return func(*args, **(kwargs or {}))


# The first has a step that others lack, and was wrong.
EVERYDAY = ("erfinv", "hypot", "pow", "power_3")
OTHERS = sorted({*with_kernels()} - {*EVERYDAY})


@pytest.mark.parametrize("name", everyday([*EVERYDAY, *OTHERS], EVERYDAY))
def test_steps_are_rounded_by_ieee(name: str, on_torch: None) -> None:
    program = fused.PROGRAMS[name]
    x = torch.tensor([-3.5, -0.75, 0.0, 0.25, 0.5, 0.9375, 1.0, 7.0, 33.0], dtype=torch.float64)
    given = tuple((x.roll(k),) for k in range(len(program.arguments)))
    with _Watch() as watch, computing_in(FP64):
        program.compute(given, FP64, 1)
    assert not watch.seen

"""Define methods and attributes whose `__torch_function__` check can be skipped.

Torch's check takes a fifth of a view's time, and a third where it is written in Python. For an
expansion tensor its result is known.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from mcf.expansions.dispatch.registry import VIEWS
from mcf.expansions.tensor import MCFTensor

_asked = torch._C._is_torch_function_enabled
_function_modes = torch._C._len_torch_function_stack
_TYPES = (MCFTensor,)


def _answered(own: Any) -> Any:
    @functools.wraps(own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or type(self) is not MCFTensor:
            return own(self, *args, **kwargs)
        if not _asked() or _function_modes():
            return own(self, *args, **kwargs)
        return MCFTensor.__torch_function__(own, _TYPES, (self, *args), kwargs)  # type: ignore[no-untyped-call]

    return method


# Not `__getitem__`: defined in Python it makes the type a sequence, and torch.tensor([x]) and NumPy
# would ask for the length of its elements.
for _name in ("norm", "split"):
    setattr(MCFTensor, _name, _answered(getattr(Tensor, _name)))
for _name in ("H", "T", "mH", "mT"):
    _own = getattr(Tensor, _name)
    setattr(MCFTensor, _name, property(_answered(_own.__get__), doc=_own.__doc__))


def _iterated(self: Any) -> Any:
    """Iterate over views along the first dimension."""
    if torch.compiler.is_compiling() or type(self) is not MCFTensor:
        return _torchs(self)
    if not _asked() or _function_modes() or not self.__dict__["_c0"].ndim or _tracing() is not None:
        return _torchs(self)
    with _unasked():
        return iter(VIEWS[Tensor.unbind](self))


_tracing, _unasked = torch._C._get_tracing_state, torch._C.DisableTorchFunctionSubclass
_torchs: Any = Tensor.__iter__
MCFTensor.__iter__ = functools.wraps(_torchs)(_iterated)  # type: ignore[method-assign]

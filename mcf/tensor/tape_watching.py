"""What is seen while the steps of a function are written down, beside its operators."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from mcf.tensor.launches import Plan
from mcf.tensor.moment_plans import MomentPlan
from mcf.tensor.recorded import modes
from mcf.tensor.softmax_plans import SoftmaxPlan
from mcf.tensor.sums import SumPlan
from mcf.tensor.tape_tensors import RefusedError, tensors


class _OfThread(type):
    """A category of the warnings of one thread: filters are those of the whole process."""

    thread: int | None = None

    def __subclasscheck__(cls, category: type) -> bool:
        return cls.thread == threading.get_ident()


class _Heard(Warning, metaclass=_OfThread):
    """Any warning of the thread that writes down."""


@contextlib.contextmanager
def warned() -> Iterator[None]:
    """Raise this thread's warnings inside the block, those that have been shown before as well."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", _Heard)
        _Heard.thread = threading.get_ident()
        try:
            yield
        finally:
            # Another thread that changes filters meanwhile may keep this one.
            _Heard.thread = None


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Refuse what takes numbers to Python inside the block, where no operator says so."""
    names = ("tolist", "numpy", "__array__")
    plain = {name: Tensor.__dict__.get(name) for name in names}
    thread = threading.get_ident()

    def refusing(name: str) -> Any:
        before = getattr(Tensor, name)

        def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            # Below the mode an operator that is called as it is does what it likes.
            if modes() and threading.get_ident() == thread:
                raise RefusedError(f"Tensor.{name}")
            return before(self, *args, **kwargs)

        return read

    for name in names:
        setattr(Tensor, name, refusing(name))
    try:
        yield
    finally:
        for name, before in plain.items():
            if before is None:
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, before)


_PLANS: tuple[Any, ...] = (Plan, SumPlan, MomentPlan, SoftmaxPlan)


@contextlib.contextmanager
def launched() -> Iterator[list[Any]]:
    """The plans that this thread runs inside the block, what they are given and what they make."""
    found: list[Any] = []
    thread, plain = threading.get_ident(), [kind.run for kind in _PLANS]

    def counted(before: Any) -> Any:
        def run(self: Any, parts: Any) -> Any:
            out = before(self, parts)
            if threading.get_ident() == thread:
                groups = parts if type(self) in (Plan, MomentPlan) else [parts]
                found.append((self, groups, None if out is None else [*tensors(out)]))
            return out

        return run

    for kind in _PLANS:
        kind.run = counted(kind.run)
    try:
        yield found
    finally:
        for kind, run in zip(_PLANS, plain, strict=True):
            kind.run = run

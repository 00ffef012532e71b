"""Functions made of others, on few elements: their steps one after the other.

Between two operations of expansions torch and Python take ten times as long as a kernel does for
one element. What a function does with operands of a kind is written down (`mcf.tensor.taping`) when
it is called for the second time; after that only its steps are made.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from mcf.kernels import registry
from mcf.kernels.bit_functions import SOURCE, TARGET, simple
from mcf.kernels.register_choice import get_registers
from mcf.kernels.sequence import Bound, Together, bound
from mcf.tensor.plans import addressed
from mcf.tensor.tape_steps import Called, ChangedError, Launched, checked, is_slow
from mcf.tensor.tape_tensors import RefusedError, memory_of
from mcf.tensor.tape_watching import unread, warned
from mcf.tensor.taping import Recorder
from mcf.tensor.tensor import COMPONENTS, MCFTensor, fresh, wrap

_empty_like, _address = torch.empty_like, Tensor.data_ptr

# Of operands of at most so many elements.
_FEW = 256
# Kinds of calls whose steps are kept; beyond that all are forgotten.
_MOST = 1024
_SEEN = "called once"
# One in so many steps may be as slow as torch's way.
_SLOW = 4
_tapes: dict[tuple[Any, ...], Any] = {}
_recording = threading.Lock()
_cpu = torch.device("cpu")
_dtype = torch.get_default_dtype

_VALUES = frozenset({str, type(None), torch.dtype, bool, int})
_LISTS = frozenset({list, tuple, torch.Size})


def taped(function: Any) -> Callable[..., Any]:
    """What computes a function of torch by its steps, where they are known."""

    def call(*args: Any, **kwargs: Any) -> Any:
        flat: list[Tensor] = []
        kind: list[Any] = [function, registry.get_executor(), get_registers(), _dtype()]
        if not _looked_at(args, kind, flat):
            return NotImplemented
        if kwargs:
            kind += kwargs
            if not _looked_at(kwargs.values(), kind, flat):
                return NotImplemented
        key = tuple(kind)
        tape = _tapes.get(key)
        if type(tape) is Tape:
            return tape.run(flat)
        if tape is _SEEN and kind[1] != "torch" and _recording.acquire(blocking=False):
            try:
                tape = _tapes[key] = _taped(function, args, kwargs)
            finally:
                _recording.release()
            return NotImplemented if tape is None else tape.run(flat)
        if key not in _tapes:
            if len(_tapes) >= _MOST:
                _tapes.clear()
            _tapes[key] = _SEEN
        return NotImplemented

    return call


def _looked_at(values: Iterable[Any], kind: list[Any], flat: list[Tensor]) -> bool:
    """Whether arguments are such that steps are kept; adds their kind and their tensors."""
    for x in values:
        of = type(x)
        if of is MCFTensor:
            own = x.__dict__
            first, terms = own["_c0"], own["_terms"]
            if type(first) is not Tensor or not _small(first):
                return False
            flat += COMPONENTS[terms](own)
            kind += (terms, first.dtype, first.shape)
        elif of is Tensor:
            if not _small(x) or not addressed(x):
                return False
            flat.append(x)
            kind += (0, x.dtype, x.shape)
        elif of in _VALUES:
            kind += (of, x)
        elif of is float:
            if x != x:
                return False
            kind += (of, x, x or math.copysign(1.0, x))
        elif of in _LISTS:
            kind.append(len(x))
            if not _looked_at(x, kind, flat):
                return False
        else:
            return False
    return True


def _small(x: Tensor) -> bool:
    return 0 < x.numel() <= _FEW and x.is_contiguous() and x.device == _cpu


class Tape:
    """The steps of a function for operands of a kind, and the memory that they use.

    Launches that follow each other are one call, as are copies of operands and of results. One call
    at a time has the memory; another one meanwhile goes torch's way.
    """

    def __init__(self, recorder: Recorder, operands: list[Tensor], result: Any) -> None:
        """What was recorded on operands of these components."""
        results, self._build = _taken_apart(result)
        if any(memory_of(t) in recorder.operands for t in results):
            raise RefusedError("a result shares memory with an operand")
        if not all(t.is_contiguous() for t in results):
            raise RefusedError("a result is not contiguous")
        steps = recorder.steps
        if _SLOW * sum(map(is_slow, steps)) >= len(steps):
            raise RefusedError("there is little to be left out")
        self._alive = recorder
        self._likes = [torch.empty_like(t) for t in results]
        first = [_copied(t, t) for t in operands]
        last = [_copied(t, t) for t in results]
        self._into = [x.keep[0] for x in first]
        self._from = [x.keep[0] for x in last]
        self._calls = _joined([*first, *(p for step in steps for p in _pieces(step)), *last])
        self._free = [True]

    def run(self, operands: Sequence[Tensor]) -> Any:
        """The result for operands of these components, or NotImplemented."""
        try:
            self._free.pop()
        except IndexError:
            return NotImplemented
        try:
            for table, t in zip(self._into, operands, strict=True):
                table[SOURCE] = _address(t)
            new = [*map(_empty_like, self._likes)]
            for table, t in zip(self._from, new, strict=True):
                table[TARGET] = _address(t)
            for call in self._calls:
                if call() is False:
                    return NotImplemented
            return self._build(new)
        except (ChangedError, RuntimeError, IndexError, ValueError, TypeError):
            # Whatever is wrong with these numbers is said on torch's way.
            return NotImplemented
        finally:
            self._free.append(True)


def _copied(x: Tensor, out: Tensor) -> Bound:
    found = simple("copy_", [x], out)
    if found is None:
        raise RefusedError(f"{x.dtype} is not copied")
    return found


def _pieces(step: Launched | Called) -> Iterator[Bound | Callable[[], Any]]:
    """A step as calls in one, where they are such, and others."""
    if isinstance(step, Launched):
        yield _piece(step.launch, ([*map(_address, step.tensors), *step.behind],))
    elif step.parts:
        for launch, arguments in step.parts:
            yield _piece(launch, arguments)
    else:
        found = None if step.native is None else step.native()
        yield from (step.call,) if found is None else found


def _piece(launch: Any, arguments: tuple[Any, ...]) -> Bound | Callable[[], Any]:
    found = bound(launch, *arguments)
    return (lambda: checked(launch(*arguments))) if found is None else found


def _joined(pieces: Sequence[Bound | Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Calls with those that follow each other made one."""
    calls: list[Callable[[], Any]] = []
    for of, found in itertools.groupby(pieces, lambda x: isinstance(x, Bound)):
        group: list[Any] = [*found]
        calls += [Together(group)] if of else group
    return calls


def _taken_apart(result: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """The plain tensors of a result, and what makes it of others."""
    if type(result) is MCFTensor:
        own = result.__dict__
        parts = [*COMPONENTS[own["_terms"]](own)]
        size, dtype, device = parts[0].shape, parts[0].dtype, parts[0].device
        return parts, lambda found: fresh(found, size, dtype, device)
    if type(result) is Tensor:
        return [result], itemgetter(0)
    if isinstance(result, tuple):
        each = [_taken_apart(x) for x in result]
        ends: list[int] = []
        for parts, _ in each:
            ends.append((ends[-1] if ends else 0) + len(parts))
        pieces = [(end - len(parts), end, build)
                  for end, (parts, build) in zip(ends, each, strict=True)]  # fmt: skip
        of: Any = type(result)

        def built(found: list[Tensor]) -> Any:
            made = [build(found[start:end]) for start, end, build in pieces]
            return tuple(made) if of is tuple else of(made)

        return [t for parts, _ in each for t in parts], built
    raise RefusedError(f"a result is a {type(result).__name__}")


def _copies(x: Any, flat: list[Tensor]) -> Any:
    """An argument of copies, which are added to a list."""
    if type(x) is MCFTensor:
        own = x.__dict__
        parts = [c.clone() for c in COMPONENTS[own["_terms"]](own)]
        flat += parts
        return wrap(parts)
    if type(x) is Tensor:
        flat.append(x.clone())
        return flat[-1]
    if type(x) in _LISTS:
        return type(x)([_copies(y, flat) for y in x])
    return x


_asked: Any = torch._C._EnableTorchFunction


def _taped(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tape | None:
    """The steps of a call; None where they would not always be the same."""
    flat: list[Tensor] = []
    with torch.inference_mode(False), torch.no_grad(), warned():
        given = [_copies(x, flat) for x in args]
        named = {name: _copies(x, flat) for name, x in kwargs.items()}
        recorder = Recorder(flat)
        try:
            with _asked(), unread(), recorder:
                result = function(*given, **named)
            return Tape(recorder, flat, result)
        except Exception:
            # Errors and warnings are torch's way's.
            return None

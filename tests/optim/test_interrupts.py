"""An error or an interrupt at any line of a step: nothing has changed, or the step is done.

Each case runs a step under a trace that raises at its k-th line of the optimizers' own code, for
many k: errors before the first kernel runs, signals at any line. Afterwards all is as before or as
after the step, and a second try of one that was not made ends with the bits of a step that nobody
disturbed.
"""

from __future__ import annotations

import copy
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, Muon, NAdam
from mcf.optim.step import interrupts
from mcf.optim.step.prepared import DirectBucket
from tests.optim.arithmetics import BF16, FP32
from tests.optim.helpers import assert_same, random, stored

OURS = str(Path(mcf.optim.__file__).parent)


class Injected(MemoryError):
    pass


class Raiser:
    """Raises at the k-th line of this package's code, or of it before anything is written."""

    def __init__(self, k: int, action: Callable[[], None], everywhere: bool) -> None:
        self.left, self.action, self.everywhere = k, action, everywhere
        self.fired = False

    def __call__(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            return None
        return self.line

    def line(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "line" and not self.fired:
            if not self.everywhere and inside_commit(frame):
                return self.line
            self.left -= 1
            if self.left < 0:
                self.fired = True
                self.action()
        return self.line


def inside_commit(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "_commit" and frame.f_code.co_filename.startswith(OURS):
            return True
        frame = frame.f_back
    return False


def out_of_memory() -> None:
    raise Injected


def control_c() -> None:
    signal.raise_signal(signal.SIGINT)


KINDS: dict[str, Callable[[list[Any]], Any]] = {
    "plus": lambda p: AdamW(p, track_metrics=True, max_grad_norm=0.5),
    "master": lambda p: NAdam(p, precision="master", nonfinite="skip"),
    "low words at random": lambda p: AdamW(p, low="stochastic", capturable=True),
    "codes": lambda p: AdamW(p, precision="8bit"),
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, max_grad_value=0.1),
    "muon": lambda p: Muon(p[-1:], lr=0.1),
}


def make(kind: str, before: int) -> Any:
    params = [Parameter(random((5, 4), BF16, k)) for k in range(2)]
    params += [Parameter(random((5, 4), FP32, 7)), Parameter(random((4, 5), BF16, 9).T)]
    optimizer = KINDS[kind](params)
    for t in range(before):
        give(optimizer, t)
        optimizer.step()
    give(optimizer, before)
    return optimizer


def give(optimizer: Any, t: int) -> None:
    for k, p in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        p.grad = random(p.shape, p.dtype, 10 * t + k, 0.1)


def everything(optimizer: Any) -> dict[str, Any]:
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    states = {k: t for k, t in stored(optimizer).items() if not k.endswith(".grad")}
    return {**states, "groups": copy.deepcopy(groups), "random": torch.random.get_rng_state()}


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    if a.keys() != b.keys() or a["groups"] != b["groups"]:
        return False
    names = [k for k in a if k != "groups"]
    return all(a[k].dtype == b[k].dtype and torch.equal(bits(a[k]), bits(b[k])) for k in names)


def bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().reshape(-1).view(torch.uint8)


def disturbed(optimizer: Any, do: Callable[[], Any], raiser: Raiser) -> bool:
    """Whether what was raised came out of `do`."""
    before = sys.gettrace()
    sys.settrace(raiser)
    try:
        do()
    except (Injected, KeyboardInterrupt):
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.fixture(autouse=True)
def handler() -> Any:
    # As in a script, whatever runs the tests.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with mcf.executor("numba"):
        yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sampled(every=24)
@pytest.mark.parametrize("error", [out_of_memory, control_c], ids=["memory", "signal"])
@pytest.mark.parametrize("before", [0, 2], ids=["first", "repeated"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_of_a_step(kind: str, before: int, error: Callable[[], None]) -> None:
    reference = make(kind, before)
    old = everything(reference)
    reference.step()
    new = everything(reference)
    assert not same(old, new)
    outcomes = set()
    # Every line would take minutes; those of a step are some hundreds.
    k = 0
    while True:
        optimizer = make(kind, before)
        raiser = Raiser(k, error, error is control_c)
        raised = disturbed(optimizer, optimizer.step, raiser)
        if not raiser.fired:
            break
        now = everything(optimizer)
        done = same(now, new)
        assert done or same(now, old), (kind, k)
        outcomes.add((raised, done))
        if raised and not done:
            optimizer.step()
        assert same(everything(optimizer), new), (kind, k, "a second try")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        k += 1 if kind == "plus" and k < 20 else 97
    assert k > 20
    # Errors before anything was written; interrupts also later, when the step was done.
    assert (True, False) in outcomes
    if error is control_c:
        assert (True, True) in outcomes


@pytest.mark.slow
@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("error", [out_of_memory, control_c], ids=["memory", "signal"])
def test_every_line_of_loading(error: Callable[[], None]) -> None:
    source = make("master", 3)
    saved = source.state_dict()
    new = {k: v for k, v in everything(source).items() if not k.endswith("param")}
    outcomes, k = set(), 0
    while True:
        optimizer = make("master", 1)
        old = {k: v for k, v in everything(optimizer).items() if not k.endswith("param")}
        raiser = Raiser(k, error, True)
        disturbed(optimizer, lambda o=optimizer: o.load_state_dict(saved), raiser)
        if not raiser.fired:
            break
        now = {k: v for k, v in everything(optimizer).items() if not k.endswith("param")}
        assert same(now, old) or same(now, new), k
        outcomes.add(same(now, new))
        k += 7
    # The old state at most lines; whether one comes after all is in place, the stride decides.
    assert False in outcomes


def test_a_kernel_that_fails_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two dtypes are two kernels. The second has no memory for its work, say.
    reference = make("plus", 2)
    old = everything(reference)
    reference.step()
    new = everything(reference)
    optimizer = make("plus", 2)
    optimizer._steps.forget()
    commit, calls = DirectBucket.commit, []

    def fail_once(self: Any, *given: Any) -> None:
        calls.append(self)
        if len(calls) == 2:
            raise Injected
        commit(self, *given)

    monkeypatch.setattr(DirectBucket, "commit", fail_once)
    with pytest.raises(Injected) as raised:
        optimizer.step()
    now = everything(optimizer)
    assert not same(now, old)
    assert not same(now, new)
    if sys.version_info >= (3, 11):
        assert "have made this step" in raised.value.__notes__[0]
    counts = [int(optimizer.state[p]["step"]) for p in optimizer.state]
    assert sorted(set(counts)) == [2, 3]
    again = copy.deepcopy(now)
    # The same gradients: the others alone. New ones: all of them.
    optimizer.step()
    assert same(everything(optimizer), new)
    assert not same(everything(optimizer), again)
    give(optimizer, 3)
    give(reference, 3)
    optimizer.step()
    reference.step()
    assert_same(stored(optimizer), stored(reference))


def test_a_signal_while_the_step_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # It is handled when the step is done, and a second try finds nothing left to do.
    reference, optimizer = make("plus", 2), make("plus", 2)
    reference.step()
    commit = DirectBucket.commit

    def interrupted(self: Any, *given: Any) -> None:
        control_c()
        commit(self, *given)

    monkeypatch.setattr(DirectBucket, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert_same(stored(optimizer), stored(reference))
    optimizer.step()
    assert_same(stored(optimizer), stored(reference))
    monkeypatch.undo()
    give(optimizer, 3)
    give(reference, 3)
    optimizer.step()
    reference.step()
    assert_same(stored(optimizer), stored(reference))


def test_in_another_thread() -> None:
    reference, optimizer = make("plus", 1), make("plus", 1)
    reference.step()
    thread = threading.Thread(target=optimizer.step)
    thread.start()
    thread.join()
    assert_same(stored(optimizer), stored(reference))


def test_two_signals_at_once() -> None:
    # The handler of the first raises; the second is handled all the same, as Python does it.
    seen: list[int] = []

    def both() -> None:
        with interrupts.Deferred():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            seen.append(0)

    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with pytest.raises(KeyboardInterrupt):
            both()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == [0, signal.SIGTERM]

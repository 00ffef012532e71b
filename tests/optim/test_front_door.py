"""Traps around an optimizer: names in checkpoints, replaced parameters, threads, meta tensors.

Mutants that fail: states by place although names say otherwise, groups of other names that are
taken, a step without a lock, a warning for parameters that somebody holds, one in each step.
"""

from __future__ import annotations

import copy
import gc
import threading
import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import mcf
from mcf.optim import SGD, AdamW, collage, load_converted
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16

pytestmark = pytest.mark.usefixtures("on_torch")


def model(names: tuple[str, ...]) -> nn.ModuleDict:
    return nn.ModuleDict({n: nn.Linear(4, 4, bias=False) for n in names}).bfloat16()


def stepped(net: nn.Module, **options: Any) -> AdamW:
    optimizer = AdamW(net.named_parameters(), **options)
    for name, p in net.named_parameters():
        p.grad = torch.full_like(p, 1.0 + int(name[1]))
    optimizer.step()
    return optimizer


# -- names in checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
def test_states_go_to_parameters_of_their_names(wrapped: bool) -> None:
    saved = stepped(model(("p1", "p2", "p3")), precision="bf16_sr")
    net = model(("p3", "p1", "p2"))
    other = AdamW(net.named_parameters(), precision="bf16_sr")
    state = saved.state_dict()
    if wrapped:
        group = state["param_groups"][0]
        group["param_names"] = [f"module.{n}" for n in group["param_names"]]
    before = copy.deepcopy(state)
    other.load_state_dict(state)
    assert str(state) == str(before), "what was given is not changed"
    theirs = dict(zip(before["param_groups"][0]["param_names"], range(3), strict=True))
    for name, p in net.named_parameters():
        key = theirs[f"module.{name}" if wrapped else name]
        for kind, t in before["state"][key].items():
            assert_same_bits(other.state[p][kind], t, kind)
    # A second round trip gives the same.
    again = AdamW(net.named_parameters(), precision="bf16_sr")
    again.load_state_dict(other.state_dict())
    for p in net.parameters():
        assert_same_bits(again.state[p]["exp_avg"], other.state[p]["exp_avg"])


def of_torch(net: nn.Module) -> Any:
    return torch.optim.AdamW(net.named_parameters())


def wrapped_adamw(net: nn.Module) -> Any:
    return collage(torch.optim.AdamW, net.named_parameters(), precision="light")


@pytest.mark.parametrize(
    ("source", "make", "load"),
    [
        (wrapped_adamw, wrapped_adamw, lambda o, state: o.load_state_dict(state)),
        (stepped, lambda net: AdamW(net.named_parameters(), precision="master"), load_converted),
        (of_torch, lambda net: AdamW(net.named_parameters()), load_converted),
        (stepped, of_torch, load_converted),
    ],
)
def test_every_way_to_load_states_goes_by_names(source: Any, make: Any, load: Any) -> None:
    net, other = model(("p1", "p2", "p3")), model(("p3", "p1", "p2"))
    given = source(net)
    for name, p in net.named_parameters():
        p.grad = torch.full_like(p, 2.0 ** int(name[1]))
    given.step()
    target = make(other)
    state = given.state_dict()
    load(target, state)
    weights = dict(net.named_parameters())
    for name, p in other.named_parameters():
        # First moments of powers of two are exact in each dtype here.
        found, wanted = (o.state[q]["exp_avg"] for o, q in ((target, p), (given, weights[name])))
        assert torch.equal(found.double(), wanted.double()), name
    # Other names are refused before anything changes; without names places count.
    state["param_groups"][0]["param_names"][0] = "p7.weight"
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(ValueError, match=r"lacks states for \['p1.weight'\] .* \['p7.weight'\]"):
        load(target, state)
    assert str(target.state_dict()) == str(before)
    del state["param_groups"][0]["param_names"]
    load(target, state)
    first = next(other.parameters())
    moment = given.state[weights["p1.weight"]]["exp_avg"]
    assert torch.equal(target.state[first]["exp_avg"].double(), moment.double())


def test_conversion_with_parameters_of_the_source_goes_by_names() -> None:
    net, other = model(("p1", "p2")), model(("p2", "p1"))
    wide = [p.detach().float() + k for k, p in enumerate(net.parameters(), 1)]
    given = stepped(net, precision="plain")
    target = AdamW(other.named_parameters(), precision="master")
    load_converted(target, given.state_dict(), wide)
    for k, name in enumerate(("p1", "p2")):
        (p,) = other[name].parameters()
        assert_same_bits(target.master_weight(p), wide[k])


# -- parameters that the model has no longer ----------------------------------------------------


def messages(optimizer: Any, count: int = 3) -> list[str]:
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(count):
            optimizer.step()
    return [str(w.message) for w in found]


def test_a_step_on_meta_parameters_says_once_that_the_model_has_others() -> None:
    with torch.device("meta"):
        net = nn.Linear(4, 4).bfloat16()
    optimizer = AdamW(net.parameters())
    net.to_empty(device="cpu")
    (message,) = messages(optimizer)
    assert "are on the meta device" in message
    assert "make the optimizer after them" in message


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("make", [AdamW, lambda params: collage(torch.optim.AdamW, params)])
def test_a_step_after_assign_says_once_that_the_model_has_others(loaded: bool, make: Any) -> None:
    net = model(("p1",))
    optimizer = make(net.parameters())
    if loaded and make is AdamW:
        optimizer.load_state_dict(stepped(model(("p1",))).state_dict())
    weights = {name: t.clone() for name, t in net.state_dict().items()}
    net.load_state_dict(weights, assign=True)
    next(net.parameters()).grad = torch.ones(4, 4).bfloat16()
    (message,) = messages(optimizer)
    assert "are referred to by nothing else" in message


def test_a_step_after_assign_in_the_middle_of_training_says_so() -> None:
    net = model(("p1",))
    optimizer = AdamW(net.parameters())
    # This executor prepares steps that repeat, which refer to the old parameters, too.
    with mcf.executor("numba"):
        for _ in range(3):
            next(net.parameters()).grad = torch.ones(4, 4).bfloat16()
            optimizer.step()
        optimizer.zero_grad()
        net.load_state_dict({name: t.clone() for name, t in net.state_dict().items()}, assign=True)
        next(net.parameters()).grad = torch.ones(4, 4).bfloat16()
        (message,) = messages(optimizer, 1)
        assert "are referred to by nothing else" in message
        assert messages(optimizer) == []


def test_a_step_without_gradients_does_not_warn_where_somebody_holds_a_parameter() -> None:
    net = model(("p1", "p2"))
    held = list(model(("p1",)).parameters())
    for optimizer in (AdamW(net.parameters()), SGD(held), stepped(net)):
        optimizer.zero_grad()
        assert messages(optimizer) == []
    frozen = AdamW([nn.Parameter(torch.ones(2).bfloat16(), requires_grad=False)])
    assert messages(frozen) == []


# -- threads ------------------------------------------------------------------------------------


def in_threads(step: Any, count: int = 4) -> None:
    threads = [threading.Thread(target=step) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_steps_of_several_threads_are_all_counted(executor: str) -> None:
    p = nn.Parameter(torch.ones(64, dtype=BF16))
    p.grad = torch.ones_like(p)
    failed = []
    with mcf.executor(executor):
        optimizer = AdamW([p], precision="plus", check_numerics=False)
        optimizer.step()

        def run() -> None:
            try:
                for _ in range(50):
                    optimizer.step()
            except Exception as error:
                failed.append(error)

        in_threads(run)
    assert not failed
    assert optimizer.state[p]["step"] == 201


def test_steps_of_a_wrapped_class_wait_for_each_other() -> None:
    active, most = [], []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            active.append(1)
            most.append(len(active))
            time.sleep(0.001)
            active.pop()
            return super().step(closure)

    p = nn.Parameter(torch.ones(4, dtype=BF16))
    p.grad = torch.ones_like(p)
    optimizer = collage(Watched, [p], lr=2.0**-3)
    in_threads(optimizer.step)
    assert max(most) == 1
    assert_same_bits(p.detach(), torch.full((4,), 0.5, dtype=BF16))


def test_a_step_within_a_step_does_not_wait_for_itself() -> None:
    p = nn.Parameter(torch.ones(4, dtype=BF16))
    p.grad = torch.ones_like(p)
    optimizer = AdamW([p])

    def closure() -> float:
        optimizer.step()
        return 1.0

    assert optimizer.step(closure) == 1.0
    assert optimizer.state[p]["step"] == 2


def test_copies_have_locks_of_their_own() -> None:
    optimizer = stepped(model(("p1",)))
    other = copy.deepcopy(optimizer)
    (p,) = other.param_groups[0]["params"]
    p.grad = torch.ones_like(p)
    with optimizer._lock:
        thread = threading.Thread(target=other.step)
        thread.start()
        thread.join(timeout=30)
    assert not thread.is_alive()


# -- meta tensors in a state --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step", "exp_avg"])
@pytest.mark.parametrize(
    ("make", "load"),
    [
        (stepped, lambda o, state: o.load_state_dict(state)),
        (stepped, load_converted),
        (wrapped_adamw, lambda o, state: o.load_state_dict(state)),
    ],
)
def test_every_way_to_load_a_meta_tensor_names_it(make: Any, load: Any, name: str) -> None:
    net = model(("p1", "p2"))
    optimizer = make(net)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    saved = optimizer.state_dict()
    key = saved["param_groups"][0]["params"][1]
    saved["state"][key] = {**saved["state"][key], name: saved["state"][key][name].to("meta")}
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(TypeError, match=rf"state '{name}' of params\[1\].* is on the meta device"):
        load(optimizer, saved)
    assert str(optimizer.state_dict()) == str(before)

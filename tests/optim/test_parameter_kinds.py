"""Kinds of parameters: frozen ones of any dtype, lazy ones, subclasses, what is sharded."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.testing._internal.two_tensor import TwoTensor

import mcf
from mcf.optim import (
    SGD,
    AdamW,
    GradientAccumulator,
    GradientRelease,
    collage,
    convert,
    float32_checkpoint,
    load_converted,
)
from tests.helpers import assert_same_bits
from tests.optim.arithmetics import BF16, FP16, FP32
from tests.optim.helpers import parameter, refuses, steps

pytestmark = pytest.mark.usefixtures("on_torch")


def plugin(params: Any, lr: float = 1e-3, **options: Any) -> Any:
    return collage(torch.optim.AdamW, params, lr=lr, **options)


MAKERS = [AdamW, SGD, plugin]

FROZEN = {
    "int8": lambda: torch.arange(3, dtype=torch.int8),
    "uint8": lambda: torch.arange(3, dtype=torch.uint8),
    "int64": lambda: torch.tensor([2**53 + 1, -1, 0]),
    "bool": lambda: torch.tensor([True, False]),
    "float8": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "complex": lambda: torch.ones(3, dtype=torch.complex64),
    "sparse": lambda: torch.ones(3, dtype=BF16).to_sparse(),
    "expanded": lambda: torch.ones(1, dtype=BF16).expand(3),
    "wrapper": lambda: TwoTensor(torch.ones(3), torch.ones(3)),
    "expansion": lambda: mcf.tensor([1.0, 2.0], terms=4, dtype=torch.float64),
}


def frozen(what: str) -> Parameter:
    return Parameter(FROZEN[what](), requires_grad=False)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("what", FROZEN)
@pytest.mark.parametrize("make", MAKERS)
def test_frozen_parameters_are_skipped(make: Any, what: str) -> None:
    results = []
    for other in (frozen(what), parameter(2, BF16)):
        p, before = parameter(4, BF16), repr(other.detach())

        def made(*params: Any, last: Any = None) -> Any:
            optimizer = make(params, lr=1e-2)
            optimizer.add_param_group({"params": [frozen(what) if last is None else last]})
            return optimizer

        optimizer = made(p, other)
        for _ in range(3):
            p.grad = torch.ones_like(p)
            optimizer.step()
        assert list(optimizer.state) == [p]
        assert repr(other.detach()) == before
        again = made(parameter(4, BF16), other)
        again.param_groups[0]["params"][0].data.copy_(p)
        again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for each in (optimizer, again):
            q = each.param_groups[0]["params"][0]
            q.grad = torch.ones_like(q)
            each.step()
            results.append(q.detach())
    for result in results[1:]:
        assert_same_bits(result, results[0])


@pytest.mark.parametrize("what", ["int8", "int64", "bool", "complex", "float8"])
def test_frozen_parameters_take_part_in_nothing(what: str) -> None:
    p, q = parameter(4, BF16), frozen(what)
    optimizer = AdamW([p, q], max_grad_norm=1.0, track_metrics=True, nonfinite="skip")
    p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert_same_bits(optimizer.master_weight(q), q.detach())
    weights, state = float32_checkpoint(optimizer)
    assert_same_bits(weights[1], q.detach())
    theirs = torch.optim.AdamW([Parameter(weights[0]), Parameter(weights[1], False)])
    theirs.load_state_dict(state)
    target = [parameter(4, FP32), Parameter(torch.zeros_like(q), False)]
    made, report = convert(optimizer, "plain", params=target)
    assert report.exact
    assert_same_bits(made.param_groups[0]["params"][1].detach(), q.detach())
    load_converted(AdamW([parameter(4, FP32), q], precision="plain"), state, weights)
    wrong = [parameter(4, BF16), Parameter(torch.zeros(q.shape), False)]
    with pytest.raises(TypeError, match=r"params\[1\] of param_groups\[0\] has dtype torch.float"):
        convert(optimizer, params=wrong)
    plain = AdamW([p, q])
    GradientAccumulator(plain).close()
    GradientRelease(plain).remove()


def test_frozen_with_a_precision_of_other_dtypes() -> None:
    # split16 is for bf16; what is not stepped is not stored.
    AdamW([parameter(3, BF16), Parameter(torch.zeros(3, dtype=FP16), False)], precision="split16")


def refuses_all(optimizer: Any, error: Any, words: str, params: list[Tensor]) -> None:
    """As `refuses`, where some parameters cannot be stored."""
    view: Any = SimpleNamespace(param_groups=[{"params": params}], state=optimizer.state)
    view.step = optimizer.step
    refuses(view, error, words)


@pytest.mark.parametrize("make", MAKERS)
def test_parameter_unfrozen_later_is_stepped_or_refused(make: Any) -> None:
    good, complex_, late = parameter(3, BF16), frozen("complex"), parameter(3, BF16)
    late.requires_grad_(False)
    optimizer = make([good, complex_, late], lr=1e-2)
    good.grad = torch.ones_like(good)
    optimizer.step()
    late.requires_grad_()
    late.grad = torch.ones_like(late)
    before = late.detach().clone()
    optimizer.step()
    assert (late != before).all()
    complex_.requires_grad_()
    complex_.grad = torch.ones_like(complex_)
    words = r"params\[1\] of param_groups\[0\].*complex64; allowed are"
    refuses_all(optimizer, TypeError, words, [good, late])


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
@pytest.mark.parametrize("make", MAKERS)
def test_lazy_parameters(make: Any) -> None:
    # Made before their shapes are known, as torch takes them.
    layer = nn.LazyLinear(3)
    optimizer = make(layer.parameters(), lr=1e-2)
    layer(torch.ones(2, 4)).sum().backward()
    before = layer.weight.detach().clone()
    optimizer.step()
    assert (layer.weight != before).all()


class Named(Tensor):
    """A subclass with a memory like any tensor's, as fastai and torchvision have."""


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_subclasses_that_store_what_tensors_store(executor: str) -> None:
    results = []
    for kind in (Tensor, Named):
        p = Parameter(parameter(5, BF16).detach().as_subclass(kind))
        assert isinstance(p, kind)
        optimizer = AdamW([p], 1e-2)
        with mcf.executor(executor):
            steps(optimizer, 3)
        results.append(optimizer.master_weight(p).as_subclass(Tensor))
    assert_same_bits(*results)


@pytest.mark.parametrize("make", MAKERS)
def test_subclasses_that_store_something_else_are_refused(make: Any) -> None:
    p = Parameter(TwoTensor(torch.ones(3), torch.ones(3)))
    good = parameter(2, BF16)
    words = r"is a torch.testing._internal.two_tensor.TwoTensor, a tensor whose class decides"
    with pytest.raises(TypeError, match=rf"params\[1\] of param_groups\[0\] {words}"):
        make([good, p])
    optimizer = make([good])
    with pytest.raises(TypeError, match=rf"params\[0\] of param_groups\[1\] {words}"):
        optimizer.add_param_group({"params": [p]})
    steps(optimizer, 1)
    # In place of a plain one.
    optimizer.param_groups[0]["params"].append(p)
    p.grad = torch.ones_like(p)
    refuses_all(optimizer, TypeError, rf"params\[1\] of param_groups\[0\] {words}", [good])


@pytest.fixture
def mesh() -> Iterator[Any]:
    if not dist.is_available():
        pytest.skip("torch without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_sharded_parameters_are_stepped_and_unfit_gradients_refused(make: Any, mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

    ones = torch.ones(4, 3, dtype=BF16)
    good = parameter((4, 3), BF16)
    optimizer = make([good, parameter(2, BF16)])
    steps(optimizer, 2)
    # As accelerate puts them in place.
    p = Parameter(distribute_tensor(ones, mesh, [Shard(0)]))
    optimizer.param_groups[0]["params"][1] = p
    good.grad, p.grad = torch.ones_like(good), torch.ones_like(p)
    optimizer.step()
    tensors = [t for t in optimizer.state[p].values() if t.dim()]
    assert tensors
    assert all(type(t) is type(p) for t in tensors)
    # What a process has of these is no gradient of the parameter.
    p.grad = ones.clone()
    words = r"params\[1\] .*grad is a plain tensor; allowed is its par"
    refuses_all(optimizer, TypeError, words, [good])
    summands = DTensor.from_local(ones, mesh, [Partial()])
    good.grad, p.grad = summands, None
    words = r"grad is a DTensor with .*; allowed is .* a plain tensor"
    before = good.detach().clone()
    with pytest.raises(TypeError, match=words):
        optimizer.step()
    assert_same_bits(good.detach(), before)
    with pytest.raises(TypeError, match=r"params\[1\] \(w\) .* allowed are Shard and Replicate"):
        make([("g", good), ("w", Parameter(summands))])


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_parameters_that_a_module_has_no_longer_are_refused(make: Any, mesh: Any) -> None:
    """Where the module has DTensors in their place; torch leaves them unstepped without a word."""
    from torch.distributed.fsdp import fully_shard

    model, good = nn.Linear(4, 3).to(BF16), parameter((4, 3), BF16)
    optimizer = make([*model.parameters(), good])
    steps(optimizer, 2)
    optimizer.zero_grad()
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 4, dtype=BF16)).sum().backward()
    good.grad = torch.ones_like(good)
    words = r"params\[0\] of param_groups\[0\] was replaced by a DTens.* after fully"
    refuses_all(optimizer, RuntimeError, words, [good])

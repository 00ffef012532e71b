"""Kinds of parameters: frozen ones of any dtype, lazy ones, subclasses, what is sharded."""

from __future__ import annotations

import copy
import io
import itertools
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
import mcf.nn
from mcf.optim import (
    SGD,
    AdamW,
    GradientAccumulator,
    GradientRelease,
    Lion,
    Muon,
    Precision,
    collage,
    convert,
    float32_checkpoint,
    load_converted,
)
from mcf.optim.step.bucket import new_state
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.helpers.executors import EXECUTORS
from tests.optim.arithmetics import BF16, FP16, FP32, FP64
from tests.optim.helpers import parameter, random, refuses, steps

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
    """Apply `refuses` to the parameters that can be stored."""
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
    twin = Parameter(ones.clone())
    plain = make([twin])
    twin.grad = ones.clone()
    plain.step()
    assert_same_bits(p.to_local(), twin)
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
    """The module has DTensors in their place; torch leaves them unstepped without a word."""
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


# -- expansions ------------------------------------------------------------------------------------


SHAPES = [(7, 13), (), (300,), (0,)]


def pair(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> mcf.MCFTensor:
    """Seeded normal numbers to twice the bits of a format."""
    x = random(shape, FP64, seed)
    high = x.to(dtype)
    return mcf.from_components([high, (x - high.double()).to(dtype)])


def expanded(dtype: torch.dtype) -> list[Parameter]:
    return [Parameter(pair(s, dtype, k)) for k, s in enumerate(SHAPES)]  # type: ignore[arg-type]


def seeded_steps(optimizer: Any, count: int, dtype: torch.dtype, start: int = 0) -> None:
    """Steps on gradients of two components, for expansions, or as an accumulator hands them in."""
    for t in range(start, start + count):
        optimizer._grad_low = {}
        for k, p in enumerate(q for g in optimizer.param_groups for q in g["params"]):
            grad = pair(tuple(p.shape), dtype, 1000 + 10 * t + k)
            if isinstance(p, mcf.MCFTensor):
                p.grad = grad
            else:
                p.grad, optimizer._grad_low[p] = (c.clone() for c in grad.components)
        optimizer.step()
        optimizer._grad_low = {}


PRECISIONS: list[Any] = [
    {"precision": "light"},
    {"precision": "plus"},
    {"precision": "kahan"},
    {"precision": "light", "low": "stochastic"},
    {"precision": Precision("pair", "ratio8", "ue6m2")},
    {"precision": "plus", "compute_dtype": BF16},
]


def assert_equal(one: Any, other: Any) -> None:
    """The expansions of one optimizer are the parameters and low words of another."""
    rows = zip(one.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
    for p, q in rows:
        state = dict(other.state[q])
        low = state.pop("param_lo")
        assert_same_bits(p.detach().components[0], q.detach())
        assert_same_bits(p.detach().components[1], low)
        assert one.state[p].keys() == state.keys()
        for name, t in state.items():
            assert_same_bits(one.state[p][name], t, name)


# On torch each of them; elsewhere the one with random bits, and one in bf16's arithmetic.
COMPILED = everyday(
    itertools.product(EXECUTORS, PRECISIONS),
    lambda executor, options: executor == "torch" or options in (PRECISIONS[3], PRECISIONS[5]),
    id=lambda executor, options: f"{executor}-{options}",
)


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(("executor", "options"), COMPILED)
def test_steps_are_those_of_a_parameter_and_its_low_word(
    executor: str, options: dict[str, Any]
) -> None:
    with mcf.executor(executor):
        mine = AdamW(expanded(BF16), 1e-2, **options)
        theirs = AdamW([Parameter(p.detach().components[0].clone()) for p in expanded(BF16)],
                       1e-2, **options)  # fmt: skip
        # Their low words are states; a step of rate 0 on no gradient makes them.
        for p, q in zip(theirs.param_groups[0]["params"], expanded(BF16), strict=True):
            arith = theirs._arithmetic(theirs.param_groups[0], p, "")
            (group,) = theirs.param_groups
            theirs.state[p] = new_state(theirs._rule(group), arith, p, capturable=False)
            theirs.state[p]["param_lo"].copy_(q.detach().components[1])
        for optimizer in (mine, theirs):
            seeded_steps(optimizer, 3, BF16)
        assert_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [BF16, FP16], ids=str)
def test_checkpoints_copies_and_zero_grad(dtype: torch.dtype) -> None:
    with mcf.executor("torch"):
        first = AdamW(expanded(dtype), 1e-2, precision="plus")
        seeded_steps(first, 2, dtype)
        second = copy.deepcopy(first)
        file = io.BytesIO()
        torch.save(
            [first.state_dict(), [p.detach() for p in first.param_groups[0]["params"]]], file
        )
        file.seek(0)
        state, weights = torch.load(file, weights_only=True)
        third = AdamW([Parameter(w) for w in weights], precision="plus")
        third.load_state_dict(state)
        for optimizer in (first, second, third):
            seeded_steps(optimizer, 2, dtype, start=5)
        for other in (second, third):
            for p, q in zip(*(o.param_groups[0]["params"] for o in (first, other)), strict=True):
                for a, b in zip(p.detach().components, q.detach().components, strict=True):
                    assert_same_bits(a, b)
        for to_none in (False, True):
            first.zero_grad(set_to_none=to_none)
            grads = [p.grad for p in first.param_groups[0]["params"]]
            assert all(g is None if to_none else (g == 0).all() for g in grads)


def test_autograd_sees_that_a_parameter_has_changed() -> None:
    (weight,) = [Parameter(pair((3,), BF16, 0))]  # type: ignore[arg-type]
    optimizer = AdamW([weight], precision="light")
    loss = (weight * weight).sum()
    weight.grad = pair((3,), BF16, 1)
    components = [c.data_ptr() for c in weight.components]
    versions = [c._version for c in weight.components]
    optimizer.step()
    assert [c.data_ptr() for c in weight.components] == components, "in place"
    assert all(c._version > v for c, v in zip(weight.components, versions, strict=True))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_the_norm_of_gradients_is_that_of_their_values() -> None:
    found = []
    for scale in (1.0, 1e-3):
        mine = AdamW(expanded(BF16), 1e-2, precision="light", max_grad_norm=scale * 1e3)
        seeded_steps(mine, 1, BF16)
        found.append(mine.grad_norm)
    values = [p.grad.to_plain(FP64) for p in mine.param_groups[0]["params"]]
    expected = torch.cat([v.flatten() for v in values]).norm()
    assert found[0] is not None
    # Up to float64's rounding of torch's sum.
    assert torch.allclose(found[0], expected, rtol=1e-14, atol=0)
    assert found[0] == found[1]
    bad = AdamW(expanded(BF16), precision="light", nonfinite="raise")
    for p in bad.param_groups[0]["params"]:
        p.grad = pair(tuple(p.shape), BF16, 3)
    bad.param_groups[0]["params"][2].grad.components[0][7] = torch.nan
    with pytest.raises(FloatingPointError, match=r"params\[2\]"):
        bad.step()


def test_a_plain_gradient_and_gradient_release() -> None:
    """A float32 gradient is not rounded, since float32 registers hold it."""
    results = []
    for grad in (pair((40,), BF16, 3), pair((40,), BF16, 3).to_plain(FP32)):
        weight = Parameter(pair((40,), BF16, 0))  # type: ignore[arg-type]
        optimizer = AdamW([weight], precision="light")
        if hasattr(weight, "grad_dtype"):
            weight.grad_dtype = grad.dtype
        elif grad.dtype == FP32:
            pytest.skip("before torch 2.10 gradients have the dtype of their tensor")
        weight.grad = grad
        optimizer.step()
        results.append(weight.detach().components)
    released = Parameter(pair((40,), BF16, 0))  # type: ignore[arg-type]
    release = GradientRelease(AdamW([released], precision="light"))
    (released * pair((40,), BF16, 3)).sum().backward()
    release.remove()
    for components in (results[1], released.detach().components):
        for a, b in zip(components, results[0], strict=True):
            assert_same_bits(a, b)


def test_an_overflow_is_an_infinity() -> None:
    def two(*high: float) -> mcf.MCFTensor:
        return mcf.from_components([torch.tensor(high).to(BF16), torch.zeros(2, dtype=BF16)])

    weight = Parameter(two(3e38, 1.0))  # type: ignore[arg-type]
    optimizer = SGD([weight], 1.0, precision="light")
    weight.grad = two(-3e38, 0.0)
    optimizer.step()
    assert weight.detach().components[0].tolist() == [torch.inf, 1.0]
    assert weight.detach().components[1].tolist() == [0.0, 0.0]


REFUSED: list[tuple[Any, str]] = [
    (lambda: AdamW([Parameter(mcf.ones(3, terms=2))]), "2 components of torch.float32; allowed"),
    (lambda: AdamW([Parameter(mcf.ones(3, terms=3, dtype=BF16))]), "3 components of torch.bfl"),
    (lambda: AdamW(expanded(BF16), precision="master"), "precision='master' with params.0. of"),
    (lambda: Muon(expanded(BF16)[:1]), "allowed are plain tensors"),
    (lambda: collage(torch.optim.SGD, expanded(BF16), lr=1.0), "allowed are plain tensors"),
    (lambda: convert(AdamW(expanded(BF16)), "light"), "conversion knows plain tensors only"),
    (lambda: GradientAccumulator(AdamW(expanded(BF16))), "allowed are plain tensors"),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_refused(make: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_gradients_that_do_not_fit() -> None:
    weight = Parameter(pair((3,), BF16, 0))  # type: ignore[arg-type]
    optimizer = Lion([weight], precision="light")
    before = [c.clone() for c in weight.components]
    weight.grad = mcf.ones(3, terms=3, dtype=BF16)
    with pytest.raises(TypeError, match="an expansion of 3 components of"):
        optimizer.step()
    for a, b in zip(weight.components, before, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("precision", ["plus", "stochastic"])
def test_accelerate_shards_after_the_optimizer(mesh: Any, precision: str) -> None:
    """Under FSDP2 its `prepare` puts empty tensors, then the sharded parameters, in the groups.

    accelerate itself does this on GPUs only.
    """
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    def built() -> tuple[nn.Module, AdamW]:
        model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2)).to(BF16)
        with torch.no_grad():
            for k, p in enumerate(model.parameters()):
                p.copy_(random(p.shape, BF16, k))
        return model, AdamW(model.named_parameters(), 1e-2, precision=precision, max_grad_norm=1.0)

    model, optimizer = built()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    (group,) = optimizer.param_groups
    names = {p.data_ptr(): name for name, p in model.named_parameters()}
    held = [p.data_ptr() for p in group["params"]]
    for k in range(len(held)):
        group["params"][k] = torch.empty(1, dtype=BF16)
    for layer in model.children():
        fully_shard(layer, mesh=mesh)
    sharded = dict(model.named_parameters())
    group["params"] = [sharded[names[address]] for address in held]
    plain_model, plain = built()
    for t in range(3):
        for k, (p, q) in enumerate(zip(model.parameters(), plain_model.parameters(), strict=True)):
            q.grad = random(q.shape, BF16, 10 * t + k, 0.1)
            assert isinstance(p, DTensor)
            p.grad = distribute_tensor(q.grad, p.device_mesh, p.placements)
        optimizer.step()
        plain.step()
    for p, q in zip(model.parameters(), plain_model.parameters(), strict=True):
        assert isinstance(p, DTensor)
        assert_same_bits(p.to_local(), q)

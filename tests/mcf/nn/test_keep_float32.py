"""Models in 16 bits whose norm layers and rotary embeddings stay in float32."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mcf
from mcf.nn import NORMS, keep_float32
from mcf.optim import AdamW
from tests.helpers.draws import bell

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Rotary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # No bf16 numbers.
        self.register_buffer("frequencies", 1 + torch.arange(1, 5) * 2.0**-20)

    def forward(self, x: Tensor, *, at: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        turned = x * (at[:, None] * self.frequencies)
        return turned, {"x": x, "at": at}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner.weight
        self.norm = nn.LayerNorm(4)
        self.rotary = Rotary()
        with torch.no_grad():
            for seed, p in enumerate(self.parameters()):
                p.copy_(bell(p.shape, seed, FP32) / 4 + (p.dim() == 1))

    def forward(self, x: Tensor) -> Tensor:
        turned, seen = self.rotary(self.norm(self.inner(x)), at=torch.arange(3))
        # The hooks have made float32 of it; integers stay.
        assert seen["x"].dtype == turned.dtype
        assert seen["at"].dtype == torch.int64
        return self.tied(turned)


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_what_stays_has_its_bits_and_rounds_once(dtype: torch.dtype) -> None:
    model, before = Model(), Model()
    assert keep_float32(model, [*NORMS, "rotary"], dtype) == ["norm", "rotary"]
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        stays = name.startswith(("norm", "rotary"))
        assert t.dtype == (FP32 if stays else dtype)
        old = before.get_parameter(name) if "freq" not in name else before.get_buffer(name)
        assert torch.equal(t, old if stays else old.to(dtype))
    # Tied weights still are.
    assert model.tied.weight is model.inner.weight

    x = bell((3, 4), 9).to(dtype)
    found = model.norm(x)
    assert found.dtype == dtype
    norm = before.norm
    assert torch.equal(found, F.layer_norm(x.float(), (4,), norm.weight, norm.bias).to(dtype))
    turned, _ = model.rotary(x, at=torch.arange(3))
    exact = x.double() * (torch.arange(3)[:, None] * before.rotary.frequencies.double())
    # Two roundings to float32 and one to 16 bits; frequencies in 16 bits would be 1.
    assert torch.equal(turned, exact.float().to(dtype))
    assert model(x).dtype == dtype


def test_it_trains_with_gradients_of_both_kinds() -> None:
    model = Model()
    keep_float32(model, [nn.LayerNorm, "rotary"])
    with mcf.executor("torch"):
        optimizer = AdamW(model.parameters(), lr=1e-3, precision="plus")
        before = model.norm.weight.detach().clone()
        model(bell((3, 4), 9, BF16)).float().square().sum().backward()
        optimizer.step()
    assert model.norm.weight.grad is not None
    assert model.inner.weight.grad is not None
    assert (model.norm.weight.grad.dtype, model.inner.weight.grad.dtype) == (FP32, BF16)
    assert optimizer.state[model.norm.weight]["exp_avg"].dtype == FP32
    assert "param_lo" in optimizer.state[model.inner.weight]
    # An update of 1e-3 of weights near 1, which bf16 alone would round away.
    assert (model.norm.weight != before).all()


def test_copies_and_pickles_stay_so() -> None:
    model = Model()
    keep_float32(model, [*NORMS, "rotary"])
    x = bell((3, 4), 9, BF16)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(x), model(x))
        assert other.norm.weight.dtype == FP32


def test_norms_of_torch() -> None:
    layers = [nn.RMSNorm(4), nn.GroupNorm(2, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4)]
    model = nn.Sequential(*layers, nn.Linear(4, 4))
    assert keep_float32(model) == ["0", "1", "2", "3"]
    assert model[2].running_mean is not None
    assert model[2].running_mean.dtype == FP32
    assert model[4].weight.dtype == BF16


def test_refusals_change_nothing() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got list"):
        keep_float32([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="which: expected module classes or names, got 3"):
        keep_float32(Model(), [3])  # type: ignore[list-item]
    refused: list[tuple[nn.Module, dict[str, object], str]] = [
        (Model(), {"dtype": FP32}, "dtype must be torch.bfloat16 or torch.float16"),
        (Model(), {"which": ["nrom"]}, "which names 'nrom', which is not in"),
        (Model(), {"which": [Model]}, "the model itself: nothing would be converted"),
        (Twice(), {"which": ["second"]}, "in a module that stays and in another one"),
        (Model().double(), {}, "inner.weight must be float32, got torch.float64"),
    ]
    for model, options, words in refused:
        before = [p.dtype for p in model.parameters()]
        with pytest.raises(ValueError, match=words):
            keep_float32(model, **options)  # type: ignore[arg-type]
        assert [p.dtype for p in model.parameters()] == before
    # Rounded already: its frequencies are gone.
    with pytest.raises(ValueError, match=r"must be float32, got torch\.bfloat16: call"):
        keep_float32(Model().bfloat16())

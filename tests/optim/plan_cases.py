"""An optimizer, its gradients, and what users do to both between two steps."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from mcf.optim import AdamW
from tests.helpers.draws import bell
from tests.optim.helpers import BF16, FP32, parameter, random

SHAPES = [(300,), (), (0,), (7, 5), (3, 4, 2)]


class _Seen(TorchDispatchMode):
    """Sees operators alone, so that kernels are not called otherwise."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def in_full(optimizer: Any) -> Any:
    """The same optimizer: each step is checked in full and made by the opaque operator."""
    take = optimizer._take

    def taken(steps: Any, request: Any) -> None:
        steps.forget()
        with _Seen():
            take(steps, request)
        assert steps._repeat is None

    optimizer._take = taken
    return optimizer


def make(kind: Any = AdamW, **options: Any) -> Any:
    params = [parameter(s, BF16, k) for k, s in enumerate(SHAPES)]
    params.append(parameter(11, FP32, 9))
    return kind([{"params": params[:3]}, {"params": params[3:], "lr": 0.01}], **options)


def give_gradients(optimizer: Any, t: int) -> None:
    for k, p in enumerate(p for g in optimizer.param_groups for p in g["params"]):
        p.grad = random(p.shape, p.dtype, 100 * t + k, 0.1)


def first(optimizer: Any) -> Parameter:
    p: Parameter = optimizer.param_groups[0]["params"][0]
    return p


def replace_data(o: Any) -> None:
    first(o).data = first(o).data.clone()


def no_gradient(o: Any) -> None:
    first(o).grad = None


def new_gradient_layout(o: Any) -> None:
    p = o.param_groups[1]["params"][0]
    p.grad = random((5, 7), BF16, 5).T


def negated_gradient(o: Any) -> None:
    g = torch.view_as_complex(bell((300, 2), 1, FP32))
    p = o.param_groups[1]["params"][-1]
    p.grad = g.conj().imag[:11]
    assert p.grad.is_neg()


def wide_gradient(o: Any) -> None:
    p: Any = first(o)
    if hasattr(p, "grad_dtype"):
        p.grad = None
        p.grad_dtype = None
    p.grad = random((300,), FP32, 6)


def replace_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = random((300,), BF16, 8)


def write_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"].fill_(0.5)


def replace_step(o: Any) -> None:
    o.state[first(o)]["step"] = torch.tensor(70)


def write_step(o: Any) -> None:
    o.state[first(o)]["step"].fill_(70)


def forget_state(o: Any) -> None:
    del o.state[first(o)]


def forget_all(o: Any) -> None:
    o.state.clear()


def reload(o: Any) -> None:
    o.load_state_dict(copy.deepcopy(o.state_dict()))


def hyperparameters(o: Any) -> None:
    o.param_groups[0].update(lr=0.5, betas=(0.5, 0.6), eps=0.1, weight_decay=0.3, maximize=True)


def clip(o: Any) -> None:
    o.max_grad_value = 0.01


def clip_norm(o: Any) -> None:
    o.max_grad_norm = 0.01


def other_precision(o: Any) -> None:
    o.param_groups[0]["precision"] = "plain"
    for p in o.param_groups[0]["params"]:
        del o.state[p]["param_lo"], o.state[p]["exp_avg_sq_lo"]


def add_group(o: Any) -> None:
    p = parameter(40, BF16, 77)
    p.grad = random((40,), BF16, 78)
    o.add_param_group({"params": [p]})


def swap_parameter(o: Any) -> None:
    p = parameter(300, BF16, 79)
    p.grad = random((300,), BF16, 80)
    o.param_groups[0]["params"][0] = p


def entry_of_others(o: Any) -> None:
    o.state[first(o)]["slow_buffer"] = torch.zeros(1)


CHANGES = [
    replace_data, no_gradient, new_gradient_layout, negated_gradient, wide_gradient, replace_state,
    write_state, replace_step, write_step, forget_state, forget_all, reload, hyperparameters, clip,
    clip_norm, other_precision, add_group, swap_parameter, entry_of_others,
]  # fmt: skip


def short_state(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = torch.zeros(299, dtype=BF16)


def narrow_in_place(o: Any) -> None:
    # The same object at the same address.
    t = o.state[first(o)]["exp_avg"]
    t.data = t.data[:299]


def strided_in_place(o: Any) -> None:
    p = o.param_groups[1]["params"][0]
    p.data = p.data.as_strided((7, 5), (1, 1))


def state_of_another_dtype(o: Any) -> None:
    t = o.state[first(o)]["exp_avg"]
    t.data = t.data.view(torch.int16)


def missing_state(o: Any) -> None:
    del o.state[first(o)]["exp_avg"]


def state_no_tensor(o: Any) -> None:
    o.state[first(o)]["exp_avg"] = [0.0]


def state_of_another_rule(o: Any) -> None:
    o.state[first(o)]["momentum_buffer"] = torch.zeros(1)


def sparse_gradient(o: Any) -> None:
    first(o).grad = torch.zeros(300, dtype=BF16).to_sparse()


def unknown_precision(o: Any) -> None:
    o.param_groups[1]["precision"] = "best"


def wrong_arithmetic(o: Any) -> None:
    o.param_groups[0]["compute_dtype"] = torch.float16


ERRORS = [
    short_state, narrow_in_place, strided_in_place, state_of_another_dtype, missing_state,
    state_no_tensor, state_of_another_rule, sparse_gradient, unknown_precision, wrong_arithmetic,
]  # fmt: skip

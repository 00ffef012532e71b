"""`Precision`: named strategies are instances of it, others work, and wrong ones say why.

Each composition has the same bits on the executors; where it differs from a named precision in one
tensor's storage only, the first step's other tensors are that precision's, because registers are
float32 until each result is stored.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import mcf
import mcf.optim
from mcf.optim import SGD, AdamW, CollageAdamW, Lion, NAdam, Precision
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.helpers import BF16, FP16, FP32, assert_same, parameter, steps, stored

PARAM = ("single", "kahan", "pair", "split16", "split8", "float32")
MOMENTS = list(itertools.product(("single", "float32"), ("single", "pair", "float32")))
ALL = [Precision(p, m, v) for p in PARAM for m, v in MOMENTS]
ALL += [Precision(p, m, v, "stochastic") for p in (*PARAM[:3], "split8") for m, v in MOMENTS]
ALL += [
    Precision(p, m, v)
    for p in ("pair", "split8")
    for m in ("stochastic", "ratio8")
    for v in ("stochastic", "float32", "ue6m2", "pair")
]
ALL += [Precision("single", m, v, r, True) for m, v in MOMENTS for r in ("nearest", "stochastic")]


def test_named_ones_are_instances() -> None:
    for name in mcf.optim.PRECISIONS:
        precision = Precision.of(name)
        assert str(precision) == name
        assert Precision.of(str(precision)) == precision
    assert str(Precision("pair", exp_avg_sq="pair")) == "plus"
    assert str(Precision("float32", "float32", "float32")) == "master"
    assert str(Precision("kahan", rounding="stochastic")) == "kahan_single_single_stochastic"


def test_a_named_one_given_as_parts_is_that_one() -> None:
    results = []
    for precision in ("plus", Precision(param="pair", exp_avg_sq="pair")):
        optimizer = AdamW([parameter(50, BF16)], precision=precision)
        assert optimizer.param_groups[0]["precision"] == "plus"
        steps(optimizer, 3)
        results.append(stored(optimizer))
    assert_same(*results)


@pytest.mark.sampled(every=9)
@pytest.mark.parametrize("precision", ALL, ids=str)
def test_bytes_names_and_round_trip(precision: Precision) -> None:
    assert Precision.of(str(precision)) == precision
    with mcf.executor("torch"):
        p = parameter((3, 5), BF16)
        optimizer = AdamW([p], precision=precision)
        steps(optimizer, 2)
        held = [p, p.grad, *(t for n, t in optimizer.state[p].items() if n != "step")]
        found = sum(t.numel() * t.element_size() for t in held if t is not None)
        assert found == precision.bytes_per_param * p.numel()
        dtypes = {"float32": FP32, "ratio8": torch.uint8}
        assert optimizer.state[p]["exp_avg"].dtype == dtypes.get(precision.exp_avg, BF16)
        other = AdamW([torch.nn.Parameter(p.detach().clone())], precision=str(precision))
        other.load_state_dict(optimizer.state_dict())
        for o in (optimizer, other):
            steps(o, 2, seed=9)
        assert_same(stored(other), stored(optimizer))


# One of each way to store each tensor.
FEW = [
    Precision("pair", "float32", "pair"),
    Precision("split16", "single", "float32"),
    Precision("float32", "single", "pair"),
    Precision("single", "float32", "pair", "stochastic", True),
    Precision("kahan", "float32", "single", "stochastic"),
    Precision("split8", "stochastic", "stochastic", "stochastic"),
    Precision("pair", "ratio8", "pair"),
    Precision("single", "stochastic", "ue6m2", "stochastic", True),
]


# Those whose parts are stored as in others of these, or in a named precision.
_SLOW = [FEW[k] for k in (1, 2, 4)]


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize(
    "precision",
    everyday(FEW, lambda p: p not in _SLOW),
    ids=str,
)
def test_executors_agree(precision: Precision) -> None:
    results = []
    for name in ("torch", "numba", "triton"):
        with mcf.executor(name):
            optimizer = AdamW(
                [parameter((7, 13), BF16), parameter(1100, BF16)], precision=precision
            )
            steps(optimizer, 3)
            results.append(stored(optimizer))
    assert_same(results[1], results[0], "numba")
    assert_same(results[2], results[0], "triton")


@pytest.mark.parametrize("executor", ["torch", "numba"])
def test_one_tensor_does_not_change_the_others(executor: str) -> None:
    def first_step(precision: Any) -> dict[str, torch.Tensor]:
        optimizer = AdamW([parameter(200, BF16)], 1e-2, precision=precision)
        steps(optimizer, 1)
        return stored(optimizer)

    with mcf.executor(executor):
        plus, mixed = first_step("plus"), first_step(Precision("pair", "float32", "pair"))
        assert_same_bits(mixed["0.exp_avg"].to(BF16), plus["0.exp_avg"])
        for name in plus.keys() - {"0.exp_avg"}:
            assert_same_bits(mixed[name], plus[name], name)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"param": "bf16"}, "param of Precision must be one of 'single', 'kahan'.*, got 'bf16'"),
    (
        {"exp_avg": "pair"},
        "exp_avg='pair': it forgets in .* allowed are 'single', 'float32', 'stochastic'",
    ),
    ({"exp_avg_sq": "kahan"}, "exp_avg_sq='kahan': .* allowed are 'single', 'pair', 'float32'"),
    ({"param": "plus"}, r"param='plus' is the name .* precision='plus', or Precision.of\('plus'\)"),
    ({"exp_avg_sq": "half"}, "exp_avg_sq must be one of .*, got 'half'"),
    ({"rounding": "up"}, "rounding must be one of .*, got 'up'"),
    ({"param": "float32", "rounding": "stochastic"}, "'float32', which keeps float32 exactly"),
    ({"param": "split16", "rounding": "stochastic"}, "'split16', which keeps float32 exactly"),
    ({"param": "pair", "feedback": True}, "feedback=True with param='pair', which stores what"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_combinations(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Precision(**given)


def test_what_an_optimizer_refuses() -> None:
    p = parameter(3, BF16)
    with pytest.raises(ValueError, match=r"mode must be one of .*, got 'pair_float32_pair'"):
        CollageAdamW([p], mode=str(FEW[0]))
    with pytest.raises(ValueError, match="precision='plus' stores a second moment"):
        SGD([p], precision=Precision("pair", exp_avg_sq="pair"))
    with pytest.raises(ValueError, match=r"precision must be one of 'plain'.*, got 'pair_single'"):
        AdamW([p], precision="pair_single")
    for given, meant in (("split16sr", "split16_sr"), ("Plus", "plus"), ("bf16", "bf16_sr")):
        with pytest.raises(ValueError, match=rf"got '{given}' \(did you mean '{meant}'\?\)$"):
            AdamW([p], precision=given)
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        AdamW([p], precision="xyz")
    for make in (NAdam, Lion):
        with pytest.raises(ValueError, match=f"the update of {make.__name__} is a multiple of"):
            make([p], precision=Precision(exp_avg="float32", feedback=True))
    with pytest.raises(ValueError, match=r"compute_dtype=torch.bfloat16 with precision='pair_fl"):
        AdamW([p], precision=FEW[0], compute_dtype=BF16)
    with pytest.raises(ValueError, match=r"'split16_single_float32' with .*float16"):
        AdamW([parameter(3, FP16)], precision=FEW[1])
    # In bf16 arithmetic a composition of components works.
    optimizer = AdamW([p], precision=Precision("single", "single", "pair"), compute_dtype=BF16)
    steps(optimizer, 2)
    assert set(optimizer.state[p]) == {"step", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"}

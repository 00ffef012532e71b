"""`Precision`: named strategies are instances of it, others work, and wrong ones say why.

Each composition has the same bits on the executors; where it differs from a named precision in one
tensor's storage only, the first step's other tensors are that precision's, because registers are
float32 until each result is stored.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Parameter

import mcf
import mcf.optim
from mcf.optim import (
    SGD,
    Adamax,
    AdamW,
    Adan,
    AdEMAMix,
    CollageAdamW,
    Lion,
    Muon,
    NAdam,
    Precision,
    ScheduleFreeAdamW,
    StableAdamW,
    convert,
    param_groups,
)
from mcf.optim.optimizer import LowPrecisionOptimizer
from mcf.optim.precision import strategy_of
from mcf.optim.storage.strategies import PLAIN
from tests.helpers import assert_same_bits
from tests.helpers.everyday import everyday
from tests.optim.helpers import (
    BF16,
    FP16,
    FP32,
    FP64,
    STRICT,
    Case,
    assert_same,
    cases,
    parameter,
    random,
    steps,
    stored,
)
from tests.optim.variants import RECENT, VARIANTS, Variant

pytestmark = pytest.mark.usefixtures("on_torch")


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
    ({"param": "bf16"}, "Unknown param: 'bf16'; known are 'single', 'kahan', 'pair'"),
    (
        {"exp_avg": "pair"},
        "exp_avg='pair': it forgets in .* allowed are 'single', 'float32', 'stochastic'",
    ),
    ({"exp_avg_sq": "kahan"}, "exp_avg_sq='kahan': .* allowed are 'single', 'pair', 'float32'"),
    ({"exp_avg_sq": "half"}, "Unknown exp_avg_sq: 'half'"),
    ({"rounding": "up"}, "Unknown rounding: 'up'"),
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
    with pytest.raises(ValueError, match="Unknown mode: 'pair_float32_pair'"):
        CollageAdamW([p], mode=str(FEW[0]))
    with pytest.raises(ValueError, match="precision='plus' stores a second moment"):
        SGD([p], precision=Precision("pair", exp_avg_sq="pair"))
    with pytest.raises(ValueError, match="Unknown precision: 'pair_single'; known are 'plain'"):
        AdamW([p], precision="pair_single")
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


# -- strategies ------------------------------------------------------------------------------------


# name: (states in the parameter's dtype, states in float32, bytes with a 16-bit gradient)
TABLE = {
    "plain": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "kahan": ({"param_lo", "exp_avg", "exp_avg_sq"}, set(), 10),
    "light": ({"param_lo", "exp_avg", "exp_avg_sq"}, set(), 10),
    "plus": ({"param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"}, set(), 12),
    "split16": ({"exp_avg", "exp_avg_sq"}, set(), 10),
    "split16_sr": ({"exp_avg", "exp_avg_sq"}, set(), 10),
    "split16_8bit": (set(), set(), 8),
    "split8": ({"exp_avg", "exp_avg_sq"}, set(), 9),
    "split8_sr": ({"exp_avg", "exp_avg_sq"}, set(), 9),
    "stochastic": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "bf16_sr": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "8bit": (set(), set(), 6),
    "4bit": (set(), set(), 5.5),
    "split8_8bit": (set(), set(), 7),
    "eco": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "eco_stochastic": ({"exp_avg", "exp_avg_sq"}, set(), 8),
    "fp32_states": (set(), {"exp_avg", "exp_avg_sq"}, 12),
    "master": (set(), {"master_param", "exp_avg", "exp_avg_sq"}, 16),
}


# The integers that extend a bf16 parameter, and the codes of moments.
CODES = {"exp_avg": torch.uint8, "exp_avg_sq": torch.uint8}
BITS = {
    "split16": {"param_bits": torch.int16},
    "split16_sr": {"param_bits": torch.int16},
    "split16_8bit": {"param_bits": torch.int16, **CODES},
    "split8": {"param_bits": torch.int8},
    "split8_sr": {"param_bits": torch.int8},
    "8bit": CODES,
    "4bit": CODES,
    "split8_8bit": {"param_bits": torch.int8, **CODES},
}


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(mcf.optim.PRECISIONS) == set(AdamW.precisions)


@pytest.mark.parametrize("case", cases(), ids=str)
def test_states(case: Case) -> None:
    low, wide, size = TABLE[case.precision]
    p = parameter((3, 6), case.dtype)
    optimizer = AdamW([p], eps=1e-4, **case.options())
    assert not optimizer.state, "made before the first step"
    steps(optimizer, 1)
    state = optimizer.state[p]
    bits = BITS.get(case.precision, {})
    assert set(state) == {"step", *bits} | low | wide
    for name, dtype in bits.items():
        assert state[name].dtype == dtype, name
    # The one exception: squares of gradients leave the range of fp16.
    second = BF16 if case.dtype == FP16 and not case.strict else case.dtype
    for name in low:
        expected = second if name.startswith("exp_avg_sq") else case.dtype
        assert state[name].dtype == expected, name
    for name in wide:
        assert state[name].dtype == FP32, name
    for name in low | wide | set(bits):
        packed = case.precision == "4bit" and name == "exp_avg"
        assert state[name].shape == ((3, 3) if packed else (3, 6)), name
        assert state[name].device == p.device, name
        assert not state[name].requires_grad, name
    assert state["step"].dtype == torch.int64
    assert state["step"].shape == ()
    tensors = [p, p.grad, *(state[name] for name in low | wide | set(bits))]
    assert sum(t.numel() * t.element_size() for t in tensors) == size * p.numel()


def test_the_docstring_has_the_bytes() -> None:
    assert AdamW.__doc__ is not None
    said = dict(re.findall(r'- `"(\w+)"` \(([\d.]+)\)', AdamW.__doc__))
    assert said == {name: str(size) for name, (_, _, size) in TABLE.items()}


@pytest.mark.parametrize(
    ("precision", "momentum", "names", "size"),
    [
        ("plain", 0.0, set(), 4),
        ("plain", 0.9, {"momentum_buffer"}, 6),
        ("kahan", 0.9, {"param_lo", "momentum_buffer"}, 8),
        ("light", 0.0, {"param_lo"}, 6),
        ("light", 0.9, {"param_lo", "momentum_buffer"}, 8),
        ("master", 0.0, {"master_param"}, 8),
        ("master", 0.9, {"master_param", "momentum_buffer"}, 12),
    ],
)
def test_sgd_states(precision: str, momentum: float, names: set[str], size: int) -> None:
    p = parameter((3, 5), BF16)
    optimizer = SGD([p], momentum=momentum, precision=precision)
    steps(optimizer, 1)
    state = optimizer.state[p]
    assert set(state) == {"step"} | names
    tensors = [p, p.grad, *(state[name] for name in names)]
    assert sum(t.numel() * t.element_size() for t in tensors) == size * p.numel()


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("precision", sorted(set(TABLE) - set(STRICT)))
def test_strict_arithmetic_needs_16_bit_states(precision: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=f"compute_dtype={dtype}.*'{precision}'.*one of 'plain'"):
        AdamW([parameter(3, dtype)], eps=1e-4, precision=precision, compute_dtype=dtype)


@pytest.mark.parametrize(("dtype", "other"), [(BF16, FP16), (FP16, BF16)])
def test_arithmetic_of_another_dtype(dtype: torch.dtype, other: torch.dtype) -> None:
    message = rf"compute_dtype is {other}, but params\[0\] of param_groups\[0\] has dtype {dtype}"
    with pytest.raises(ValueError, match=message):
        AdamW([parameter(3, dtype)], eps=1e-4, compute_dtype=other)


def test_collage_has_its_modes() -> None:
    p = parameter(3, BF16)
    for mode in ("light", "plus", "kahan"):
        assert CollageAdamW([p], mode=mode).param_groups[0]["precision"] == mode
    assert CollageAdamW([p]).param_groups[0]["precision"] == "plus"
    with pytest.raises(ValueError, match="Unknown mode: 'master'; known are 'light', 'plus'"):
        CollageAdamW([p], mode="master")
    with pytest.raises(ValueError, match="'light', 'plus', 'kahan'"):
        CollageAdamW([{"params": [p], "precision": "plain"}])


def test_states_keep_the_memory_layout() -> None:
    # Dense in any order: a kernel then reads all in one stride.
    p = torch.nn.Parameter(parameter((6, 8), BF16).detach().t())
    optimizer = AdamW([p])
    p.grad = torch.zeros_like(p)
    optimizer.step()
    for name in ("param_lo", "exp_avg", "exp_avg_sq", "exp_avg_sq_lo"):
        assert optimizer.state[p][name].stride() == p.stride(), name


# -- page ------------------------------------------------------------------------------------------


PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text()

ROWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW, Adam": (AdamW, {}),
    "with `amsgrad`": (AdamW, {"amsgrad": True}),
    "NAdam, RAdam": (NAdam, {}),
    "Adamax": (Adamax, {}),
    "StableAdamW": (StableAdamW, {}),
    "AdEMAMix": (AdEMAMix, {}),
    "Adan": (Adan, {}),
    "ScheduleFreeAdamW": (ScheduleFreeAdamW, {}),
    "Lion": (Lion, {}),
    "Muon": (Muon, {}),
    "SGD": (SGD, {}),
    "SGD with momentum": (SGD, {"momentum": 0.9}),
}


def size(make: Any, precision: str, options: dict[str, Any]) -> str:
    """Bytes per parameter after a step, gradient included, or a dash."""
    try:
        optimizer = make([parameter((2, 4), BF16)], precision=precision, **options)
    except ValueError:
        return "-"
    with mcf.executor("torch"):
        steps(optimizer, 1)
    (p,) = optimizer.param_groups[0]["params"]
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.dim())]
    return f"{sum(t.nbytes for t in tensors) / p.numel():g}"


def test_bytes() -> None:
    lines = PAGE.split("<!-- bytes: begin -->\n")[1].split("<!-- bytes: end -->")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    precisions = [cell.strip("`") for cell in header[1:]]
    assert set(precisions) == set(mcf.optim.PRECISIONS)
    assert [row[0] for row in rows] == list(ROWS)
    for name, *cells in rows:
        make, options = ROWS[name]
        assert cells == [size(make, precision, options) for precision in precisions], name


def test_every_optimizer_has_its_row() -> None:
    found = {
        name
        for name, value in vars(mcf.optim).items()
        if isinstance(value, type) and issubclass(value, LowPrecisionOptimizer)
    }
    section = PAGE.split("\n## Rules\n")[1].split("<!-- bytes: begin -->")[0]
    listed = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert listed == found - {"CollageAdamW"}
    for name in listed - {"Lion", "AdEMAMix", "Adan", "ScheduleFreeAdamW", "StableAdamW"}:
        assert issubclass(getattr(torch.optim, name), torch.optim.Optimizer)


# -- full ------------------------------------------------------------------------------------------


FULL = [FP32, FP64]


def plain_cases(precisions: Sequence[str]) -> list[tuple[torch.dtype, str]]:
    """Return the dtypes and precisions under which parameters are stored as under "plain"."""
    fewer = {p for p in precisions if strategy_of(p).of_float32() != PLAIN}
    assert {"bf16_sr", "8bit"} <= fewer
    return [(d, p) for d in FULL for p in precisions if d == FP64 or p not in fewer]


FULL_ADAMW = [
    (mcf.optim.AdamW, *case, compute_dtype)
    for case in plain_cases(list(mcf.optim.PRECISIONS))
    for compute_dtype in (FP32, torch.bfloat16, torch.float16)
]
FULL_SGD = [(mcf.optim.SGD, *case, FP32) for case in plain_cases(mcf.optim.SGD.precisions)]


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.sampled(every=9)
@pytest.mark.parametrize(("make", "dtype", "precision", "compute_dtype"), [*FULL_ADAMW, *FULL_SGD])
def test_every_precision_is_plain(
    make: Any, dtype: torch.dtype, precision: str, compute_dtype: torch.dtype
) -> None:
    rule = {"momentum": 0.9} if make is mcf.optim.SGD else {}
    results = []
    for options in (
        {"precision": "plain"},
        {"precision": precision, "compute_dtype": compute_dtype},
    ):
        optimizer = make([parameter((5, 7), dtype)], 1e-2, **rule, **options)
        steps(optimizer, 5)
        results.append(stored(optimizer))
    assert_same(results[1], results[0])
    moments = ("momentum_buffer",) if rule else ("exp_avg", "exp_avg_sq")
    assert results[0].keys() == {f"0.{n}" for n in ("param", "grad", "step", *moments)}
    assert {results[0][f"0.{n}"].dtype for n in moments} == {dtype}


# -- fp16 ------------------------------------------------------------------------------------------


FP16_STRICT = [c for c in cases(dtypes=(FP16,)) if c.strict]
DEFAULT = [c for c in cases(dtypes=(FP16,)) if not c.strict]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("case", DEFAULT, ids=str)
def test_tiny_gradients_take_ordinary_steps(case: Case) -> None:
    # g^2 = 1e-10 is 0 in fp16 (smallest 6e-8), and lr m / (sqrt(0) + 1e-8) would be 1000 lr.
    lr, count = 1e-3, 20
    p = torch.nn.Parameter(torch.ones(100, dtype=FP16))
    # "plain" loses most of such updates, as it should.
    optimizer = AdamW([p], lr, weight_decay=0.0, precision=case.precision, check_numerics=False)
    for t in range(count):
        p.grad = random(100, FP16, t + 1, 1e-5)
        optimizer.step()
    state = optimizer.state[p]
    wide = case.precision in ("fp32_states", "master")
    assert state["exp_avg_sq"].dtype == (FP32 if wide else torch.bfloat16)
    assert (state["exp_avg_sq"] > 0).all()
    # Each step is at most lr in size but for the first few's bias correction.
    assert (p.detach() - 1).abs().max() < 2 * count * lr


@pytest.mark.parametrize("case", FP16_STRICT, ids=str)
@pytest.mark.parametrize("eps", [1e-8, 2.0**-25])
def test_eps_that_rounds_to_zero_is_refused(case: Case, eps: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon .* is 0 in fp16 arithmetic .* allowed is more"):
        AdamW([parameter(3, FP16)], eps=eps, **case.options())


@pytest.mark.parametrize("eps", [0.0, 2.0**-25 * 1.001, 1e-4])
def test_eps_that_fp16_holds_is_accepted(eps: float) -> None:
    # 0 is the user's own wish, as in torch; 2^-25 is a tie that rounds to 0.
    AdamW([parameter(3, FP16)], eps=eps, compute_dtype=FP16)
    AdamW([parameter(3, FP16)], eps=1e-8)


# -- float32 ---------------------------------------------------------------------------------------


SHAPE = (6, 10)
# A precision for float32 parameters, and the one for bf16 parameters with the same moments.
SAME = {
    "bf16_sr": "split16_sr",
    "split16_sr": "split16_sr",
    "split8_sr": "split16_sr",
    "8bit": "split16_8bit",
    "split8_8bit": "split16_8bit",
    "4bit": "split16_ratio4_ue6m2",
}
BYTES = {"bf16_sr": 12, "split16_sr": 12, "8bit": 10, "split8_8bit": 10, "4bit": 9.5, "plus": 16}


def started(make: Any, precision: str, dtype: torch.dtype, **options: Any) -> Any:
    """Return an optimizer whose stored weights are bf16 numbers."""
    params = [Parameter(random(s, BF16, k).to(dtype)) for k, s in enumerate((SHAPE, (7,), ()))]
    return make(params, precision=precision, **options)


def run(optimizer: Any, first: int, count: int) -> None:
    """Make steps with gradients that are bf16 numbers in every dtype."""
    params = optimizer.param_groups[0]["params"]
    for t in range(first, first + count):
        for k, p in enumerate(params):
            p.grad = random(p.shape, BF16, 100 * t + k, 0.1).to(p.dtype)
        optimizer.step()


def assert_same_training(wide: Any, split: Any) -> None:
    """Compare float32 parameters with bf16 parameters and their 16 bits, and all moments."""
    for p, q in zip(*(o.param_groups[0]["params"] for o in (wide, split)), strict=True):
        assert p.dtype == FP32
        assert q.dtype == BF16
        assert_same_bits(split.master_weight(q), p.detach())
        theirs = {n: t for n, t in split.state[q].items() if n != "param_bits"}
        assert wide.state[p].keys() == theirs.keys()
        for name, t in theirs.items():
            assert_same_bits(wide.state[p][name], t, name)


@pytest.mark.parametrize("precision", SAME)
def test_adamw_on_float32_has_the_bits_of_split16(precision: str) -> None:
    with mcf.executor("torch"):
        wide, split = (
            started(AdamW, p, d, lr=1e-2, weight_decay=0.1, seed=5)
            for p, d in ((precision, FP32), (SAME[precision], BF16))
        )
        for optimizer in (wide, split):
            run(optimizer, 0, 4)
        assert_same_training(wide, split)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("executor", ["torch", "numba", "triton"])
@pytest.mark.parametrize("variant", [*VARIANTS, *RECENT], ids=str)
def test_every_rule_on_float32_has_the_bits_of_split16(variant: Variant, executor: str) -> None:
    with mcf.executor(executor):
        wide, split = (
            started(variant.make, "split16_sr", d, **variant.options) for d in (FP32, BF16)
        )
        for optimizer in (wide, split):
            run(optimizer, 0, 3)
        assert_same_training(wide, split)


@pytest.mark.filterwarnings("ignore:precision=.* has no effect")
@pytest.mark.parametrize("precision", BYTES)
def test_float32_parameters_take_the_bytes_of_the_table(precision: str) -> None:
    with mcf.executor("torch"):
        p = Parameter(random(SHAPE, FP32, 1))
        optimizer = AdamW([p], precision=precision)
        steps(optimizer, 1)
    tensors = [p, p.grad, *(t for t in optimizer.state[p].values() if t.dim())]
    assert sum(t.nbytes for t in tensors if t is not None) == BYTES[precision] * p.numel()


@pytest.mark.parametrize("make", [Lion, lambda *a, **o: SGD(*a, momentum=0.9, **o)])
def test_rules_with_one_moment_keep_it_in_8_bits(make: Any) -> None:
    with mcf.executor("torch"):
        optimizer = started(make, "8bit", FP32, lr=1e-2)
        run(optimizer, 0, 2)
    matrix, vector, _ = optimizer.param_groups[0]["params"]
    dtypes = [{t.dtype for t in optimizer.state[p].values() if t.dim()} for p in (matrix, vector)]
    assert dtypes == [{torch.uint8}, {BF16}]


def test_a_group_leaves_its_parameters_as_they_are() -> None:
    net = torch.nn.Sequential(
        torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
    )
    groups = param_groups(net, (torch.nn.LayerNorm, {"precision": "plain"}))
    with mcf.executor("torch"):
        optimizer = AdamW(groups, precision="8bit")
        for p in net.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    dtype = {n: optimizer.state[p]["exp_avg"].dtype for n, p in net.named_parameters()}
    assert dtype["0.weight"] == dtype["1.weight"] == torch.uint8
    assert dtype["1.bias"] == BF16
    assert dtype["2.weight"] == dtype["2.bias"] == FP32


def test_conversion_between_float32_and_split16_is_exact_and_goes_on_with_the_same_bits() -> None:
    with mcf.executor("torch"):
        wide = started(AdamW, "split16_sr", FP32, lr=1e-2)
        run(wide, 0, 3)
        params = wide.param_groups[0]["params"]
        narrow = [Parameter(p.detach().to(BF16)) for p in params]
        split, report = convert(wide, "split16_sr", params=narrow)
        assert report.exact, str(report)
        assert_same_training(wide, split)
        back, report = convert(
            split, "split16_sr", params=[Parameter(torch.zeros_like(p)) for p in params]
        )
        assert report.exact, str(report)
        for optimizer in (wide, split, back):
            run(optimizer, 3, 2)
        assert_same_training(wide, split)
        assert_same(stored(back), stored(wide))

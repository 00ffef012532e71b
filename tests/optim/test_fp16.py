"""fp16 parameters: a range in which squares of gradients vanish.

Contract: with float32 registers the second moment is stored in bf16 and steps are of ordinary size
whatever the gradients' scale; in fp16 arithmetic an eps that rounds to 0 is refused, because a
second moment of 0 then divides by 0; everything else trains with finite numbers.
"""

from __future__ import annotations

import pytest
import torch

from mcf.optim import AdamW
from tests.optim.helpers import FP16, FP32, Case, cases, parameter, random

pytestmark = pytest.mark.usefixtures("on_torch")

STRICT = [c for c in cases(dtypes=(FP16,)) if c.strict]
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


@pytest.mark.parametrize("case", STRICT, ids=str)
@pytest.mark.parametrize("eps", [1e-8, 2.0**-25])
def test_eps_that_rounds_to_zero_is_refused(case: Case, eps: float) -> None:
    with pytest.raises(ValueError, match=r"epsilon .* is 0 in fp16 arithmetic .* allowed is more"):
        AdamW([parameter(3, FP16)], eps=eps, **case.options())


@pytest.mark.parametrize("eps", [0.0, 2.0**-25 * 1.001, 1e-4])
def test_eps_that_fp16_holds_is_accepted(eps: float) -> None:
    # 0 is the user's own wish, as in torch; 2^-25 is a tie that rounds to 0.
    AdamW([parameter(3, FP16)], eps=eps, compute_dtype=FP16)
    AdamW([parameter(3, FP16)], eps=1e-8)

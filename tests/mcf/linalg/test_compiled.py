"""torch.compile traces decompositions, each as one opaque operator, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import operations
from tests.helpers.everyday import everyday

pytestmark = pytest.mark.usefixtures("on_torch")

linalg = mcf.linalg
CALLS: dict[str, Callable[[Any], Any]] = {
    "solve": lambda a: linalg.solve(a, a[:, 0]),
    "cholesky": linalg.cholesky,
    "qr": linalg.qr,
    "eigh": linalg.eigh,
    "svd": lambda a: linalg.svd(a[:2], full_matrices=False),
    "lstsq": lambda a: linalg.lstsq(a, a)[0],
    "matrix_exp": linalg.matrix_exp,
    "lu": linalg.lu,
    "lu_solve": lambda a: linalg.lu_solve(*linalg.lu_factor(a), a),
    "inv": linalg.inv,
    "slogdet": linalg.slogdet,
    "triangular": lambda a: linalg.solve_triangular(a, a[:2], upper=True, left=False),
    "svdvals": linalg.svdvals,
    "pinv": linalg.pinv,
    "cond": linalg.cond,
}
DEFAULT = ("solve",)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> None:
    """torch's own functions are all compiled in one frame, which has a limit."""
    torch._dynamo.reset()


def matrix(n: int = 3) -> mcf.MCFTensor:
    """Symmetric and positive definite, with all components in use."""
    g = torch.Generator().manual_seed(n)
    hi, lo = (torch.randint(-99, 100, (n, n), generator=g).double() for _ in range(2))
    a = operations.renormalize((hi / 128, lo * 2.0**-70))
    whole = operations.add(a, tuple(c.mT for c in a))
    return mcf.from_components(operations.add(whole, torch.eye(n, dtype=torch.float64) * 8))


def parts(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", everyday(CALLS, DEFAULT))
def test_one_graph_with_the_same_bits(name: str) -> None:
    compiled = torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)
    gradients = []
    results = []
    for function in (CALLS[name], compiled):
        a = matrix().requires_grad_()
        found = [x for x in parts(function(a)) if isinstance(x, mcf.MCFTensor)]
        total = sum((x * x).sum() for x in found)
        gradients.append(torch.autograd.grad(total, a)[0])
        results.append(found)
    for x, y in zip(*results, strict=True):
        assert x.shape == y.shape
        assert x.stride() == y.stride()
        assert all(torch.equal(p, q) for p, q in zip(x.components, y.components, strict=True))
    assert all(torch.equal(p, q) for p, q in zip(*(g.components for g in gradients), strict=True))


OPERATORS: dict[str, Callable[[list[torch.Tensor]], tuple[Any, ...]]] = {
    "linalg_lu_factor": lambda a: (a, True),
    "linalg_cholesky": lambda a: (a,),
    "linalg_qr": lambda a: (a, "complete"),
    "linalg_solve_triangular": lambda a: (a, [c[..., :2] for c in a], True, False),
    "linalg_eigh": lambda a: (a, False),
    "linalg_svd": lambda a: (a, True, True),
    "linalg_matrix_exp": lambda a: (a,),
    "linalg_lstsq": lambda a: (a, a, None, None),
    "linalg_permutation": lambda a: (torch.tensor([[2, 2, 3]], dtype=torch.int32), 3),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", OPERATORS)
def test_shapes_layouts_and_aliases_are_as_declared(name: str) -> None:
    """By torch's own check of operators, on a batch that is not contiguous."""
    a = [c.expand(2, 3, 3).mT for c in matrix().components]
    operator = getattr(torch.ops.mcf, name).default
    torch.library.opcheck(
        operator, OPERATORS[name](a), test_utils=("test_schema", "test_faketensor")
    )


def test_a_matrix_that_does_not_converge_is_an_error_of_the_graph() -> None:
    compiled = torch.compile(linalg.eigh, backend="aot_eager", fullgraph=True)
    with pytest.raises(linalg.LinAlgError, match="non-finite"):
        compiled(matrix() * float("nan"))

"""Time operations of expansion tensors beside torch's on float64: of one element, and of many.

    python benchmarks/tensor_operations.py                 # one element, and 1e6
    python benchmarks/tensor_operations.py --sizes 1

With one element nearly all is what an operation costs before and after its loop. Two components of
float64, one thread; the minimum and the median of rounds in which both take turns, and the ratio of
the minima, which other processes disturb least. Results go to benchmarks/results/.

"floor" is what PyTorch itself takes for an operation of a tensor type written in Python, of any
size: a subclass whose product is one new plain tensor with a new tensor of the type around it, and
computes nothing. `x.clone()` is the copy of the bytes.
"""

from __future__ import annotations

import argparse
import copy
import math
import operator
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, machine, save_csv, table

import mcf

COLUMNS = ["elements", "operation", "mcf µs", "median", "torch µs", "torch median", "ratio"]

# Operations of x, y, a tensor to write to and others: a condition, a plain tensor, x sorted, z of
# numbers below 1, that as a square matrix m, classes for its rows, halves and truth values to
# write to; of expansions and plain tensors alike.
OPERATIONS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "x + y": lambda x, y, o, c: x + y,
    "x * y": lambda x, y, o, c: x * y,
    "x / y": lambda x, y, o, c: x / y,
    "x * 0.5": lambda x, y, o, c: x * 0.5,
    "x * plain": lambda x, y, o, c: x * c[1],
    "x.sqrt()": lambda x, y, o, c: x.sqrt(),
    "-x": lambda x, y, o, c: -x,
    "x < y": lambda x, y, o, c: x < y,
    "x == y": lambda x, y, o, c: x == y,
    "torch.maximum": lambda x, y, o, c: torch.maximum(x, y),
    "torch.clamp": lambda x, y, o, c: torch.clamp(x, 2.0**20, 2.0**30),
    "torch.where": lambda x, y, o, c: torch.where(c[0], x, y),
    "torch.mul, out": lambda x, y, o, c: torch.mul(x, y, out=o),
    "o.mul_(0.5)": lambda x, y, o, c: o.mul_(0.5),
    "o.add_(y)": lambda x, y, o, c: o.add_(y),
    "o += y": lambda x, y, o, c: operator.iadd(o, y),
    "o.clamp_": lambda x, y, o, c: o.clamp_(0.5, 2.0),
    "o.lerp_": lambda x, y, o, c: o.lerp_(y, 0.5),
    "o.addcmul_": lambda x, y, o, c: o.addcmul_(x, y),
    "o.copy_(z).exp_()": lambda x, y, o, c: o.copy_(c[3]).exp_(),
    "torch.lt, out": lambda x, y, o, c: torch.lt(x, y, out=c[7]),
    "x.clone()": lambda x, y, o, c: x.clone(),
    "x[:1]": lambda x, y, o, c: x[:1],
    "x[0].item()": lambda x, y, o, c: x[0].item(),
    "x.reshape(-1, 1)": lambda x, y, o, c: x.reshape(-1, 1),
    "x.abs()": lambda x, y, o, c: x.abs(),
    "torch.copysign": lambda x, y, o, c: torch.copysign(x, y),
    "x.sign()": lambda x, y, o, c: x.sign(),
    "x.log()": lambda x, y, o, c: x.log(),
    "x.atan()": lambda x, y, o, c: x.atan(),
    "x.erf()": lambda x, y, o, c: x.erf(),
    "torch.log, out": lambda x, y, o, c: torch.log(x, out=o),
    "x ** 3": lambda x, y, o, c: x**3,
    "o[0] = 1.5": lambda x, y, o, c: o.__setitem__(0, 1.5),
    "torch.cat": lambda x, y, o, c: torch.cat([x, y]),
    "torch.stack": lambda x, y, o, c: torch.stack([x, y]),
    "x * y[:1]": lambda x, y, o, c: x * y[:1],
    "x.sum()": lambda x, y, o, c: x.sum(),
    "x.mean()": lambda x, y, o, c: x.mean(),
    "x.var()": lambda x, y, o, c: x.var(correction=0),
    "x.std()": lambda x, y, o, c: x.std(correction=0),
    "x.norm()": lambda x, y, o, c: torch.linalg.vector_norm(x),
    "torch.dot": lambda x, y, o, c: torch.dot(x, y),
    "x.prod()": lambda x, y, o, c: x.prod(),
    "z.exp()": lambda x, y, o, c: c[3].exp(),
    "z.softmax(0)": lambda x, y, o, c: c[3].softmax(0),
    "z.log_softmax(0)": lambda x, y, o, c: c[3].log_softmax(0),
    "z.logsumexp(0)": lambda x, y, o, c: c[3].logsumexp(0),
    "m.softmax(0)": lambda x, y, o, c: c[4].softmax(0),
    "m.softmax(1)": lambda x, y, o, c: c[4].softmax(1),
    "m.log_softmax(1)": lambda x, y, o, c: c[4].log_softmax(1),
    "m.logsumexp(1)": lambda x, y, o, c: c[4].logsumexp(1),
    "F.cross_entropy(m, t)": lambda x, y, o, c: F.cross_entropy(c[4], c[5]),
    "x.amax()": lambda x, y, o, c: x.amax(),
    "x.argmax()": lambda x, y, o, c: x.argmax(),
    "x.cumsum(0)": lambda x, y, o, c: x.cumsum(0),
    "x.cumprod(0)": lambda x, y, o, c: x.cumprod(0),
    "x.cummax(0)": lambda x, y, o, c: x.cummax(0),
    "x.sort()": lambda x, y, o, c: x.sort(),
    "x.topk(1)": lambda x, y, o, c: x.topk(1),
    "x.kthvalue(1)": lambda x, y, o, c: x.kthvalue(1),
    "x.median()": lambda x, y, o, c: x.median(),
    "2 / x": lambda x, y, o, c: 2 / x,
    "torch.lerp": lambda x, y, o, c: torch.lerp(x, y, 0.3),
    "torch.addcmul": lambda x, y, o, c: torch.addcmul(x, y, y),
    "x.addcdiv_": lambda x, y, o, c: o.addcdiv_(x, y),
    "torch.hypot": lambda x, y, o, c: torch.hypot(x, y),
    "torch.logaddexp": lambda x, y, o, c: torch.logaddexp(x * 2.0**-40, y * 2.0**-40),
    "x.isfinite()": lambda x, y, o, c: x.isfinite(),
    "x.frac()": lambda x, y, o, c: x.frac(),
    "x[mask]": lambda x, y, o, c: x[c[0]],
    "x.flip(0)": lambda x, y, o, c: x.flip(0),
    "x.roll(1)": lambda x, y, o, c: x.roll(1),
    "torch.zeros_like": lambda x, y, o, c: torch.zeros_like(x),
    "torch.full_like": lambda x, y, o, c: torch.full_like(x, 0.1),
    "x.detach()": lambda x, y, o, c: x.detach(),
    "x.to(float32)": lambda x, y, o, c: x.to(torch.float32),
    "x ** 0.5": lambda x, y, o, c: x**0.5,
    "torch.isclose": lambda x, y, o, c: torch.isclose(x, y),
    "o.fill_(0.1)": lambda x, y, o, c: o.fill_(0.1),
    "o.copy_(y)": lambda x, y, o, c: o.copy_(y),
    "torch.searchsorted": lambda x, y, o, c: torch.searchsorted(c[2], y),
    "torch.fmod": lambda x, y, o, c: torch.fmod(x, y),
    "x % y": lambda x, y, o, c: x % y,
    "x // y": lambda x, y, o, c: x // y,
    "torch.round, 2": lambda x, y, o, c: torch.round(x, decimals=2),
    "x <= 0.5": lambda x, y, o, c: x <= 0.5,
    "1 - x": lambda x, y, o, c: 1 - x,
    "x.long()": lambda x, y, o, c: x.long(),
    "x ** -1.5": lambda x, y, o, c: x**-1.5,
    "x ** halves": lambda x, y, o, c: torch.pow(c[3], c[6]),
}

# Operations of two 3 x 3 matrices, two vectors of three numbers, a mask of them and a tensor to
# write to.
OF_MATRICES: dict[str, Callable[[Any, Any, Any, Any, Any, Any], Any]] = {
    "A[0, 1]": lambda a, b, v, w, c, o: a[0, 1],
    "A[1:, :2]": lambda a, b, v, w, c, o: a[1:, :2],
    "A.T": lambda a, b, v, w, c, o: a.T,
    "v.unbind()": lambda a, b, v, w, c, o: v.unbind(),
    "v.split(1)": lambda a, b, v, w, c, o: v.split(1),
    "A + v": lambda a, b, v, w, c, o: a + v,
    "A.sum(0)": lambda a, b, v, w, c, o: a.sum(0),
    "A.mean(-1)": lambda a, b, v, w, c, o: a.mean(-1),
    "A.amax(0)": lambda a, b, v, w, c, o: a.amax(0),
    "A.max(0)": lambda a, b, v, w, c, o: a.max(0),
    "A.prod(0)": lambda a, b, v, w, c, o: a.prod(0),
    "A.argmax(0)": lambda a, b, v, w, c, o: a.argmax(0),
    "A.sort(0)": lambda a, b, v, w, c, o: a.sort(0),
    "A.var(0)": lambda a, b, v, w, c, o: a.var(0),
    "A.std(-1)": lambda a, b, v, w, c, o: a.std(-1),
    "A.norm(dim=1)": lambda a, b, v, w, c, o: a.norm(dim=1),
    "A @ B": lambda a, b, v, w, c, o: a @ b,
    "A @ A.T": lambda a, b, v, w, c, o: a @ a.T,
    "A @ v": lambda a, b, v, w, c, o: a @ v,
    "torch.addmm": lambda a, b, v, w, c, o: torch.addmm(a, a, b),
    "F.linear": lambda a, b, v, w, c, o: F.linear(a, b),
    "F.linear, bias": lambda a, b, v, w, c, o: F.linear(a, b, v),
    "einsum ij,jk->ik": lambda a, b, v, w, c, o: torch.einsum("ij,jk->ik", a, b),
    "torch.outer": lambda a, b, v, w, c, o: torch.outer(v, w),
    "linalg.cross": lambda a, b, v, w, c, o: torch.linalg.cross(v, w),
    "linalg.cross(A, B)": lambda a, b, v, w, c, o: torch.linalg.cross(a, b),
    "v.diff()": lambda a, b, v, w, c, o: v.diff(),
    "A.trace()": lambda a, b, v, w, c, o: a.trace(),
    "torch.matmul, out": lambda a, b, v, w, c, o: torch.matmul(a, b, out=o),
    "torch.where(c, v, 0.0)": lambda a, b, v, w, c, o: torch.where(c, v, 0.0),
    "v.nan_to_num()": lambda a, b, v, w, c, o: v.nan_to_num(),
    "v.tolist()": lambda a, b, v, w, c, o: v.tolist(),
    "2 ** v": lambda a, b, v, w, c, o: 2**v,
    "v.to(float32)": lambda a, b, v, w, c, o: v.to(torch.float32),
    "A.T.contiguous()": lambda a, b, v, w, c, o: a.T.contiguous(),
    "torch.allclose": lambda a, b, v, w, c, o: torch.allclose(v, w),
    "o.add_(v)": lambda a, b, v, w, c, o: o.add_(v),
    "torch.lerp, out": lambda a, b, v, w, c, o: torch.lerp(a, b, 0.5, out=o),
    "torch.addcmul, out": lambda a, b, v, w, c, o: torch.addcmul(a, b, b, out=o),
    "torch.addcdiv, out": lambda a, b, v, w, c, o: torch.addcdiv(a, b, b, out=o),
    "torch.exp, out": lambda a, b, v, w, c, o: torch.exp(a, out=o),
    "torch.tensordot": lambda a, b, v, w, c, o: torch.tensordot(a, b, 1),
    "torch.meshgrid": lambda a, b, v, w, c, o: torch.meshgrid(v, w, indexing="ij"),
    "torch.cdist": lambda a, b, v, w, c, o: torch.cdist(a, b),
    "torch.pdist": lambda a, b, v, w, c, o: F.pdist(a),
    "torch.heaviside": lambda a, b, v, w, c, o: torch.heaviside(v, w),
    "torch.logaddexp(v, w)": lambda a, b, v, w, c, o: torch.logaddexp(v, w),
    "torch.sinc": lambda a, b, v, w, c, o: v.sinc(),
    "torch.logit": lambda a, b, v, w, c, o: v.logit(),
    "torch.xlogy": lambda a, b, v, w, c, o: torch.xlogy(v, w),
    "torch.frexp": lambda a, b, v, w, c, o: torch.frexp(v),
    "F.softplus": lambda a, b, v, w, c, o: F.softplus(v),
    "F.gelu": lambda a, b, v, w, c, o: F.gelu(v),
    "F.silu": lambda a, b, v, w, c, o: F.silu(v),
    "F.elu": lambda a, b, v, w, c, o: F.elu(v),
    "F.mse_loss": lambda a, b, v, w, c, o: F.mse_loss(v, w),
    "F.huber_loss": lambda a, b, v, w, c, o: F.huber_loss(v, w),
    "F.nll_loss": lambda a, b, v, w, c, o: F.nll_loss(a, c.long()),
    "F.kl_div": lambda a, b, v, w, c, o: F.kl_div(v, w, reduction="sum"),
    "F.binary_cross_entropy": lambda a, b, v, w, c, o: F.binary_cross_entropy(v, w),
    "F.normalize": lambda a, b, v, w, c, o: F.normalize(a),
    "F.cosine_similarity": lambda a, b, v, w, c, o: F.cosine_similarity(a, b),
    "F.layer_norm": lambda a, b, v, w, c, o: F.layer_norm(a, (3,), v, w),
    "F.rms_norm": lambda a, b, v, w, c, o: F.rms_norm(a, (3,), v),
    "linalg.det": lambda a, b, v, w, c, o: torch.linalg.det(a),
    "linalg.slogdet": lambda a, b, v, w, c, o: torch.linalg.slogdet(a),
    "linalg.inv": lambda a, b, v, w, c, o: torch.linalg.inv(a),
    "linalg.solve(A, v)": lambda a, b, v, w, c, o: torch.linalg.solve(a, v),
    "linalg.solve(A, B)": lambda a, b, v, w, c, o: torch.linalg.solve(a, b),
    "linalg.solve_triangular": lambda a, b, v, w, c, o: torch.linalg.solve_triangular(
        a, b, upper=True
    ),
    "linalg.cholesky_ex": lambda a, b, v, w, c, o: torch.linalg.cholesky_ex(a),
    "linalg.lu_factor": lambda a, b, v, w, c, o: torch.linalg.lu_factor(a),
    "linalg.lu": lambda a, b, v, w, c, o: torch.linalg.lu(a),
    "linalg.qr": lambda a, b, v, w, c, o: torch.linalg.qr(a),
    "linalg.eigh": lambda a, b, v, w, c, o: torch.linalg.eigh(a + a.T),
    "linalg.svd": lambda a, b, v, w, c, o: torch.linalg.svd(a),
    "copy.deepcopy": lambda a, b, v, w, c, o: copy.deepcopy(v),
    "pickle.dumps": lambda a, b, v, w, c, o: pickle.dumps(v),
    "str(v)": lambda a, b, v, w, c, o: str(v),
}


class Bare(torch.Tensor):
    """A tensor around a plain one, whose operations make another and compute nothing."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Bare:
        """The tensor around `held`."""
        make: Any = torch.Tensor._make_wrapper_subclass
        tensor: Bare = make(cls, held.size(), dtype=held.dtype, device=held.device)
        tensor.held = held  # type: ignore[attr-defined]
        return tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return cls(torch.empty_like(args[0].held))


def operands(size: int) -> list[tuple[Any, Any, Any, Any]]:
    """Two expansion tensors, and their leading components: whole numbers and what is far below.

    After them a tensor to write to and a tuple of the others, see `OPERATIONS`.
    """
    generator = torch.Generator().manual_seed(0)
    whole = [
        torch.randint(1, 2**40, (size,), generator=generator).to(torch.float64) for _ in range(4)
    ]
    x, y = (mcf.MCFTensor([whole[k], whole[k + 1] * 2.0**-100]) for k in (0, 2))
    others = (whole[0] > whole[2], whole[3])
    p, q = whole[0], whole[2]
    rows = math.isqrt(size)
    classes = torch.randint(rows, (rows,), generator=generator)
    halves = torch.randint(-3, 4, (size,), generator=generator).to(torch.float64) / 2
    found = []
    for a, b in ((x, y), (p, q)):
        z = a * 2.0**-40
        m = z[: rows * rows].reshape(rows, rows).clone()
        values = (*others, a.sort().values, z, m, classes, halves, torch.empty_like(others[0]))
        found.append((a, b, torch.empty_like(a), values))
    return found


def matrices() -> list[tuple[Any, ...]]:
    """The operands of `OF_MATRICES`: of expansions and of their leading components."""
    generator = torch.Generator().manual_seed(1)
    whole = [
        torch.randint(1, 2**40, shape, generator=generator).to(torch.float64) * 2.0**-40
        for shape in ((3, 3), (3, 3), (3,), (3,))
    ]
    held = [mcf.MCFTensor([t, t.flip(0) * 2.0**-60]) for t in whole]
    mask = torch.tensor([True, False, True])
    return [(*of, mask, torch.empty_like(of[0])) for of in (held, whole)]


def seconds(calls: list[Callable[[], Any]], rounds: int, each: int) -> list[list[float]]:
    """Seconds of each call in each round; they take turns."""
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, found, strict=True):
            start = time.perf_counter()
            for _ in range(each):
                call()
            times.append((time.perf_counter() - start) / each)
    return found


def rows_of(size: int, most: int) -> list[dict[str, Any]]:
    """A row for each operation on so many elements."""
    few = size < 10_000
    rounds, each = (most, 50) if few else (max(3, most // 8), 1)
    both = operands(size)
    rows = []
    timed = {
        name: [lambda o=o, f=operation: f(*o) for o in both]
        for name, operation in OPERATIONS.items()
    }
    if few:
        both_kinds = matrices()
        for name, function in OF_MATRICES.items():
            timed[name] = [lambda o=o, f=function: f(*o) for o in both_kinds]
        bare, plain = Bare(both[1][0]), both[1][0]
        timed["floor"] = [lambda: bare * bare, lambda: plain * plain]
    for name, calls in timed.items():
        for call in calls:
            for _ in range(3):
                call()
        ours, theirs = ([1e6 * s for s in t] for t in seconds(calls, rounds, each))
        figures = (min(ours), median(ours), min(theirs), median(theirs), min(ours) / min(theirs))
        cells = [f"{x:.1f}" for x in figures]
        rows.append(dict(zip(COLUMNS, (size, name, *cells), strict=True)))
    return rows


def main() -> None:
    """Print a table and save it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 1e6], help="elements")
    parser.add_argument("--rounds", type=int, default=200, help="of one element; else an eighth")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="folder of results"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for size in map(int, options.sizes) for row in rows_of(size, options.rounds)]
    print(table(rows, COLUMNS), flush=True)
    cpu = torch.device("cpu")
    path = options.out / f"tensor_operations-{machine(cpu)}.csv"
    command = "python benchmarks/tensor_operations.py " + " ".join(sys.argv[1:])
    save_csv(path, rows, {"command": command.strip(), **environment(cpu)})
    print(f"saved {path}")


if __name__ == "__main__":
    main()

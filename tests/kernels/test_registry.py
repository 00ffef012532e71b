"""The choice of executor: by device, by the user, and visibly where something is not installed."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import textwrap
import types
import warnings
from typing import Any

import pytest
import torch

import mcf
from mcf.kernels import registry
from mcf.kernels.executor import Executor
from mcf.kernels.torch.reference import EXECUTOR as REFERENCE
from mcf.optim import AdamW
from tests.helpers import assert_all_same_bits

CPU, CUDA, META = (torch.device(d) for d in ("cpu", "cuda", "meta"))


def script(text: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python where some packages cannot be imported."""
    prelude = f"""
    import sys

    class Missing:
        asked = set()

        def find_spec(self, name, path=None, target=None):
            self.asked.add(name.split(".")[0])
            if name.split(".")[0] in {without!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Missing())
    """
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(prelude) + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(autouse=True)
def restore():
    before = mcf.get_executor()
    yield
    mcf.set_executor(before)


def test_default_is_by_device() -> None:
    assert mcf.get_executor() == "auto"
    assert registry.executor_for(CPU) == "numba"
    assert registry.executor_for(META) == "torch"


@pytest.mark.gpu
def test_default_on_a_gpu() -> None:
    assert registry.executor_for(CUDA) == "triton"


def test_chosen_by_the_user() -> None:
    mcf.set_executor("torch")
    assert mcf.get_executor() == "torch"
    assert registry.executor_for(CPU) == "torch"
    mcf.set_executor("auto")
    assert registry.executor_for(CPU) == "numba"


def test_context_manager_restores_also_after_an_error() -> None:
    with mcf.executor("torch"):
        with mcf.executor("numba"):
            assert mcf.get_executor() == "numba"
        assert mcf.get_executor() == "torch"
        with pytest.raises(RuntimeError), mcf.executor("numba"):
            raise RuntimeError
        assert mcf.get_executor() == "torch"
    assert mcf.get_executor() == "auto"


@pytest.mark.parametrize("name", ["cuda", "Numba", "", None])
def test_unknown_name(name) -> None:
    message = r"executor must be one of 'auto', 'torch', 'numba', 'triton', got"
    with pytest.raises(ValueError, match=message):
        mcf.set_executor(name)
    with pytest.raises(ValueError, match=message), mcf.executor(name):
        pass
    assert mcf.get_executor() == "auto"


@pytest.mark.parametrize("device", [CUDA, META])
def test_numba_is_for_cpu_tensors(device: torch.device) -> None:
    mcf.set_executor("numba")
    with pytest.raises(ValueError, match=rf"'numba' runs on CPU tensors, got .* on {device}"):
        registry.executor_for(device)


def test_triton_is_for_gpu_and_cpu_tensors() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    # Without a GPU the public call warns that Triton interprets (tests/test_public.py).
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mcf.ExecutorWarning)
        mcf.set_executor("triton")
    assert registry.executor_for(CPU) == registry.executor_for(CUDA) == "triton"
    with pytest.raises(ValueError, match=r"'triton' runs on GPU and CPU tensors, got one on meta"):
        registry.executor_for(META)


def test_the_chosen_executor_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    for name in ("torch", "numba"):
        executor = registry.named(name)
        original = executor.run

        def spy(*arguments, name=name, original=original):
            ran.append(name)
            return original(*arguments)

        monkeypatch.setattr(executor, "run", spy)
    a = torch.ones(3)
    mcf.two_sum(a, a)
    with mcf.executor("torch"):
        mcf.two_sum(a, a)
    assert ran == ["numba", "torch"]


WORKS = """
import warnings
import torch, mcf
a = torch.tensor([1.0, 3e-3]).bfloat16()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        s, e = mcf.two_sum(a, a.flip(0))
        p, f = mcf.two_prod(a, a)
    from mcf.optim import AdamW
    w = torch.nn.Parameter(a.clone())
    optimizer = AdamW([w], lr=0.1)
    w.grad = torch.ones_like(w)
    optimizer.step()
print([str(w.message) for w in caught if issubclass(w.category, mcf.ExecutorWarning)])
print(s.tolist(), e.tolist(), w.tolist())
"""


LIGHT = """
import torch
Missing.asked.clear()
import mcf, mcf.kernels, mcf.optim
print(sorted(Missing.asked & {"numba", "llvmlite", "triton", "mpmath"}))
"""


@pytest.mark.slow
def test_without_numba() -> None:
    run = script(LIGHT + WORKS, without=("numba", "llvmlite"))
    light, warned, result = run.stdout.splitlines()
    # An import asks for none of those that are needed later, here or not.
    assert light == "[]"
    assert warned.count("numba is not installed") == 1, run.stdout + run.stderr
    assert re.search("No module named '(numba|llvmlite)'", warned)
    assert "kernels on cpu run as plain torch" in warned
    # The same bits as with it, and no warning then.
    installed = io.StringIO()
    with contextlib.redirect_stdout(installed):
        exec(WORKS, {})
    assert installed.getvalue().splitlines() == ["[]", result]


@pytest.mark.slow
def test_without_triton() -> None:
    run = script(
        WORKS
        + """
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        print(mcf.kernels.registry.executor_for(torch.device("cuda")))
print([str(w.message) for w in caught])
""",
        without=("triton",),
    )
    lines = run.stdout.splitlines()
    assert lines[0] == "[]", run.stdout + run.stderr
    assert lines[2:5] == ["torch"] * 3
    assert lines[5].count("triton is not installed") == 1
    assert "kernels on cuda run as plain torch" in lines[5]


CHOOSES = """
for name in ("numba", "triton"):
    try:
        mcf.set_executor(name)
    except ImportError as error:
        print(error)
    print(mcf.get_executor())
"""


@pytest.mark.slow
def test_without_both() -> None:
    run = script(WORKS + CHOOSES, without=("numba", "llvmlite", "triton"))
    warned, _, *chosen = run.stdout.splitlines()
    assert warned.count("is not installed") == 1, run.stderr
    # Choosing what is not installed.
    for name, message, left in zip(("numba", "triton"), chosen[::2], chosen[1::2], strict=True):
        assert message.startswith(
            f"executor '{name}' needs a package that is not installed: No module"
        )
        assert left == "auto"


class Fifth(Executor):
    """What an executor has to write, and no more: here by the reference."""

    name = "fifth"

    def __init__(self) -> None:
        self.ran: list[str] = []

    def run(self, spec: Any, rows: Any, scalars: Any, live: Any = None) -> Any:
        self.ran.append("run")
        return REFERENCE.run(spec, rows, scalars, live)

    def fold(self, spec: Any, operands: Any) -> torch.Tensor:
        self.ran.append("fold")
        return REFERENCE.fold(spec, operands)

    def product(self, spec: Any, left: Any, right: Any) -> torch.Tensor:
        self.ran.append("product")
        return REFERENCE.product(spec, left, right)


@pytest.mark.slow
def test_a_fifth_executor_is_three_methods_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    fifth, module = Fifth(), types.ModuleType("fifth_executor")
    module.EXECUTOR = fifth  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fifth_executor", module)
    monkeypatch.setitem(registry.EXECUTORS, "fifth", "fifth_executor")
    monkeypatch.setattr(registry, "NAMES", (*registry.NAMES, "fifth"))
    x = torch.arange(-7, 8, dtype=torch.float32).reshape(3, 5) * 2.0**-9
    matrix = mcf.from_components((x, x * 2.0**-30))
    weight = torch.nn.Parameter(x.bfloat16())

    def everything() -> list[torch.Tensor]:
        step = AdamW([weight.detach().clone().requires_grad_()], lr=0.5, max_grad_norm=1e-3)
        [parameter] = step.param_groups[0]["params"]
        for k in range(3):
            parameter.grad = weight.detach() * (k + 1)
            step.step()
        total = mcf.sum(x, reproducible=True)
        return [*(matrix * matrix @ matrix.mT).components, total, mcf.sum(x), parameter.detach()]

    expected = everything()
    with mcf.executor("fifth"):
        assert_all_same_bits(everything(), expected)
    assert set(fifth.ran) == {"run", "fold", "product"}
    registry.named.cache_clear()

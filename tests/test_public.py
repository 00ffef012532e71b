"""The public names: how they print, and what editors and type checkers see of them."""

from __future__ import annotations

import copy
import importlib
import inspect
import io
import pickle
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest
import torch

import mcf
import mcf.linalg
import mcf.nn
import mcf.optim
from mcf.kernels import register_choice, registry
from mcf.optim.storage.strategies import PrecisionName

PACKAGES = ("mcf", "mcf.linalg", "mcf.nn", "mcf.optim")
ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"mcf.optim": "optim"}


def imported_names(package: str) -> set[str]:
    """Return the names that a package's file re-exports, and its constants."""
    folder = ROOT / FOLDERS.get(package, package.replace(".", "/"))
    found = set()
    for line in (folder / "__init__.py").read_text().splitlines():
        words = line.split("#")[0].split()
        if "import" in words and "as" in words and words[-1] == words[-3]:
            found.add(words[-1])
        elif words[-1:] == ["*"]:
            found |= {*importlib.import_module(words[1]).__all__}
        elif len(words) > 1 and words[1] == "=" and not words[0].startswith("_"):
            found.add(words[0])
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_all_lists_the_names_that_a_package_exports(package: str) -> None:
    module = importlib.import_module(package)
    wanted = imported_names(package)
    missing = {"polar", "matrix_sqrth"} if not hasattr(torch.linalg, "polar") else set()
    assert set(module.__all__) - {"optim"} == wanted - {"checkout"} - missing
    assert module.__all__ == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    private = {n for n in dir(module) if isinstance(getattr(module, n), ModuleType)}
    assert private <= {"fourier", "kernels", "linalg", "nn", "optim", "functional", "heads"}


def test_all_of_packages_for_special_uses_is_what_they_export() -> None:
    for name, folder in (("mcf.kernels", "kernels"), ("mcf.fourier", "mcf/fourier")):
        text = (ROOT / folder / "__init__.py").read_text()
        exported = re.findall(r"import (\w+) as \1$", text, re.MULTILINE)
        assert set(importlib.import_module(name).__all__) == {*exported}
    functions = vars(mcf.nn.functional).items()
    own = {n for n, f in functions if getattr(f, "__module__", "") == "mcf.nn.functional"}
    assert set(mcf.nn.functional.__all__) == {n for n in own if not n.startswith("_")}


@pytest.mark.parametrize("package", ["mcf", "mcf.nn", "mcf.optim"])
def test_objects_print_under_their_public_name(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            assert f"{value.__module__}.{value.__qualname__}" == f"{package}.{name}", name
    assert repr(mcf.MCFTensor) == "<class 'mcf.MCFTensor'>"
    assert repr(mcf.optim.AdamW) == "<class 'mcf.optim.AdamW'>"


def test_objects_pickle_under_their_public_name() -> None:
    for value in (mcf.exp, mcf.two_sum, mcf.MCFTensor, mcf.optim.AdamW, mcf.nn.MCFLinear):
        assert pickle.loads(pickle.dumps(value)) is value
        assert copy.deepcopy(value) is value
    x = mcf.tensor(["0.1", "0.2"], 3)
    assert pickle.loads(pickle.dumps(x)).to_fractions() == x.to_fractions()
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["x"].to_fractions() == x.to_fractions()


def test_elementary_functions_show_their_arguments_and_results() -> None:
    for function, count in (
        (mcf.exp, 1), (mcf.atan2, 2), (mcf.lgamma, 1), (mcf.add, 2), (mcf.fma, 3), (mcf.sqrt, 1),
    ):  # fmt: skip
        shown = inspect.signature(function)
        kinds = [p.annotation for p in shown.parameters.values()][:count]
        assert {*kinds, shown.return_annotation} == {"MCFTensor | Tensor | tuple[Tensor, ...]"}


def test_literals_are_the_names_that_are_taken() -> None:
    assert typing.get_args(PrecisionName) == mcf.optim.PRECISIONS
    assert typing.get_args(registry.ExecutorName) == registry.NAMES
    assert typing.get_args(register_choice.RegistersName) == register_choice.NAMES
    mode = inspect.signature(mcf.optim.CollageAdamW).parameters["mode"].annotation
    assert all(repr(name) in mode.replace('"', "'") for name in mcf.optim.CollageAdamW.precisions)


def test_triton_without_a_gpu_says_that_it_interprets() -> None:
    if torch.cuda.is_available():
        pytest.skip("with a GPU Triton's kernels are compiled")
    before = mcf.get_executor()
    try:
        with pytest.warns(mcf.ExecutorWarning, match="runs kernels in Triton's interpreter"):
            mcf.set_executor("triton")
        assert mcf.get_executor() == "triton"
    finally:
        mcf.set_executor(before)
    # A test's own choice says nothing.
    with mcf.executor("triton"):
        pass


USER = """
import torch
import mcf
from mcf.optim import AdamW, CollageAdamW
p = [torch.nn.Parameter(torch.zeros(3))]
x = mcf.exp(mcf.tensor("0.1"))
reveal_type(x)
reveal_type(mcf.add(2, x))
reveal_type(mcf.sqrt(mcf.div(x, 3)))
AdamW(p, precision="split16_sr")
AdamW(p, precision="split16_st")
CollageAdamW(p, mode="plsu")
mcf.set_executor("trition")
"""


@pytest.mark.slow
def test_mypy_catches_misspelt_names(tmp_path: Path) -> None:
    links = tmp_path / "mcf"
    links.mkdir()
    for path in [*(ROOT / "mcf").iterdir(), ROOT / "optim", ROOT / "kernels"]:
        (links / path.name).symlink_to(path)
    file = tmp_path / "user.py"
    file.write_text(USER)
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir",
         str(tmp_path / "cache"), file.name],
        cwd=tmp_path, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    lines = [line.split(":")[1] for line in run.stdout.splitlines() if ": error" in line]
    assert lines == ["11", "12", "13"], run.stdout + run.stderr
    assert run.stdout.count('Revealed type is "mcf.expansions.tensor.MCFTensor"') == 3, run.stdout

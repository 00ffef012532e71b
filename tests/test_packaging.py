"""What is shipped: every package of the three folders, typed, under the one name `mcf`.

Fails when a package is missing from `tool.setuptools.packages`, when `mcf.__version__` and
pyproject.toml disagree, when a py.typed is missing, or when the wheel holds anything beside `mcf`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import mcf

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"mcf": "mcf", "kernels": "mcf.kernels", "optim": "mcf.optim"}


def _pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def _listed_packages() -> set[str]:
    # tomllib is only in Python 3.11 and later; the list is plain enough to read without it.
    (block,) = re.findall(r"^packages = \[(.*?)\]", _pyproject(), re.MULTILINE | re.DOTALL)
    return set(re.findall(r'"([\w.]+)"', block))


def _present_packages() -> dict[str, Path]:
    """Import name -> folder, for every folder with an __init__.py."""
    present = {}
    for folder, name in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            present[".".join((name, *inside))] = init.parent
    return present


def test_every_package_is_listed() -> None:
    assert set(_present_packages()) == _listed_packages()


def test_every_package_imports_from_this_checkout() -> None:
    for name, folder in _present_packages().items():
        if name == "mcf.kernels.triton":
            pytest.importorskip("triton", reason="the GPU executor: triton is for Linux only")
        module = importlib.import_module(name)
        assert module.__file__ is not None
        assert Path(module.__file__).resolve().parent == folder, name


def test_modules_stand_in_packages() -> None:
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), f"{path.parent} lacks an __init__.py"


def test_version_has_one_value() -> None:
    (declared,) = re.findall(r'^version = "(.*)"', _pyproject(), re.MULTILINE)
    assert mcf.__version__ == declared == importlib.metadata.version("mcf")


@pytest.mark.parametrize("folder", FOLDERS)
def test_typed(folder: str) -> None:
    assert (ROOT / folder / "py.typed").exists()


def test_every_constraint_is_exact() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            assert re.fullmatch(r"[a-z0-9-]+==[\w.]+(; [a-z_]+ (>=|<|==) '[\w.]+')?", line), line


def test_wheel_holds_only_mcf(tmp_path: Path) -> None:
    # Built from a copy: setuptools leaves its build folders in the source tree.
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in (*FOLDERS, "tests"):
        shutil.copytree(
            ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    run = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr

    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {"mcf/py.typed", "mcf/kernels/py.typed", "mcf/optim/py.typed"}
    for folder, name in FOLDERS.items():
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder).as_posix()
            expected.add(f"{name.replace('.', '/')}/{inside}")
    assert held == expected

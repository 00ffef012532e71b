"""mypy and pyright see into an installed `mcf`, plain and editable, from a user's own folder.

Each install is made in a virtual environment of its own, which borrows torch and mypy from this
one; pyright is tried where it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environments import packages_without_mcf

ROOT = Path(__file__).resolve().parents[1]
USER = """
import torch

import mcf
from mcf.optim import CollageAdamW

x = mcf.tensor("0.1", terms=3)
s, e = mcf.two_sum(torch.tensor(1.0), torch.tensor(2.0))
optimizer = CollageAdamW([torch.nn.Parameter(torch.zeros(3))], lr=1e-3, mode="plus")
reveal_type(x)
reveal_type(s)
reveal_type(optimizer)
CollageAdamW(lr=1e-3)
CollageAdamW([torch.nn.Parameter(torch.zeros(3))], precision="plus")
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["plain", "editable"])
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment in which this checkout is installed."""
    folder = tmp_path_factory.mktemp(request.param)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        python = folder / "venv" / "Scripts" / "python.exe"
    (site,) = (folder / "venv").rglob("site-packages")
    borrowed = packages_without_mcf(folder / "borrowed")
    (site / "borrowed.pth").write_text(f"{borrowed}\n")

    # An editable install makes its links in the source: not in that of other installs.
    source = folder / "source"
    source.mkdir()
    for name in ("mcf", "kernels", "optim"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    editable = ["-e"] if request.param == "editable" else []
    run = subprocess.run(
        [*install, *editable, source], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    (folder / "user.py").write_text(USER)
    return python


def test_mypy(environment: Path) -> None:
    run = subprocess.run(
        [environment, "-m", "mypy", "--strict", "user.py"],
        cwd=environment.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = run.stdout.splitlines()
    revealed = [line.split('"')[1] for line in lines if "Revealed type" in line]
    assert revealed == [
        "mcf.expansions.tensor.MCFTensor",
        "torch._tensor.Tensor",
        "mcf.optim.rules.adamw.CollageAdamW",
    ], run.stdout
    # The two errors are the user's own.
    errors = [line for line in lines if "error:" in line]
    assert len(errors) == 2, run.stdout
    assert "Missing positional argument" in errors[0]
    assert 'Unexpected keyword argument "precision"' in errors[1]


def test_pyright(environment: Path) -> None:
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    run = subprocess.run(
        [pyright, "--pythonpath", environment, "user.py"],
        cwd=environment.parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    revealed = [line.rsplit('"', 2)[1] for line in run.stdout.splitlines() if "Type of" in line]
    assert revealed == ["MCFTensor", "Tensor", "CollageAdamW"], run.stdout
    errors = [line for line in run.stdout.splitlines() if "error:" in line]
    assert len(errors) == 2, run.stdout
    assert all("reportCallIssue" in error for error in errors), run.stdout


def test_new_file_in_an_editable_checkout_is_found(environment: Path) -> None:
    folder = environment.parents[2]
    if folder.name.startswith("plain"):
        pytest.skip("a plain install is a copy")
    (folder / "source" / "kernels" / "added_later.py").write_text("FOUND = 1\n")
    code = "from mcf.kernels.added_later import FOUND; import mcf.optim; print(mcf.optim.__file__)"
    run = subprocess.run(
        [environment, "-c", code], cwd=folder, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.strip()).resolve() == folder / "source" / "optim" / "__init__.py"

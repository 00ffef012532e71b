"""Which file of `mcf.optim` may know which: a step knows no optimizer."""

from __future__ import annotations

import ast
import collections
from pathlib import Path

import mcf.optim

ROOT = Path(mcf.optim.__file__).resolve().parent
FILES = {
    ".".join(("mcf.optim", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in sorted(ROOT.rglob("*.py"))
    if path.name != "__init__.py"
}


def imported(path: Path) -> set[str]:
    """The files of `mcf.optim` that one imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found & FILES.keys()


def test_no_two_files_of_one_name() -> None:
    names = collections.Counter(path.name for path in FILES.values())
    assert max(names.values()) == 1, names.most_common(3)


def test_a_step_knows_no_optimizer() -> None:
    above = {"mcf.optim.optimizer", "mcf.optim.hyperparameters"}
    # What looks finds who does.
    assert imported(FILES["mcf.optim.checkpoint"]) & above
    for name, path in FILES.items():
        if name.startswith("mcf.optim.step."):
            assert not imported(path) & above, name
            assert "optimizer._" not in path.read_text(), name

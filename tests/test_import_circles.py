"""No package imports in a circle, imports inside functions included, and folders are layers.

Caught mutants: a function-local import that leads back to its file; two files that import each
other; a circle through three; a folder that imports one above it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {"mcf": "mcf", "mcf.kernels": "kernels", "mcf.optim": "optim"}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every file by the name that it is imported by."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in sorted((root / folder).rglob("*.py")):
            inner = file.relative_to(root / folder).with_suffix("").parts
            parts = inner[:-1] if inner[-1] == "__init__" else inner
            found[".".join((package, *parts))] = file
    return found


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a file, wherever they stand, but for those of type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):  # which holds no statement
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from _statements(child)


def imported(text: str, known: set[str]) -> set[str]:
    """The modules that a file's text imports."""
    found = set()
    for statement in _statements(ast.parse(text)):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif statement.module is not None:
            for alias in statement.names:
                inner = f"{statement.module}.{alias.name}"
                found.add(inner if inner in known else statement.module)
    return found & known


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The groups of files each of which leads to all others (Tarjan 1972, doi:10.1137/0201010)."""
    place: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(file: str) -> None:
        place[file] = low[file] = len(place)
        stack.append(file)
        for other in sorted(graph[file]):
            if other not in place:
                visit(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == place[file]:
            group = set(stack[stack.index(file) :])
            del stack[stack.index(file) :]
            if len(group) > 1 or file in graph[file]:
                found.append(group)

    for file in sorted(graph):
        if file not in place:
            visit(file)
    return found


@functools.cache
def graph() -> dict[str, set[str]]:
    """Of every file the modules that it imports."""
    files = modules()
    return {name: imported(file.read_text(), set(files)) for name, file in files.items()}


@pytest.mark.parametrize("package", FOLDERS)
def test_no_circles(package: str) -> None:
    files = modules()
    own = [
        group
        for group in circles(graph())
        if any(files[name].is_relative_to(ROOT / FOLDERS[package]) for name in group)
    ]
    assert own == []


def test_circles_are_found() -> None:
    made: dict[str, set[str]] = {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set(), "e": {"a", "e"}}
    assert circles(made) == [{"e"}]
    assert circles(made | {"d": {"b"}}) == [{"b", "c", "d"}, {"e"}]
    known = {"mcf.a", "mcf.a.b", "mcf.c"}
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mcf.c\n"
    assert imported(text, known) == set()
    assert imported("def f():\n    from mcf.a import b, name\n", known) == {"mcf.a", "mcf.a.b"}


# Folders in the order in which they import: each only itself and those before it. "" holds the
# files of the package itself.
LAYERS = {
    "mcf.kernels.numba": ("runtime", "cache", "compile", "loops", ""),
    "mcf.optim": (
        ("sharding", "storage"), "parameters", "rule", "step", "", "rules",
        "conversion", "companions",
    ),
}  # fmt: skip


def layer(package: str, module: str) -> int:
    """Return the index of the layer in which a module of a package stands."""
    folder, _, rest = module.removeprefix(f"{package}.").partition(".")
    layers = [{each} if isinstance(each, str) else set(each) for each in LAYERS[package]]
    (found,) = (k for k, names in enumerate(layers) if (folder if rest else "") in names)
    return found


def upward(package: str, graph: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports of a package's files from a layer above theirs."""
    known = modules()
    files = [
        name
        for name in graph
        if name.startswith(f"{package}.") and known[name].name != "__init__.py"
    ]
    return [
        (name, other)
        for name in files
        for other in sorted(graph[name].intersection(files))
        if layer(package, other) > layer(package, name)
    ]


@pytest.mark.parametrize("package", LAYERS)
def test_folders_import_only_layers_below(package: str) -> None:
    assert upward(package, graph()) == []


def test_upward_import_is_found() -> None:
    storage, rule = "mcf.optim.storage.codes", "mcf.optim.rule.rule"
    assert upward("mcf.optim", {storage: {rule}, rule: {storage}}) == [(storage, rule)]

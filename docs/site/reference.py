"""The pages of the reference: groups of public names, each with a table before its docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Modules by their pages, and names that are documented besides.
PAGES = {
    "api/mcf.md": ("mcf", "mcf/__init__.py", ()),
    "api/optim.md": ("mcf.optim", "optim/__init__.py", ("optimizer.LowPrecisionOptimizer",)),
    "api/nn.md": ("mcf.nn", "mcf/nn/__init__.py", ()),
}
# Functions that are called as the folder that holds them.
ELSEWHERE = {"mcf.tensor": "mcf.expansions.creation.tensor"}
# Groups by the beginnings of the modules that names come from, in the order of the pages.
GROUPS = {
    "mcf.expansions": "Tensors",
    "mcf.convert": "Tensors",
    "mcf.constants": "Constants",
    "mcf.complexes": "Complex numbers",
    "mcf.functions": "Functions",
    "mcf.accurate": "Sums and products",
    "mcf.products": "Sums and products",
    "mcf.polynomials": "Sums and products",
    "mcf.transforms": "Error-free transforms",
    "mcf.bounds": "Bounds",
    "mcf.explaining": "Bounds",
    "mcf.fusion": "Executors and compilation",
    "mcf.kernels": "Executors and compilation",
    "mcf.optim.rules": "Optimizers",
    "mcf.optim.optimizer": "Optimizers",
    "mcf.optim.companions.wrap": "Optimizers",
    "mcf.optim.precision": "Precisions and groups",
    "mcf.optim.module_groups": "Precisions and groups",
    "mcf.optim.companions": "Around an optimizer",
    "mcf.optim.conversion": "Conversion",
    "mcf.optim.sharding": "Many processes",
    "mcf.optim.parameters": "Many processes",
    "mcf.optim.step": "Warnings and errors",
    "mcf.optim.user_warnings": "Warnings and errors",
    "mcf.nn": "Modules",
}

# State the facts that all entries of a group have in common.
COMMON = {
    "Functions": "Each function takes expansion tensors, and where it says so plain tensors or "
    "tuples of components, and returns the same type. `mcf.bound` states the error of most, as in "
    '`mcf.bound("exp", terms=2, dtype=torch.float64)`. Derivatives are computed in '
    "the same arithmetic.",
    "Sums and products": "`terms` is the number of components of the result; None takes the most "
    "that an argument has. Plain tensors are summed as if in twice the precision, and rounded. "
    "`mcf.bound` states the errors.",
}


def public(source: str) -> dict[str, str]:
    """Return the names that a module makes public, and their origins.

    They are those of `from a import b as b`, and those in `a.__all__` for `from a import *`.
    """
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module not in ("mcf", "torch.linalg"):
            for alias in node.names:
                if alias.name == "*":
                    names = importlib.import_module(str(node.module)).__all__
                else:
                    names = [alias.name] if alias.asname == alias.name else []
                found.update({n: f"{node.module}.{n}" for n in names if not n.startswith("_")})
    return found


def path(module: str, name: str) -> str:
    """Return the path by which mkdocstrings finds a public name."""
    return ELSEWHERE.get(f"{module}.{name}", f"{module}.{name}")


def page(module: str, source: Path, more: tuple[str, ...]) -> str:
    """Return the page of a module: for each group a table, then the docstrings."""
    names = public(source.read_text()) | {name: f"{module}.{name}" for name in more}
    groups: dict[str, list[str]] = {title: [] for title in GROUPS.values()}
    for name in sorted(names, key=str.lower):
        groups[_group(names[name])].append(name)
    parts = [f"# {module}\n"]
    for title, own in groups.items():
        if own:
            parts += [f"## {title}\n", COMMON.get(title, "") + "\n"]
            parts += ["| name | what it is |\n|---|---|"]
            parts += [
                f"| [`{name.split('.')[-1]}`][{path(module, name)}] | {_first_line(module, name)} |"
                for name in own
            ]
            parts += ["", *(f"::: {path(module, name)}\n" for name in own)]
    return "\n".join(parts)


def linalg() -> str:
    """Return the page of `mcf.linalg`, whose functions are torch's."""
    module = importlib.import_module("mcf.linalg")
    torch = "https://docs.pytorch.org/docs/stable/generated/torch.linalg"
    names = [n for n in sorted(module.__all__) if inspect.isroutine(getattr(module, n))]
    rows = [f"| [`{n}`]({torch}.{n}.html) | {_torch_says(getattr(module, n))} |" for n in names]
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    return f"# mcf.linalg\n\n{inspect.getdoc(module)}\n\n## Functions\n\n{table}\n"


def _torch_says(function: Any) -> str:
    """Return the first sentence of a docstring of torch, after its signature, as plain text."""
    said = (inspect.getdoc(function) or "").split("\n\n")
    text = next((p for p in said if not re.match(r"(torch\.)?(linalg\.|\w+\()", p)), "").replace(
        "\n", " "
    )
    text = re.sub(r":\w+:`~?([^`<]*)[^`]*`(\\ )?", r"\1 ", text).replace("|", "\\|")
    return re.split(r"(?<=\.)\s", text.strip())[0]


def _group(origin: str) -> str:
    return next(title for start, title in GROUPS.items() if f"{origin}.".startswith(f"{start}."))


def _first_line(module: str, name: str) -> str:
    """Return the first sentence of a docstring, fit for the cell of a table."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, (dict, tuple)):
        return ""
    text = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return re.split(r"(?<=\.)\s", text)[0]

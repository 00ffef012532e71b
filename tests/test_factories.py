"""Tensors that the library makes for itself name their device: the default one may be "meta"."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

FACTORIES = {
    "arange", "as_tensor", "asarray", "complex", "empty", "empty_strided", "eye", "full",
    "linspace", "logspace", "ones", "rand", "randint", "randn", "randperm", "tensor",
    "scalar_tensor", "tril_indices", "triu_indices", "zeros",
}  # fmt: skip

CALL = re.compile(rf"\btorch\s*\.\s*({'|'.join(sorted(FACTORIES))})\b")

# Takes what users give, where torch's own factories put it; of two tensors, which have a device.
ALLOWED = {("mcf/expansions/conversion.py", "as_tensor"), ("mcf/complexes/creation.py", "complex")}


def unnamed() -> Iterator[str]:
    for package in ("kernels", "mcf", "optim"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            text = path.read_text()
            # Parsing takes seconds: only files that call one of them by its name.
            for node in ast.walk(ast.parse(text)) if CALL.search(text) else ():
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                    continue
                module, function = node.func.value, node.func.attr
                ours = isinstance(module, ast.Name) and module.id == "torch"
                keywords = {k.arg for k in node.keywords}
                if ours and function in FACTORIES and not keywords & {"device", None}:
                    if (name, function) not in ALLOWED:
                        yield f"{name}:{node.lineno}: {ast.unparse(node)}"


def test_factories_name_their_device() -> None:
    assert list(unnamed()) == []

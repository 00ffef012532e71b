"""Check the mechanical part of CONTRIBUTING's *Style*.

`make test` checks the first words of docstrings. `make lint` runs this file as a script, which also
checks commit subjects and needs no package.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("kernels", "mcf", "optim")
# First words that stand for a noun which is missing. Commands such as "Return whether" are fine.
FIRST_WORDS = re.compile(
    r"(Of|What|Where|Whose|Which|Who|Behind|Beside|Those|These|Such|How|Whether|The same|So many"
    r"|See `?\w)\b"
)
# Later commits are checked: earlier subjects cannot be changed.
FIRST_COMMIT = "f1bfa8a18a"
SUBJECT = 72
# Words that are no verb in the imperative: other forms of verbs, nouns, articles.
NO_VERB = re.compile(r"(\w+(ed|ing|s|ion)|The|A|An|No|Of|What|Where|In|On|For|To|It)\b")
VERBS = frozenset(
    "Bring Embed Feed Need Seed Speed Shed Process Pass Express Address Access Compress Focus "
    "Guess Bias Press Discuss Stress Miss Mention Question Position".split()
)


def docstrings(source: str) -> Iterator[tuple[ast.AST, int, str]]:
    """Yield node, line and text of each docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node, node.body[0].lineno, text


def is_property(node: ast.AST) -> bool:
    """Return whether a docstring describes an attribute, for which "Whether ..." is enough."""
    return isinstance(node, ast.FunctionDef) and any(
        "property" in ast.dump(decorator) for decorator in node.decorator_list
    )


def faults(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and first line of each docstring with a first word that names nothing."""
    for node, line, text in docstrings(source):
        found = FIRST_WORDS.match(text)
        if found and not (found[1] == "Whether" and is_property(node)):
            yield line, text.splitlines()[0]


def files() -> list[Path]:
    """Return the sources whose docstrings are checked."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return list(found)


def refused(subject: str) -> bool:
    """Return whether a commit subject is too long or not in the imperative."""
    if subject.startswith(("Merge ", "Revert ")):
        return False
    verb = subject.partition(" ")[0] in VERBS or not NO_VERB.match(subject)
    return len(subject) > SUBJECT or not subject[:1].isupper() or not verb


def subjects() -> list[str]:
    """Return the subjects of later commits; say so where there is no history to read."""
    command = ["git", "log", "--no-merges", "--format=%s", f"{FIRST_COMMIT}..HEAD"]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if log.returncode:
        print(f"commit subjects not checked: {log.stderr.splitlines()[0]}", file=sys.stderr)
    return log.stdout.splitlines()


def all_faults() -> list[str]:
    """Return every docstring with a fault, one line each."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files()
        for line, text in faults(path.read_text(encoding="utf-8"))
    ]


def test_first_words() -> None:
    assert all_faults() == []


def test_the_checker_finds_faults() -> None:
    body = '"""Fine."""\ndef f():\n    """{}"""\n'
    for text in ("Of x: its sign.", "What x is.", "The same of y.", "See `g`.", "Whether x > 0."):
        assert [t for _, t in faults(body.format(text))] == [text]
    assert not list(faults(body.format("Return whether x > 0.")))
    member = '"""Fine."""\nclass C:\n    @property\n    def f():\n        """Whether x > 0."""\n'
    assert not list(faults(member))
    for subject in ("Keep the gradient of cummax", "Process blocks", "Merge branch 'w'"):
        assert not refused(subject)
    for subject in ("Fixed a bug", "Adds a test", "What is kept", "fix it", "Make " + 70 * "x"):
        assert refused(subject)


if __name__ == "__main__":
    # Only here: a subject that is merged already must not fail `make test`.
    SUBJECTS = [f"commit subject: {s}" for s in subjects() if refused(s)]
    sys.exit("\n".join(all_faults() + SUBJECTS) or 0)

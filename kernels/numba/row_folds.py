"""Texts of folds of numbers times rows, in the order of a matrix product."""

from __future__ import annotations

from mcf.kernels.fold import GROUP
from mcf.kernels.numba.panel_text import PanelText


def steps(text: PanelText, rows: str, kinds: int = 1) -> None:
    """Loops that add numbers times rows of an operand to the partial sums s.

    Complex numbers (`kinds` 2) have two terms each, so that a group is of half as many; one on its
    own has functions `alone` and `joined`.
    """
    for name, count in (("group", GROUP // kinds), ("one", 1)):
        held = [f"f{k}" for k in range(count)]
        load = f"load_{rows}(at_{rows}, row + {{}} * stride + c)"
        parts = [f"term({f}, {load.format(k)})" for k, f in enumerate(held)]
        while len(parts) > 1:
            parts = [f"merge({a}, {b})" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        arguments = f"at_{rows} at_s row stride s {' '.join(held)}"
        combined = f"combine(load_s(at_s, s + c), {parts[0]})"
        if kinds == 2 and count == 1:
            given = f"f0, {load.format(0)}"
            parts, combined = [f"alone({given})"], f"joined(load_s(at_s, s + c), {given})"
        text.step(f"{name}_first", arguments, f"store_s(at_s, s + c, {parts[0]})")
        text.step(name, arguments, f"store_s(at_s, s + c, {combined})")


def fold(text: PanelText, depth: int, given: str, kinds: int = 1) -> None:
    """Fold n numbers, of which `given` loads one by its distance, times rows from `row` on."""
    group = GROUP // kinds
    text.add(depth, "i = 0")
    for condition, name, count in (
        (f"while i + {group} <= n:", "group", group),
        ("while i < n:", "one", 1),
    ):
        text.add(
            depth,
            condition,
            *(f"    f{k} = {given.format(f'i + {k}')}" for k in range(count)),
            "    if i == 0:",
            f"        {text.run(f'{name}_first', 'first')}",
            "    else:",
            f"        {text.run(name, 'first')}",
            f"    row += {count} * stride",
            f"    i += {count}",
        )

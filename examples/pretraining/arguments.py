"""Arguments on a command line: checked for their range, refused in one line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any, NoReturn

from pretraining import console

# A count up to here is exact in every format that it passes through.
MOST = 10**12


class Unset(int):
    """A default that can be told from the same number given."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose help's reader may go."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and exit with code 2."""
        # argparse prints the whole usage first; the one line that matters would be lost under it.
        console.tell(f"{self.prog}: error: {message} (--help explains every option)")
        self.exit(2)

    def _print_message(self, message: str, file: Any = None) -> None:
        # --help; its reader may be `head`.
        console.say(message.rstrip("\n"))


class Help(argparse.HelpFormatter):
    """Adds the default to the help of each option that has one worth showing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if action.help is None or action.nargs == 0 or default is None or default == []:
            return action.help
        if isinstance(default, list):
            return f"{action.help} (default: {' '.join(map(str, default))})"
        return f"{action.help} (default: {default})"


def integer(low: int, high: int = MOST) -> Callable[[str], int]:
    """Return an argument's type: whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return parse


def real(low: float, high: float, *, open_low: bool = False) -> Callable[[str], float]:
    """Return an argument's type: numbers from `low`, itself left out or not, to below `high`."""
    interval = f"{'(' if open_low else '['}{low:g}, {high:g})"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (low < value < high or (value == low and not open_low)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number in {interval}")
        return value

    return parse

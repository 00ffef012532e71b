"""Shapes for counting bytes: sizes that small meshes divide."""

from __future__ import annotations

import sys

from tests.examples.tiny import EXAMPLES

if str(EXAMPLES) not in sys.path:
    sys.path.insert(0, str(EXAMPLES))

from pretraining.shapes import Shape

SMALL = Shape(True, 3, 32, 4, 2, 64, 16, 40)

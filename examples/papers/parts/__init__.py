"""Share options, results, figures, models and texts among the scripts of the papers."""

import sys
from pathlib import Path

# The harness of the benchmarks and the parts of the pretraining example are next to this folder.
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]

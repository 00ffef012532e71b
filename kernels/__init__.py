"""Algorithms written once, and the executors that run them on tensors with the same bits."""

import importlib
import warnings
from types import ModuleType

from mcf.kernels import environment as environment
from mcf.kernels.formats import BF16 as BF16
from mcf.kernels.formats import FP16 as FP16
from mcf.kernels.formats import FP32 as FP32
from mcf.kernels.formats import FP64 as FP64
from mcf.kernels.formats import Format as Format
from mcf.kernels.formats import format_of as format_of
from mcf.kernels.formats import toy as toy
from mcf.kernels.registry import ExecutorWarning as ExecutorWarning
from mcf.kernels.registry import executor as executor
from mcf.kernels.registry import get_executor as get_executor
from mcf.kernels.registry import set_executor as set_executor

__all__ = [
    "BF16", "FP16", "FP32", "FP64", "ExecutorWarning", "Format", "environment", "executor",
    "format_of", "get_executor", "set_executor", "toy",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name != "expansions":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "mcf.kernels.expansions is called mcf.kernels.operations", DeprecationWarning, stacklevel=2
    )
    return importlib.import_module("mcf.kernels.operations")

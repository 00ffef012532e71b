"""Optimizers that train in low precision at the quality of float32 master weights."""

from mcf.optim.accumulator import GradientAccumulator as GradientAccumulator
from mcf.optim.adam import Adam as Adam
from mcf.optim.adamw import AdamW as AdamW
from mcf.optim.adamw import CollageAdamW as CollageAdamW
from mcf.optim.sgd import SGD as SGD
from mcf.optim.strategies import STRATEGIES as _STRATEGIES

# The values of `precision`.
PRECISIONS = tuple(_STRATEGIES)

"""Optimizers that train in low precision at the quality of float32 master weights."""

from mcf.optim.accumulator import GradientAccumulator as GradientAccumulator
from mcf.optim.adam import Adam as Adam
from mcf.optim.adamax import Adamax as Adamax
from mcf.optim.adamw import AdamW as AdamW
from mcf.optim.adamw import CollageAdamW as CollageAdamW
from mcf.optim.conversion import convert as convert
from mcf.optim.conversion import float32_checkpoint as float32_checkpoint
from mcf.optim.conversion import load_converted as load_converted
from mcf.optim.groups import param_groups as param_groups
from mcf.optim.lion import Lion as Lion
from mcf.optim.muon import Muon as Muon
from mcf.optim.nadam import NAdam as NAdam
from mcf.optim.plugin import collage as collage
from mcf.optim.precision import Precision as Precision
from mcf.optim.radam import RAdam as RAdam
from mcf.optim.randomness import set_index_offset as set_index_offset
from mcf.optim.randomness import set_stream as set_stream
from mcf.optim.release import GradientRelease as GradientRelease
from mcf.optim.rewritten import WeightsRewrittenWarning as WeightsRewrittenWarning
from mcf.optim.sgd import SGD as SGD
from mcf.optim.strategies import STRATEGIES as _STRATEGIES

# The values of `precision`.
PRECISIONS = tuple(_STRATEGIES)

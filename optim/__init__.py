"""Optimizers that train in low precision at the quality of float32 master weights."""

import sys as _sys

from mcf.optim.companions.accumulator import GradientAccumulator as GradientAccumulator
from mcf.optim.companions.moment_accumulator import MomentAccumulator as MomentAccumulator
from mcf.optim.companions.offload import CPUOffloadOptimizer as CPUOffloadOptimizer
from mcf.optim.companions.release import GradientRelease as GradientRelease
from mcf.optim.companions.weight_average import WeightAverage as WeightAverage
from mcf.optim.companions.wrap import collage as collage
from mcf.optim.conversion.optimizers import convert as convert
from mcf.optim.conversion.optimizers import float32_checkpoint as float32_checkpoint
from mcf.optim.conversion.optimizers import load_converted as load_converted
from mcf.optim.conversion.weights import float32_weights as float32_weights
from mcf.optim.conversion.weights import load_float32_weights as load_float32_weights
from mcf.optim.module_groups import param_groups as param_groups
from mcf.optim.parameters.randomness import set_index_offset as set_index_offset
from mcf.optim.parameters.randomness import set_stream as set_stream
from mcf.optim.precision import Precision as Precision
from mcf.optim.rules.adamax import Adamax as Adamax
from mcf.optim.rules.adamw import Adam as Adam
from mcf.optim.rules.adamw import AdamW as AdamW
from mcf.optim.rules.adamw import CollageAdamW as CollageAdamW
from mcf.optim.rules.adan import Adan as Adan
from mcf.optim.rules.ademamix import AdEMAMix as AdEMAMix
from mcf.optim.rules.lion import Lion as Lion
from mcf.optim.rules.muon import Muon as Muon
from mcf.optim.rules.nadam import NAdam as NAdam
from mcf.optim.rules.radam import RAdam as RAdam
from mcf.optim.rules.schedule_free import ScheduleFreeAdamW as ScheduleFreeAdamW
from mcf.optim.rules.sgd import SGD as SGD
from mcf.optim.rules.stable_adamw import StableAdamW as StableAdamW
from mcf.optim.sharding.engines import set_gradient_reduction as set_gradient_reduction
from mcf.optim.sharding.gradient_reduction import GradientReduction as GradientReduction
from mcf.optim.sharding.gradient_reduction import reduce_gradients as reduce_gradients
from mcf.optim.step.gradient_scaling import NonFiniteGradientError as NonFiniteGradientError
from mcf.optim.step.rewritten import WeightsRewrittenWarning as WeightsRewrittenWarning
from mcf.optim.storage.strategies import STRATEGIES as _STRATEGIES
from mcf.optim.user_warnings import LostUpdatesWarning as LostUpdatesWarning
from mcf.optim.user_warnings import NoEffectWarning as NoEffectWarning
from mcf.public import public as _public

# The values of `precision`.
PRECISIONS = tuple(_STRATEGIES)

__all__ = _public(globals())


def __dir__() -> list[str]:
    """Return the public names, which editors complete."""
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


# Pickled optimizers name the module of their class; these are the module names of earlier versions.
for _name in (
    "adam",
    "adamax",
    "adamw",
    "lion",
    "muon",
    "nadam",
    "radam",
    "sgd",
    "rules.adam",
    "rules.collage_adamw",
):
    _sys.modules.setdefault(f"{__name__}.{_name}", _sys.modules[__name__])

"""Metrics of a step: effective descent quality and lost additions.

Effective descent quality is Definition 3.3 of the Collage paper (arXiv:2405.03637): the projection
of the update that the stored parameter really made on the intended one. An addition is lost when
the stored number keeps its value although the addend is not zero (Definition 3.2, for the operand
that is stored).
"""

from mcf.kernels.algorithms.primitives import ZERO
from mcf.optim.storage.slots import param_moved


def param_terms(param, param_lo, new_param, new_param_lo, out_update):
    """Per element: <effective, intended>, |intended|^2, whether the parameter lost the addition."""
    effective = param_moved(param, param_lo, new_param, new_param_lo)
    lost = (effective == ZERO) & (out_update != ZERO)
    return effective * out_update, out_update * out_update, lost


def adamw_terms(
    param,
    param_lo,
    new_param,
    new_param_lo,
    out_update,
    exp_avg_sq,
    exp_avg_sq_lo,
    new_exp_avg_sq,
    new_exp_avg_sq_lo,
    out_increment,
    one_minus_beta2,
):
    """The terms of the parameter, and whether the second moment lost an addition.

    The second moment v changes by (1 - beta2) (g^2 - v).
    """
    along, norm, lost = param_terms(param, param_lo, new_param, new_param_lo, out_update)
    decay = one_minus_beta2 * (exp_avg_sq + exp_avg_sq_lo)
    unchanged = (new_exp_avg_sq == exp_avg_sq) & (new_exp_avg_sq_lo == exp_avg_sq_lo)
    lost_sq = unchanged & (out_increment != decay)
    return along, norm, lost, lost_sq

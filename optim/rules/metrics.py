"""What each step measures about itself: effective descent quality and lost additions.

Effective descent quality is Definition 3.3 of the Collage paper (arXiv:2405.03637): the projection
of the update that the stored parameter really made on the intended one. An addition is lost
(Definition 3.2) when its stored result equals one operand although the other is not zero.
"""

from mcf.kernels.algorithms.primitives import ONE, ZERO, where


def param_terms(param, param_lo, new_param, new_param_lo, out_update):
    """Per element: <effective, intended>, |intended|^2, parameter addition lost (0 or 1)."""
    effective = (new_param - param) + (new_param_lo - param_lo)
    unchanged = (new_param == param) & (new_param_lo == param_lo) & (out_update != ZERO)
    replaced = (new_param + new_param_lo == out_update) & (param + param_lo != ZERO)
    lost = where(unchanged | replaced, ONE, ZERO)
    return effective * out_update, out_update * out_update, lost


def adamw_terms(
    param, param_lo, new_param, new_param_lo, out_update,
    exp_avg_sq, exp_avg_sq_lo, new_exp_avg_sq, new_exp_avg_sq_lo, out_increment, one_minus_beta2,
):
    """The terms of the parameter, and second-moment addition lost (0 or 1).

    The second moment v takes the change (1 - beta2) (g^2 - v).
    """
    along, norm, lost = param_terms(param, param_lo, new_param, new_param_lo, out_update)
    change = out_increment - one_minus_beta2 * (exp_avg_sq + exp_avg_sq_lo)
    unchanged = (new_exp_avg_sq == exp_avg_sq) & (new_exp_avg_sq_lo == exp_avg_sq_lo)
    lost_sq = where(unchanged & (change != ZERO), ONE, ZERO)
    return along, norm, lost, lost_sq

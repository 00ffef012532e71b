"""Functions made of others that are computed by their steps where nobody looks on."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mcf.tensor.registry import DIRECT, WIDE
from mcf.tensor.tapes import taped

_ROOMS: dict[Any, str] = {
    torch: (
        "angle cdist deg2rad exp2 float_power heaviside ldexp logaddexp2 logit pdist rad2deg sinc "
        "batch_norm celu group_norm instance_norm layer_norm logaddexp nan_to_num prelu rms_norm "
        "selu threshold xlogy "
        "addr block_diag cartesian_prod copysign corrcoef cov dist gradient kron logcumsumexp "
        "logical_and logical_or logical_xor nanmean nansum quantile relu renorm "
        "std_mean trapezoid trapz vander var_mean"
    ),
    torch.special: "entr exp2 logit sinc xlog1py xlogy",
    torch.linalg: "matrix_norm vander vecdot",
    F: (
        "binary_cross_entropy binary_cross_entropy_with_logits celu cosine_embedding_loss "
        "cosine_similarity cross_entropy elu gaussian_nll_loss glu group_norm hardshrink "
        "hardsigmoid hardswish hardtanh hinge_embedding_loss huber_loss instance_norm kl_div "
        "l1_loss layer_norm leaky_relu logsigmoid margin_ranking_loss mish mse_loss nll_loss "
        "normalize pairwise_distance poisson_nll_loss prelu relu relu6 rms_norm selu silu "
        "smooth_l1_loss soft_margin_loss softmin softplus softshrink softsign tanhshrink threshold "
        "triplet_margin_loss"
    ),
    Tensor: (
        "angle deg2rad exp2 float_power hardshrink heaviside ldexp logaddexp logaddexp2 logit "
        "nan_to_num prelu rad2deg sinc xlogy "
        "addr copysign corrcoef cov dist logcumsumexp logical_and logical_or logical_xor nanmean "
        "nansum quantile relu renorm"
    ),
}

for _room, _names in _ROOMS.items():
    for _name in _names.split():
        _function = getattr(_room, _name)
        if _function not in DIRECT:
            DIRECT[_function] = taped(_function)
            WIDE.add(DIRECT[_function])

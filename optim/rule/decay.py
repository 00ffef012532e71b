"""Where weight decay enters: in the gradient (an L2 penalty) or in the update (decoupled)."""

from mcf.kernels.algorithms.primitives import rn


def without(x, decay):
    """x."""
    return x


def added(x, decay):
    """RN(x + decay)."""
    return rn(x + decay)


# What fills the slots `regularized` and `decayed`.
DECOUPLED = (("regularized", without), ("decayed", added))
L2 = (("regularized", added), ("decayed", without))

"""A moment in one bf16 number, rounded stochastically so that its mean is exact."""

from mcf.kernels.formats import BF16, Format
from mcf.optim.storage.single import Single


class Stochastic(Single):
    """A moment in bf16, rounded stochastically; for moments only.

    The random bits are those of the element's moments (`mcf.kernels.streams`), 16 for a first and
    16 others for a second moment. All second moments of an element are rounded by the same bits.
    AMSGrad's maximum is therefore the largest stored value, because rounding keeps the order.
    """

    name = "stochastic"
    parameter_bytes = None
    wide = True
    stochastic = True

    def format(self, component: Format) -> Format:
        return BF16


STOCHASTIC = Stochastic()

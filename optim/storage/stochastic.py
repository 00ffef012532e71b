"""A moment in one bf16 number that is rounded up or down at random, so that its mean is exact."""

from mcf.kernels.formats import BF16, Format
from mcf.optim.storage.single import Single


class Stochastic(Single):
    """A moment in bf16, rounded stochastically; of moments alone.

    The random bits are those of the element's moments (`mcf.kernels.streams`), 16 for a first and
    16 others for a second moment. All second moments of an element are rounded by the same: the
    largest so far (AMSGrad's) is the largest that was stored, since rounding keeps the order.
    """

    name = "stochastic"
    parameter_bytes = None
    wide = True
    stochastic = True

    def format(self, component: Format) -> Format:
        """See `Storage`."""
        return BF16


STOCHASTIC = Stochastic()

"""What tests share: comparison by bits, exact numbers of tensors, inputs that break arithmetic."""

from tests.helpers.bits import assert_alike as assert_alike
from tests.helpers.bits import assert_all_same_bits as assert_all_same_bits
from tests.helpers.bits import assert_same_bits as assert_same_bits
from tests.helpers.bits import bits as bits
from tests.helpers.bits import count_different as count_different
from tests.helpers.exactly import integers as integers
from tests.helpers.exactly import numbers as numbers
from tests.helpers.exactly import tensor_of as tensor_of

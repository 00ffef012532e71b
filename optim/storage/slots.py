"""Functions that an update rule leaves open; a strategy fills them (`strategies`)."""


def unfilled(name):
    """Raise for a slot that is called unbound."""
    raise TypeError(f"{name} is a slot: a strategy fills it when the rule is bound")


def scaled_gradient(grad, grad_lo, grad_scale, grad_limit):
    """The gradient as one register, multiplied by a scale (`optim.rule.formulas`)."""
    unfilled("scaled_gradient")


def param_value(hi, lo):
    """The parameter as one register."""
    unfilled("param_value")


def param_components(hi, lo):
    """The parameter as two numbers, which sum to its value."""
    unfilled("param_components")


def param_moved(hi, lo, new_hi, new_lo):
    """The change of the stored parameter."""
    unfilled("param_moved")


def second_moment_value(hi, lo):
    """The second moment as one register."""
    unfilled("second_moment_value")


def second_moment_components(value):
    """A register as the components that store a second moment."""
    unfilled("second_moment_components")


def accumulate(hi, lo, update):
    """The stored parameter plus an update, as stored again."""
    unfilled("accumulate")


def shrink(hi, lo, beta, beta_lo):
    """The stored second moment times beta, as components again."""
    unfilled("shrink")


def decay_and_add(hi, lo, beta, beta_lo, increment):
    """The stored second moment times beta plus an increment, as stored again."""
    unfilled("decay_and_add")


def unbias(moment, correction, inverse_correction):
    """A moment divided by its bias correction."""
    unfilled("unbias")


def direction(gradient, buffer, momentum):
    """The direction of descent of SGD."""
    unfilled("direction")


def regularized(gradient, decay):
    """The gradient, with or without the share of an L2 penalty."""
    unfilled("regularized")


def decayed(direction, decay):
    """The direction of descent, with or without the share of decoupled weight decay."""
    unfilled("decayed")


def unit(pattern):
    """The unit of a first moment in a code, from the bits of the stored second moment.

    It is the biased exponent of a power of two.
    """
    unfilled("unit")


def stored_bits(second, kept):
    """The bits of a second moment as stored, from its computed value and its stored code."""
    unfilled("stored_bits")


def denominator(second, second_lo, maximum, maximum_lo):
    """The second moment to divide by, and the stored maximum."""
    unfilled("denominator")


def ahead(fresh, buffer, momentum):
    """The matrix that Muon orthogonalises."""
    unfilled("ahead")

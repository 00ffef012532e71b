"""Functions that an update rule leaves open; a strategy fills them (`strategies`)."""


def unfilled(name):
    """Raise for a slot that is called unbound."""
    raise TypeError(f"{name} is a slot: a strategy fills it when the rule is bound")


def scaled_gradient(grads):
    """Return the gradient as one register, scaled and clipped (`optim.rule.formulas`).

    `grads` are its two components, the scale and the limit.
    """
    unfilled("scaled_gradient")


def param_value(hi, lo):
    """Return the parameter as one register."""
    unfilled("param_value")


def param_components(hi, lo):
    """Return the parameter as two numbers, which sum to its value."""
    unfilled("param_components")


def param_moved(hi, lo, new_hi, new_lo):
    """Return the change of the stored parameter."""
    unfilled("param_moved")


def second_moment_value(hi, lo):
    """Return the second moment as one register."""
    unfilled("second_moment_value")


def second_moment_components(value):
    """Split a register into the components that store a second moment."""
    unfilled("second_moment_components")


def accumulate(hi, lo, update):
    """Add an update to the stored parameter and return its components."""
    unfilled("accumulate")


def shrink(hi, lo, beta, beta_lo):
    """Multiply the stored second moment by beta and return its components."""
    unfilled("shrink")


def decay_and_add(hi, lo, beta, beta_lo, increment):
    """Decay the stored second moment by beta, add an increment and return its components."""
    unfilled("decay_and_add")


def unbias(moment, correction):
    """Divide a moment by its bias correction; without strict arithmetic the inverse is given."""
    unfilled("unbias")


def direction(gradient, buffer, momentum):
    """Return the direction of descent of SGD."""
    unfilled("direction")


def regularized(gradient, decay):
    """Return the gradient, with or without the share of an L2 penalty."""
    unfilled("regularized")


def decayed(direction, decay):
    """Return the direction of descent, with or without the share of decoupled weight decay."""
    unfilled("decayed")


def unit(pattern):
    """Return the unit of a first moment in a code, from the bits of the stored second moment.

    It is the biased exponent of a power of two.
    """
    unfilled("unit")


def stored_bits(second, kept):
    """Return the bits of a stored second moment, from its computed value and its stored code."""
    unfilled("stored_bits")


def denominator(second, second_lo, maximum, maximum_lo):
    """Return the second moment to divide by, which becomes the stored maximum."""
    unfilled("denominator")


def ahead(fresh, buffer, momentum):
    """Return the matrix that Muon orthogonalises."""
    unfilled("ahead")

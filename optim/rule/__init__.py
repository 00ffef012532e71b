"""Say what an update rule is, and the formulas that rules share."""

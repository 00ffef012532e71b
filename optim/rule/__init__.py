"""Update rules: their interface, and the formulas that they share."""

"""How the numbers of an optimizer are kept: one object and one file for each way."""

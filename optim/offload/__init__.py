"""Keep and step an optimizer's states on the CPU."""

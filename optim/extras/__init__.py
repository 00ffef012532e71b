"""Around an optimizer: gradients added up or released, and any class of torch wrapped."""

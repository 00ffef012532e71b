"""Average the weights of a training."""

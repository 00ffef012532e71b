"""Update rules, each a formula written once for every precision strategy and executor."""

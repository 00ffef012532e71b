"""The one exception whose message is meant for the person at the terminal."""


class InputError(Exception):
    """A wrong option or unusable data: `pretrain.py` prints it as one line and exits with 2."""

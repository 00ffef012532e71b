"""What ends a run early; each is one line at the terminal and an exit code of its own."""


class InputError(Exception):
    """A wrong option or unusable data: exit code 2, and nothing has been changed."""


class RunError(Exception):
    """The files of the run or the machine do not let it go on: exit code 1."""


class Stopped(BaseException):
    """A signal asked to stop: exit code 128 + `number`. No `except Exception` takes it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

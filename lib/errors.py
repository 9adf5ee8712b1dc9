"""The two exceptions whose text is written for a person."""


class BadInput(ValueError):
    """What was given cannot be used: says what is wrong, where, and what to do. On the command line, exit code 2."""


class TrainingFailed(RuntimeError):
    """The run cannot go on; says at which step, on which samples, and what to change."""


class OutOfMemory(TrainingFailed):
    """Memory ran out where the step cannot be repeated; a fresh launch may go on in `micro_batch` (0: no smaller)."""

    def __init__(self, text: str, micro_batch: int):
        super().__init__(text)
        self.micro_batch = micro_batch
